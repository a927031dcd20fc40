"""Trees as people build them: dataclasses, and modules of Equinox and Flax."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.core
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export as jax_export

import jaxexp
from kit.compare import assert_same_values
from kit.corpus import arr
from kit.derivatives import pull_back
from kit.trees import LIBRARIES, check, of

pytestmark = pytest.mark.sampled(one_in=3, reason="many cases go the same way")

each_pair = pytest.mark.parametrize(("writer", "reader"), list(itertools.product(LIBRARIES, LIBRARIES)))
each_library = pytest.mark.parametrize("registrar", LIBRARIES)


# --- registered classes ---------------------------------------------------------------------------------------------

_numbers = itertools.count()


def _encode_plain(aux: Any) -> bytes:
    return json.dumps(aux).encode()


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _decode_plain(data: bytes) -> Any:
    """JSON has lists where JAX's auxiliary data has tuples."""
    return _tuples(json.loads(data))


def register_plain(library: Any, nodetype: type) -> None:
    """For auxiliary data that JSON can hold."""
    library.register_pytree_node_serialization(
        nodetype,
        serialized_name=f"test_pytrees.{nodetype.__name__}{next(_numbers)}",
        serialize_auxdata=_encode_plain,
        deserialize_auxdata=_decode_plain,
    )


def register_like(library: Any, template: Any) -> None:
    """For static fields of any kind: the plain ones are stored, all others are those of the reader's `template`."""
    known = jax.tree.structure(template).node_data()[1]
    plain = [isinstance(part, (bool, int, float, str, type(None))) for part in known]

    def encode(aux: tuple[Any, ...]) -> bytes:
        for part, own, is_plain in zip(aux, known, plain, strict=True):
            if not is_plain and part != own:
                raise ValueError(f"{part} is not what every {type(template).__name__} has, {own}")
        return json.dumps([part for part, is_plain in zip(aux, plain, strict=True) if is_plain]).encode()

    def decode(data: bytes) -> tuple[Any, ...]:
        stored = iter(json.loads(data))
        return tuple(next(stored) if is_plain else own for own, is_plain in zip(known, plain, strict=True))

    library.register_pytree_node_serialization(
        type(template),
        serialized_name=f"test_pytrees.{type(template).__name__}{next(_numbers)}",
        serialize_auxdata=encode,
        deserialize_auxdata=decode,
    )


def dataclass_of_jax(library: Any) -> Any:
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Layer:
        weight: Any
        bias: Any
        units: int = dataclasses.field(metadata={"static": True})
        name: str = dataclasses.field(default="layer", metadata={"static": True})

    register_plain(library, Layer)
    return Layer(arr(2, 3), arr(3, seed=1), 3)


def dataclass_with_named_fields(library: Any) -> Any:
    @dataclasses.dataclass(frozen=True)
    class State:
        step: Any
        moments: Any
        decay: float

    jax.tree_util.register_dataclass(State, data_fields=["moments", "step"], meta_fields=["decay"])
    register_plain(library, State)
    return State(arr(1), {"a": arr(2), "b": [arr(3)]}, 0.9)


def module_of_equinox(library: Any) -> Any:
    class Scale(eqx.Module):
        factor: jax.Array
        inner: Any
        power: int = eqx.field(static=True)
        activation: Callable[[Any], Any] = eqx.field(static=True)

        def __call__(self, x: Any) -> Any:
            return self.activation(self.factor * x**self.power)

    module = Scale(jnp.asarray(arr(2)), [arr(3), None], 2, jnp.tanh)
    register_like(library, module)
    return module


def dataclass_of_flax(library: Any) -> Any:
    @flax.struct.dataclass
    class Layer:
        weight: Any
        units: int = flax.struct.field(pytree_node=False)

    register_plain(library, Layer)
    return Layer(arr(2, 3), 3)


def node_of_flax(library: Any) -> Any:
    class TrainState(flax.struct.PyTreeNode):
        step: Any
        params: Any
        name: str = flax.struct.field(pytree_node=False, default="adam")

    register_plain(library, TrainState)
    return TrainState(arr(1), {"kernel": arr(2, 2), "bias": arr(2)})


def namedtuple(library: Any) -> Any:
    pair = collections.namedtuple(f"Pair{next(_numbers)}", "left right")
    library.register_namedtuple_serialization(pair, serialized_name=f"test_pytrees.{pair.__name__}")
    return pair(arr(2), pair(arr(3), None))


MADE = {
    "jax dataclass": dataclass_of_jax, "jax dataclass, named fields": dataclass_with_named_fields,
    "equinox module": module_of_equinox, "flax dataclass": dataclass_of_flax, "flax node": node_of_flax,
    "namedtuple": namedtuple,
}  # fmt: skip


@each_pair
@each_library
@pytest.mark.parametrize("kind", MADE)
def test_registered_classes(kind: str, registrar: str, writer: str, reader: str) -> None:
    value = MADE[kind](LIBRARIES[registrar])
    check(value, LIBRARIES[writer], LIBRARIES[reader])


@pytest.mark.parametrize("kind", MADE)
def test_registered_classes_and_keys_in_one_tree(kind: str) -> None:
    """Custom nodes inside dicts whose keys are not strings, and such dicts inside custom nodes."""
    value = MADE[kind](jaxexp)
    filled = jax.tree.unflatten(jax.tree.structure(value), [of(2, 1)] * jax.tree.structure(value).num_leaves)
    for library in LIBRARIES.values():
        check({1: value, 0: [filled]}, jaxexp, library)


class Nothing:
    """Takes the place of the library that registers."""

    def register_pytree_node_serialization(self, *args: Any, **kwargs: Any) -> None:
        pass

    register_namedtuple_serialization = register_pytree_node_serialization


@pytest.mark.parametrize("kind", MADE)
def test_unregistered_classes_are_named(kind: str) -> None:
    value = MADE[kind](Nothing())
    with pytest.raises(jaxexp.SerializationError, match=type(value).__name__):
        jaxexp.export(jax.jit(lambda t: 0))(value).serialize(strict=True)


@pytest.mark.parametrize("kind", MADE)
def test_unregistered_classes_are_stored_by_name(kind: str) -> None:
    value = MADE[kind](Nothing())
    loaded = jaxexp.deserialize(jaxexp.export(jax.jit(lambda t: jax.tree.map(lambda x: 2 * x, t)))(value).serialize())
    result = loaded.call(value)
    assert_same_values(jax.tree.leaves(result), [2 * leaf for leaf in jax.tree.leaves(value)])
    assert jax.tree.structure(result) == jax.tree.structure(value) or kind == "namedtuple"  # a local class of no module


@each_pair
def test_meta_fields_are_part_of_the_tree(writer: str, reader: str) -> None:
    value = dataclass_of_jax(jaxexp)
    loaded = check(value, LIBRARIES[writer], LIBRARIES[reader])
    result = loaded.call(value)
    assert (result.units, result.name) == (3, "layer")
    with pytest.raises(ValueError):
        loaded.call(dataclasses.replace(value, units=4))


def test_static_function_of_a_module() -> None:
    """A function cannot be stored; the reader's class brings it, and the module can be applied again."""
    value = module_of_equinox(jaxexp)
    blob = jaxexp.export(jax.jit(lambda m, x: (m, m(x))))(value, arr(2)).serialize()
    module, y = jaxexp.deserialize(blob).call(value, arr(2))
    assert module.activation is jnp.tanh
    np.testing.assert_allclose(module(arr(2)), y, rtol=1e-6)
    other = eqx.tree_at(lambda m: m.factor, value, arr(2, seed=9))
    jaxexp.deserialize(blob).call(other, arr(2))
    with pytest.raises(ValueError, match="tanh"):
        changed = type(value)(value.factor, value.inner, 2, jnp.sin)
        jaxexp.export(jax.jit(lambda m: 0))(changed).serialize()


# Classes of the libraries themselves, which can be registered once in a process.
register_like(jaxexp, eqx.nn.Linear(2, 3, key=jax.random.key(0)))
register_like(jax_export, eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0)))
register_plain(jaxexp, flax.core.FrozenDict)
register_plain(jax_export, nnx.State)
register_plain(jaxexp, nnx.Param)


@each_pair
def test_equinox_model_in_two_parts(writer: str, reader: str) -> None:
    """`eqx.partition`: arrays are arguments, everything else, functions included, is closed over."""
    model = eqx.nn.MLP(2, 3, 4, 1, activation=jax.nn.tanh, key=jax.random.key(0))
    arrays, static = eqx.partition(model, eqx.is_array)

    def apply(arrays: Any, x: Any) -> Any:
        return jax.vmap(eqx.combine(arrays, static))(x)

    exported = LIBRARIES[writer].export(jax.jit(apply))(arrays, arr(5, 2))
    loaded = LIBRARIES[reader].deserialize(exported.serialize(vjp_order=1))
    assert loaded.in_tree == jax.tree.structure(((arrays, arr(5, 2)), {}))
    args = arrays, arr(5, 2)
    assert_same_values(loaded.call(*args), apply(*args))
    assert_same_values(pull_back(loaded.call, args, {}), pull_back(apply, args, {}))
    found = jax.grad(lambda a: loaded.call(a, arr(5, 2)).sum())(arrays)
    assert isinstance(found, eqx.nn.MLP)
    assert_same_values(found, jax.grad(lambda a: apply(a, arr(5, 2)).sum())(arrays))


@each_pair
def test_frozen_dict(writer: str, reader: str) -> None:
    value = flax.core.freeze({"params": {"dense": {"kernel": arr(2, 3), "bias": arr(3)}}, "batch_stats": {}})
    assert isinstance(check(value, LIBRARIES[writer], LIBRARIES[reader]).call(value), flax.core.FrozenDict)


@each_pair
def test_flax_module_with_frozen_parameters(writer: str, reader: str) -> None:
    import flax.linen

    model = flax.linen.Dense(3)
    variables = flax.core.freeze(model.init(jax.random.key(0), arr(1, 2)))
    exported = LIBRARIES[writer].export(jax.jit(model.apply))(variables, arr(4, 2))
    loaded = LIBRARIES[reader].deserialize(exported.serialize(vjp_order=1))
    args = variables, arr(4, 2)
    assert_same_values(loaded.call(*args), model.apply(*args))
    assert_same_values(pull_back(loaded.call, args, {}), pull_back(model.apply, args, {}))


@each_pair
def test_nnx_state(writer: str, reader: str) -> None:
    """`nnx.split`: the state is an argument, the graph is closed over. Both classes are pytree nodes already."""
    graph, state = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))

    def apply(state: Any, x: Any) -> Any:
        return nnx.merge(graph, state)(x)

    exported = LIBRARIES[writer].export(jax.jit(apply))(state, arr(4, 2))
    loaded = LIBRARIES[reader].deserialize(exported.serialize(vjp_order=1))
    assert loaded.in_tree == jax.tree.structure(((state, arr(4, 2)), {}))
    args = state, arr(4, 2)
    assert_same_values(loaded.call(*args), apply(*args))
    assert_same_values(
        jax.tree.leaves(jax.grad(lambda s: loaded.call(s, args[1]).sum())(state)),
        jax.tree.leaves(jax.grad(lambda s: apply(s, args[1]).sum())(state)),
    )


def test_nnx_state_as_pure_dict() -> None:
    """The layers of an nnx.List or Sequential have int keys in a pure dict: those need no registration."""
    model = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jnp.tanh, nnx.Linear(3, 1, rngs=nnx.Rngs(1)))
    graph, state = nnx.split(model)
    params = nnx.to_pure_dict(state)
    integers = [key for key in jax.tree.leaves(params["layers"], is_leaf=lambda n: n is not params["layers"]) if key]
    assert set(params["layers"]) == {0, 2}, integers

    def apply(params: Any, x: Any) -> Any:
        filled = jax.tree.map(lambda s: s, state)
        nnx.replace_by_pure_dict(filled, params)
        return nnx.merge(graph, filled)(x)

    for reader in LIBRARIES.values():
        loaded = reader.deserialize(jaxexp.export(jax.jit(apply))(params, arr(4, 2)).serialize(vjp_order=1))
        args = params, arr(4, 2)
        assert_same_values(loaded.call(*args), apply(*args))
        assert_same_values(pull_back(loaded.call, args, {}), pull_back(apply, args, {}))
