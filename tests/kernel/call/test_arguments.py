"""What a call takes for an array: what jax.export takes, at every call, not only at the first."""

from __future__ import annotations

import collections
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit.corpus import spec
from kit.each import each

pytestmark = pytest.mark.jax

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Pair = collections.namedtuple("Pair", "a b")


class Subclass(np.ndarray):
    pass


class Boxed(collections.namedtuple("Boxed", "number")):
    """A registered namedtuple, with an item that is no child, and a child that is no item."""

    array: Any


def boxed(array: Any) -> Boxed:
    box = Boxed(0)
    box.array = array
    return box


jax.tree_util.register_pytree_node(Boxed, lambda box: ((box.array,), None), lambda _, children: boxed(children[0]))


def matrix() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        return np.matrix(X)


class ConvertsToJax:
    def __jax_array__(self) -> Any:
        return jnp.asarray(X)


class ConvertsToNumpy:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return X


ARRAYS = {
    "big-endian": X.astype(">f4"),
    "masked": np.ma.array(X, mask=X > 2),
    "masked, no mask": np.ma.array(X),
    "matrix": matrix(),
    "subclass": X.view(Subclass),
    "structured": np.zeros((2, 3), [("a", "f4")]),
    "read-only": np.broadcast_to(X[0], (2, 3)),
    "Fortran order": np.asfortranarray(X),
    "strided": np.repeat(X, 2, axis=1)[:, ::2],
    "__jax_array__": ConvertsToJax(),
    "__array__": ConvertsToNumpy(),
    "wider": X.astype(np.float64),
    "integers": X.astype(np.int32),
    "booleans": X > 2,
    "objects": X.astype(object),
    "texts": np.full((2, 3), "a"),
    "long double": X.astype(np.longdouble),
    "memoryview": memoryview(X),
    "list": X.tolist(),
    "None": None,
    "spec": spec((2, 3)),
    "device array": jnp.asarray(X),
    "tracer of nothing": jax.typeof(X),
}

SCALARS = {
    "float": 1.5,
    "int": 3,
    "bool": True,
    "complex": 1j,
    "int of 41 bits": 2**40,
    "int of 101 bits": 2**100,
    "numpy float32": np.float32(2),
    "numpy int32": np.int32(3),
    "numpy int64": np.int64(3),
    "numpy bool": np.bool_(True),
    "numpy void": np.zeros((), [("a", "f4")])[()],
    "numpy text": np.str_("a"),
    "big-endian": np.array(2, ">f4"),
    "big-endian int": np.array(2, ">i4"),
    "big-endian element": np.array([2], ">f4")[0],
    "masked constant": np.ma.masked,
    "bytes": b"abc",
    "weak": jnp.asarray(3.0),
}


def outcome(call: Any, *args: Any, **kwargs: Any) -> Any:
    """The numbers that come out, or the built-in types of the exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of NumPy, about numbers that float32 does not hold
        try:
            result = np.asarray(call(*args, **kwargs))
        except Exception as error:
            return [t for t in type(error).__mro__ if t.__module__ == "builtins"]
    return str(result.dtype), result.tolist()


def pair_of(function: Any, *specs: Any) -> tuple[Any, Any]:
    """The function as each library loads it."""
    blob = bytes(jaxexp.export(jax.jit(function))(*specs).serialize(vjp_order=1))
    loaded = jaxexp.deserialize(blob), jax_export.deserialize(bytearray(blob))
    return called(loaded, jax.tree.map(lambda spec: np.zeros(spec.shape, spec.dtype), specs), {})


def called(functions: Any, args: Any, kwargs: Any) -> Any:
    """The functions, called a few times, so that all that is kept for later calls is there."""
    for exported in functions:
        for convert in (np.asarray, np.asarray, jnp.asarray, jnp.asarray):
            some, named = jax.tree.map(convert, (args, kwargs))
            exported.call(*some, **named)
    return functions


@pytest.fixture(scope="module")
def doubled() -> list[Any]:
    """A function of each library, and what JAX makes of it: there, JAX itself looks at the arguments first."""
    made = []
    for exported in pair_of(lambda x: x * 2, spec((2, 3))):
        made.append((exported.call, jax.jit(exported.call), jax.grad(lambda x, e=exported: e.call(x).sum())))
    return made


@each("name", ARRAYS)
def test_arrays(name: str, doubled: list[Any]) -> None:
    ours, theirs = doubled
    for our, their in zip((*ours, *ours), (*theirs, *theirs), strict=True):
        assert outcome(our, ARRAYS[name]) == outcome(their, ARRAYS[name])


@each("name", ["texts", "objects", "big-endian", "masked"])
def test_an_error_of_jax_says_which_argument_it_is_about(name: str) -> None:
    ours, theirs = pair_of(lambda x, y: x * y, spec((2, 3)), spec((2, 3)))
    with pytest.raises((TypeError, ValueError)) as caught:
        ours.call(X, ARRAYS[name])
    with pytest.raises(caught.type) as expected:
        theirs.call(X, ARRAYS[name])
    assert str(caught.value) == str(expected.value)
    assert "calling <lambda>: this is args[1], exported as float32[2,3]" in caught.value.__notes__
    with pytest.raises(caught.type) as caught:
        ours.bind(X).call(ARRAYS[name])
    assert "calling <lambda>: this is args[0], exported as float32[2,3]" in caught.value.__notes__


@each("dtype", ["float32", "int32", "bool"])
def test_scalars(dtype: str) -> None:
    ours, theirs = pair_of(lambda x: x * 2, spec((), np.dtype(dtype)))
    found = {name: [outcome(ours.call, scalar) for _ in range(3)] for name, scalar in SCALARS.items()}
    assert found == {name: [outcome(theirs.call, scalar)] * 3 for name, scalar in SCALARS.items()}


@each("dtype", ["f8", "u2"])
def test_big_endian_and_masked_arrays_of_every_width(dtype: str) -> None:
    with jax.enable_x64(True):
        x = np.arange(4).astype(dtype)
        ours, theirs = pair_of(lambda x: x * 2, x)
        for array in (x.astype(x.dtype.newbyteorder(">")), np.ma.array(x, mask=[0, 1, 0, 1])):
            assert outcome(ours.call, array) == outcome(theirs.call, array)
            with pytest.raises((TypeError, ValueError), match=r"not a valid JAX array type|masked arrays are not"):
                ours.call(array)
        assert outcome(ours.call, x) == outcome(theirs.call, x)


def test_trees_are_compared_first() -> None:
    """As in jax.export: an argument too many, such as a static one, is an error about the tree, whatever it is."""
    ours, theirs = pair_of(lambda x: x * 2, spec((2, 3)))
    for args in ((X, "static"), (X, X.astype(">f4")), ("static", X), (), ([X.astype(">f4")],)):
        expected = outcome(theirs.call, *args)
        assert ValueError in expected
        assert outcome(ours.call, *args) == expected


TREES = {
    "keyword": lambda x: ((), {"x": x}),
    "list in a dict": lambda x: (({"k": [X, x]},), {}),
    "namedtuple": lambda x: ((Pair(X, x),), {}),
    "registered namedtuple": lambda x: ((boxed(x),), {}),
    "partial": lambda x: ((jax.tree_util.Partial(len, x),), {}),
    "OrderedDict": lambda x: ((collections.OrderedDict(a=X, b=x),), {}),
    "None beside it": lambda x: ((None, X, x), {}),
}


@each("name", TREES)
def test_anywhere_in_the_arguments(name: str) -> None:
    def first(*args: Any, **kwargs: Any) -> Any:
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves((args, kwargs)))

    args, kwargs = TREES[name](X)
    exports = [library.export(jax.jit(first))(*args, **kwargs) for library in (jaxexp, jax_export)]
    exported, stock = called(exports, args, kwargs)
    for array in (X, X.astype(">f4"), np.ma.array(X), matrix()):
        args, kwargs = TREES[name](array)
        found = outcome(exported.call, *args, **kwargs)
        assert found == outcome(stock.call, *args, **kwargs)
        if array.dtype.byteorder == ">" or isinstance(array, np.ma.MaskedArray):
            assert TypeError in found or ValueError in found
