"""Symbolic shapes: constraints, expressions, calls with other symbolic shapes; always beside jax.export."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax import lax

import jaxexp
from kit.compare import assert_same_values
from kit.corpus import arr, spec
from kit.each import each

pytestmark = pytest.mark.jax

LIBRARIES = {"jaxexp": jaxexp, "jax": jax_export}


@dataclasses.dataclass(frozen=True)
class Polymorphic:
    """A function of symbolic shapes, argument shapes that fit, and argument shapes that do not."""

    fun: Callable[..., Any]
    shapes: Sequence[str]
    good: Sequence[Sequence[tuple[int, ...]]]
    bad: Sequence[Sequence[tuple[int, ...]]] = ()
    constraints: Sequence[str] = ()

    def export(self, library: Any) -> Any:
        return library.export(jax.jit(self.fun))(*specs_of(library, self.shapes, self.constraints))


def specs_of(library: Any, shapes: Sequence[str], constraints: Sequence[str] = ()) -> list[jax.ShapeDtypeStruct]:
    scope = library.SymbolicScope(constraints)
    return [spec(library.symbolic_shape(shape, scope=scope)) for shape in shapes]


def tile(x):
    return jnp.tile(x, 2), jnp.ones((x.shape[0] * x.shape[0],)), jnp.int32(x.shape[0])


def halves(x):
    n = x.shape[0]
    return x[: n // 2], x[n // 2 :], jnp.arange(n) % 3


def minmax(x, y):
    m, n = x.shape[0], y.shape[0]
    return jnp.zeros((jax.core.max_dim(m, n),)), x[: jax.core.min_dim(m, n)].sum() + y.sum()


def outer(x, y):
    return jnp.outer(x, y).reshape((-1,)), jnp.concatenate([x, y])


FUNCTIONS = {
    "square": Polymorphic(tile, ["a"], [[(3,)], [(1,)]]),
    "quotient and remainder": Polymorphic(halves, ["a"], [[(5,)], [(2,)]]),
    "maximum and minimum": Polymorphic(minmax, ["a", "b"], [[(3,), (5,)], [(5,), (3,)]], constraints=["a >= 2"])
    if hasattr(jax.core, "max_dim")
    else Polymorphic(outer, ["a", "b"], [[(3,), (5,)]]),
    "product": Polymorphic(outer, ["a", "b"], [[(3,), (5,)]]),
    "linear": Polymorphic(lambda x, y: x.sum() + y, ["2*a", "a + 1"], [[(4,), (3,)]], [[(3,), (3,)], [(4,), (4,)]]),
    "two variables in a dimension": Polymorphic(
        lambda x, y, z: (x.sum() + z, y), ["a", "a*b", "b + a"], [[(2,), (6,), (5,)]], [[(2,), (6,), (4,)]]
    ),
    "power": Polymorphic(lambda x, y: x.sum() * y, ["a", "a^2"], [[(3,), (9,)]], [[(3,), (8,)]]),
    "floordiv": Polymorphic(lambda x, y: x.sum() * y, ["a", "floordiv(a, 2)"], [[(5,), (2,)]], [[(5,), (3,)]]),
    "mod": Polymorphic(lambda x, y: x.sum() * y, ["a", "mod(a, 3) + 1"], [[(5,), (3,)]], [[(5,), (1,)]]),
    "same variable twice": Polymorphic(lambda x, y: x + y, ["a, 3", "a, 3"], [[(2, 3), (2, 3)]], [[(2, 3), (1, 3)]]),
    "ellipsis of constants": Polymorphic(lambda x: x * 2, ["a, 3"], [[(2, 3)]], [[(2, 4)], [(2,)], [(2, 3, 1)]]),
    "lower bound": Polymorphic(lambda x: x[3], ["a"], [[(4,)]], [[(3,)], [(1,)]], ["a >= 4"]),
    "upper bound": Polymorphic(jnp.sin, ["a"], [[(4,)]], [[(5,)]], ["a <= 4"]),
    "multiple": Polymorphic(jnp.cos, ["a"], [[(4,)]], [[(6,)], [(1,)]], ["mod(a, 4) == 0"]),
    "ordered": Polymorphic(lambda x, y: x[: y.shape[0]] + y, ["a", "b"], [[(4,), (2,)]], [[(2,), (4,)]], ["a >= b"]),
    "equal products": Polymorphic(
        lambda x, y: x.reshape((-1,)) + y, ["a, b", "c"], [[(2, 3), (6,)]], [[(2, 3), (5,)]], ["a*b == c"]
    ),
    "zero allowed": Polymorphic(lambda x: x.sum(), ["a - 1"], [[(0,)], [(3,)]]),
}


def arguments(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    return [arr(*shape) for shape in shapes]


@pytest.mark.wide(one_in=3, promise="functions of symbolic sizes compute what the live ones do")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str) -> None:
    function = FUNCTIONS[name]
    ours, theirs = function.export(jaxexp), function.export(jax_export)
    assert [str(a) for a in (*ours.in_avals, *ours.out_avals)] == [
        str(a) for a in (*theirs.in_avals, *theirs.out_avals)
    ]
    # Our own reader is compared on all ways, stock's once: it compiles again for each.
    read = jaxexp.deserialize(ours.serialize()).call
    calls = [ours.call, read, jax.jit(read), jaxexp.deserialize(theirs.serialize()).call]
    calls.append(jax_export.deserialize(ours.serialize()).call)
    for shapes in function.good:
        expected = function.fun(*map(jnp.asarray, arguments(shapes)))
        for call in calls:
            assert_same_values(call(*arguments(shapes)), expected)


@each("name", [name for name, function in FUNCTIONS.items() if function.bad])
def test_shapes_that_do_not_fit(name: str) -> None:
    """A fresh export knows its constraints; what the bytes do not say of them, the module asserts.

    So every call is checked, however it is made, as in jax.export: an error, and never a result.
    """
    function = FUNCTIONS[name]
    theirs, ours = function.export(jax_export), function.export(jaxexp)
    read, of_theirs = (jaxexp.deserialize(exported.serialize()) for exported in (ours, theirs))
    for number, shapes in enumerate(function.bad):
        args = arguments(shapes)
        for call in (ours.call, read.call) if number else (ours.call, read.call, jax.jit(ours.call), of_theirs.call):
            with pytest.raises(jaxexp.ExportError, match="calling"):
                call(*args)
        with pytest.raises(ValueError):
            theirs.call(*args)
    with pytest.raises(jaxexp.ExportError, match="calling"):
        jax.vmap(ours.call)(*(x[None] for x in args))
    for call in (jax.jit(read.call), *([jax_export.deserialize(ours.serialize()).call] if "bound" in name else [])):
        with pytest.raises(ValueError):  # JAX's own, where JAX compiles
            call(*args)


def test_wide_dimension_variables() -> None:
    with jax.enable_x64(True):
        exported = FUNCTIONS["two variables in a dimension"].export(jaxexp)
        for library in LIBRARIES.values():
            found = library.deserialize(exported.serialize()).call(*arguments([(2,), (6,), (5,)]))
            np.testing.assert_allclose(found[0], arr(2).sum() + arr(5), rtol=1e-6)


def inner(library: Any) -> Any:
    """float32[a, b], float32[b] -> float32[a], float32[a*b]."""
    specs = specs_of(library, ["a, b", "b"])
    fun = jax.jit(lambda x, y: (x @ y, (x * y).reshape((-1,))))
    return jaxexp.deserialize(library.export(fun)(*specs).serialize(vjp_order=1))


OUTER = {
    "other names": (["n, m", "m"], ["n", "m*n"]),
    "swapped names": (["b, a", "a"], ["b", "a*b"]),
    "expressions": (["2*n, n + 1", "n + 1"], ["2*n", "2*n^2 + 2*n"]),
    "one variable for two": (["n, n", "n"], ["n", "n^2"]),
    "constant": (["2, 3", "3"], ["2", "6"]),
}


@each("shapes", OUTER)
def test_called_with_symbolic_shapes(shapes: str) -> None:
    args, results = OUTER[shapes]
    specs = specs_of(jaxexp, args)
    sizes = {"n": 2, "m": 3, "a": 4, "b": 5}
    x, y = (arr(*(int(eval(d.replace("^", "**"), {}, sizes)) for d in a.split(","))) for a in args)
    for library in LIBRARIES.values() if shapes == "expressions" else [jaxexp]:
        callee = inner(library)
        exported = jaxexp.export(jax.jit(lambda x, y, f=callee: f.call(x, y)))(*specs)
        assert [str(aval.shape[0]) for aval in exported.out_avals] == results
        for reader in LIBRARIES.values() if shapes == "expressions" else [jaxexp]:
            again = reader.deserialize(exported.serialize(vjp_order=1))
            assert_same_values(again.call(x, y), (jnp.asarray(x @ y), jnp.asarray((x * y).reshape(-1))))
            gradient = jax.jit(jax.grad(lambda x, call=again.call: call(x, y)[0].sum()))(x)
            np.testing.assert_allclose(gradient, np.broadcast_to(y, x.shape), rtol=1e-6)
    for wrong in (["n, m", "n"], ["2*n, n", "n + 1"], ["n, m", "k"]):
        with pytest.raises(jaxexp.ExportError, match="calling"):
            jaxexp.export(jax.jit(callee.call))(*specs_of(jaxexp, wrong))


def test_callers_constraints_satisfy_the_callee() -> None:
    (a,) = jaxexp.symbolic_shape("a", constraints=["a >= 4", "mod(a, 2) == 0"])
    callee = jaxexp.export(jax.jit(lambda x: x[:4].reshape((2, 2))))(spec((a,)))
    (n,) = jaxexp.symbolic_shape("n", constraints=["n >= 2"])
    exported = jaxexp.export(jax.jit(callee.call))(spec((2 * n,)))
    np.testing.assert_allclose(exported.call(arr(6)), arr(6)[:4].reshape(2, 2))
    (m,) = jaxexp.symbolic_shape("m")
    with pytest.raises(jaxexp.ExportError, match="calling"):
        jaxexp.export(jax.jit(callee.call))(spec((2 * m,)))


def test_many_equalities() -> None:
    """They substitute nothing in each other, so a reader has not to expect that what they substitute grows."""
    constraints = [f"mod(1 + 2*d{i} - e, 4) == 1" for i in range(12)]
    scope = jaxexp.SymbolicScope(constraints)
    shape = jaxexp.symbolic_shape("e, " + ", ".join(f"d{i}, c{i}, {i + 1}*d{i}" for i in range(12)), scope=scope)
    exported = jaxexp.export(jax.jit(lambda x: x + 1))(spec(shape))
    loaded = jaxexp.deserialize(exported.serialize())
    assert str(loaded.in_avals) == str(exported.in_avals)
    assert bytes(loaded.serialize()) == bytes(exported.serialize())


def test_a_dimension_serves_as_a_value() -> None:
    (b,) = jaxexp.symbolic_shape("b")
    fun = jax.jit(lambda x: (x / x.shape[0], jnp.array(x.shape[0] * 2), lax.fori_loop(0, x.shape[0], jnp.add, 0)))
    exported = jaxexp.export(fun)(spec((b,)))
    for library in LIBRARIES.values():
        assert_same_values(library.deserialize(exported.serialize()).call(arr(5)), fun(arr(5)))
