"""Node types that are registered, here or with jax.export, known to both: dataclasses, modules of Equinox and Flax."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import typing
import unittest.mock
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.core
import flax.linen
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax._src.export import serialization

import jaxexp
from kit.alike import LIBRARIES
from kit.compare import assert_same_values
from kit.corpus import arr
from kit.each import each
from kit.trees import check, of, squares

pytestmark = pytest.mark.jax

PAIRS = list(itertools.product(LIBRARIES, LIBRARIES))
_numbers = itertools.count()


def _tuples(value: Any) -> Any:
    """JSON has lists where JAX's auxiliary data has tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def register_plain(library: Any, nodetype: type) -> None:
    library.register_pytree_node_serialization(
        nodetype,
        serialized_name=f"test_pytrees.{nodetype.__name__}{next(_numbers)}",
        serialize_auxdata=lambda aux: json.dumps(aux).encode(),
        deserialize_auxdata=lambda data: _tuples(json.loads(data)),
    )


def register_like(library: Any, template: Any) -> None:
    """For static fields of any kind, which are those of the reader's `template`."""
    known = jax.tree.structure(template).node_data()[1]
    library.register_pytree_node_serialization(
        type(template),
        serialized_name=f"test_pytrees.{type(template).__name__}{next(_numbers)}",
        serialize_auxdata=lambda _: b"",
        deserialize_auxdata=lambda _: known,
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


def module_of_equinox(library: Any) -> Any:
    class Scale(eqx.Module):
        factor: jax.Array
        inner: Any
        activation: Callable[[Any], Any] = eqx.field(static=True)

    module = Scale(jnp.asarray(arr(2)), [arr(3), None], jnp.tanh)
    register_like(library, module)
    return module


def dataclass_of_flax(library: Any) -> Any:
    @flax.struct.dataclass
    class Layer:
        weight: Any
        units: int = flax.struct.field(pytree_node=False)

    register_plain(library, Layer)
    return Layer(arr(2, 3), 3)


def namedtuple(library: Any) -> Any:
    pair = collections.namedtuple(f"Pair{next(_numbers)}", "left right")
    library.register_namedtuple_serialization(pair, serialized_name=f"test_pytrees.{pair.__name__}")
    return pair(arr(2), pair(arr(3), None))


MADE = [dataclass_of_jax, module_of_equinox, dataclass_of_flax, namedtuple]


@each("make", MADE)
def test_registered_classes(make: Callable[[Any], Any]) -> None:
    check(make(jaxexp), jax_export, jaxexp)
    value = make(jax_export)
    check(value, jaxexp, jax_export, vjp_order=1)
    # Inside dicts whose keys are not strings, and with such dicts inside.
    filled = jax.tree.unflatten(jax.tree.structure(value), [of(2, 1)] * jax.tree.structure(value).num_leaves)
    check({1: value, 0: [filled]}, jaxexp, jaxexp)


@each("make", MADE)
def test_unregistered_classes_are_stored_by_name(make: Callable[[Any], Any]) -> None:
    value = make(unittest.mock.Mock())  # in place of a library that registers
    exported = jaxexp.export(jax.jit(squares))(value)
    with pytest.raises(jaxexp.errors.SerializationError, match=type(value).__name__):
        exported.serialize(strict=True)
    result = jaxexp.deserialize(exported.serialize()).call(value)
    assert_same_values(jax.tree.leaves(result), jax.tree.leaves(squares(value)))
    assert jax.tree.structure(result) == jax.tree.structure(value) or make is namedtuple  # a local class of no module


class Fresh(typing.NamedTuple):
    type: typing.Any
    name: str
    options: dict[str, typing.Any]


def fresh_node(registered: bool = True) -> Fresh:
    """A new pytree node class with auxiliary data. Registrations last for the process, hence a new one each time."""

    class Node:
        def __init__(self, child, label):
            self.child, self.label = child, label

    if registered:
        jax.tree_util.register_pytree_node(
            Node, lambda n: ((n.child,), n.label), lambda label, children: Node(*children, label)
        )
    options = {"serialize_auxdata": str.encode, "deserialize_auxdata": lambda b: bytes(b).decode()}
    return Fresh(Node, f"test_registry.Node{next(_numbers)}", options)


def fresh_namedtuple(fields: str = "x y") -> Fresh:
    number = next(_numbers)
    return Fresh(collections.namedtuple(f"Pair{number}", fields), f"test_registry.Pair{number}", {})


def register(library: str, node: Fresh, **options: typing.Any) -> typing.Any:
    if node.options:
        of = LIBRARIES[library].register_pytree_node_serialization
        return of(node.type, serialized_name=node.name, **{**node.options, **options})
    return LIBRARIES[library].register_namedtuple_serialization(node.type, serialized_name=node.name)


def make(node: Fresh):
    return node.type(arr(2), "label") if node.options else node.type(arr(2), arr(2, seed=1))


def round_trip(value: typing.Any, *pairs: tuple[str, str]) -> typing.Any:
    """Exports the identity on `value`, writes with one library and reads with the other. All pairs if none is given."""
    for writer, reader in pairs or PAIRS:
        exported = LIBRARIES[writer].export(jax.jit(lambda x: x))(value)
        loaded = LIBRARIES[reader].deserialize(exported.serialize())
        assert loaded.in_tree == jax.tree.structure(((value,), {}))
        result = loaded.call(value)
        assert jax.tree.structure(result) == jax.tree.structure(value)
        assert type(result) is type(value)
    return loaded


OURS = ("jaxexp", "jaxexp")
each_library = each("library", LIBRARIES)
each_kind = each("fresh", [fresh_node, fresh_namedtuple])


def refused(library: str, action: Callable[[], object], match: str = ".") -> ValueError:
    """By jaxexp with its own class of errors."""
    with pytest.raises(jaxexp.errors.ExportError if library == "jaxexp" else ValueError, match=match) as error:
        action()
    assert isinstance(error.value, ValueError)
    return error.value


@each_kind
@each("order", [("jaxexp",), ("jax",), ("jaxexp", "jax"), ("jax", "jaxexp")])
def test_registration_is_shared(order: tuple[str, ...], fresh: Callable[[], Fresh]) -> None:
    node = fresh()
    for library in order:
        assert register(library, node) is node.type
    round_trip(make(node), *PAIRS[: 4 if len(order) == 1 else 1])


@each_kind
@each("order", [("jaxexp",), ("jaxexp", "jax"), ("jax", "jaxexp")])
def test_duplicates_within_a_library(order: tuple[str, ...], fresh: Callable[[], Fresh]) -> None:
    node = fresh()
    for library in order:
        register(library, node)
    for library in order:
        refused(library, lambda library=library: register(library, node))
        refused(library, lambda library=library: register(library, node._replace(name=node.name + ".other")))


@each_library
@each("second", LIBRARIES)
def test_a_name_belongs_to_one_type(library: str, second: str) -> None:
    first, other = fresh_node(), fresh_node()
    register(library, first)
    error = refused(second, lambda: register(second, other._replace(name=first.name)), first.name)
    assert second == "jax" or str(first.type) in str(error)
    # The refused type is not half registered.
    register(second, other)
    round_trip(make(other), ("jaxexp", "jax"))
    round_trip(make(first), ("jaxexp", "jax"))


@each_library
def test_from_children(library: str) -> None:
    plain, node, calls = fresh_node(), fresh_node(), []

    def from_children(label, children):
        calls.append((label, len(children)))
        return node.type(*children, label)

    register(library, plain, from_children=None)
    round_trip(make(plain), OURS)
    register(library, node, from_children=from_children)
    round_trip(make(node), OURS)
    assert set(calls) == {("label", 1)}


@each_library
def test_unregistered_node_needs_from_children(library: str) -> None:
    refused(library, lambda: register(library, fresh_node(registered=False)))


@each_library
def test_only_namedtuples_register_as_namedtuples(library: str) -> None:
    for other in (tuple, dict, fresh_node().type):
        refused(library, lambda other=other: register(library, Fresh(other, "test_registry.wrong", {})))


def test_ordered_dict_needs_no_registration() -> None:
    value = collections.OrderedDict([("b", arr(2)), ("a", arr(3))])
    loaded = round_trip(value)
    assert list(loaded.call(value)) == ["b", "a"]
    with pytest.raises(ValueError):
        loaded.call(collections.OrderedDict([("a", arr(3)), ("b", arr(2))]))


@each_library
def test_auxdata_must_be_bytes(library: str) -> None:
    node = fresh_node()
    register(library, node, serialize_auxdata=lambda aux: aux)
    exports = {name: one.export(jax.jit(lambda x: x))(make(node)) for name, one in LIBRARIES.items()}
    ours, theirs = (refused(name, exported.serialize) for name, exported in exports.items())
    assert isinstance(ours, type(theirs))


@each_library
@each("data", [bytes(range(256)), b"", bytearray(b"xyz")])
def test_auxdata_arrives_unchanged(library: str, data) -> None:
    node, seen = fresh_node(), []
    options = {"serialize_auxdata": lambda aux: data, "deserialize_auxdata": lambda b: seen.append(b) or "label"}
    register(library, node, **options)
    round_trip(make(node), OURS)
    assert seen
    assert all(type(b) is bytes and b == bytes(data) for b in seen)


def test_user_functions_that_raise() -> None:
    """A serialize_auxdata that raises is the user's own error; on reading, the artifact is refused."""
    refuse = unittest.mock.Mock(side_effect=LookupError("no"))
    writing, reading = fresh_node(), fresh_node()
    register("jaxexp", writing, serialize_auxdata=refuse)
    with pytest.raises(LookupError, match="no"):
        jaxexp.export(jax.jit(lambda x: x))(make(writing)).serialize()
    register("jaxexp", reading, deserialize_auxdata=refuse)
    blob = jaxexp.export(jax.jit(lambda x: x))(make(reading)).serialize()
    assert isinstance(refused("jaxexp", lambda: jaxexp.deserialize(blob)).__cause__, LookupError)


def test_namedtuple_with_other_fields_is_refused() -> None:
    written, swapped, wrong = (collections.namedtuple("T", names) for names in ("x y", "y x", "x z"))
    for name, cls in (("T0", written), ("T1", swapped), ("T2", wrong)):
        jaxexp.register_namedtuple_serialization(cls, serialized_name=name)
    exported = jaxexp.export(jax.jit(lambda t: t.x - 2 * t.y))(written(np.float32(0), np.float32(0)))
    blobs = [bytes(exported.serialize(trailer=False)).replace(b"T0\0", name) for name in (b"T1\0", b"T2\0")]
    loaded = jaxexp.deserialize(blobs[0])
    assert jax.tree.structure(loaded.in_tree.unflatten([1, 2])) == jax.tree.structure(((swapped(1, 2),), {}))
    refused("jaxexp", lambda: jaxexp.deserialize(blobs[1]), "'z'")


def test_registered_dtype_kinds_are_known() -> None:
    """jax.export lets a process add dtypes to the format; jaxexp reads and writes them as well."""
    int2, kind = np.dtype("int2"), 101
    exports = [library.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((2,), int2)) for library in LIBRARIES.values()]
    refused("jaxexp", exports[0].serialize, "int2")
    serialization.register_dtype_kind(int2, kind)
    try:
        blobs = [exported.serialize() for exported in exports]
        for blob, library in itertools.product(blobs, LIBRARIES.values()):
            assert library.deserialize(blob).in_avals[0].dtype == int2
    finally:
        del serialization._dtype_to_dtype_kind[int2], serialization._dtype_kind_to_dtype[kind]
    refused("jaxexp", lambda: jaxexp.deserialize(blobs[0]))
