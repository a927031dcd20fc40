"""Pytree node types: registered here or with jax.export, known to both."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import typing

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit.corpus import arr

_numbers = itertools.count()


class Fresh(typing.NamedTuple):
    """A node type of this test's own, its serialized name, and the keywords to register it with."""

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


def register(library, node: Fresh):
    if node.options:
        return library.register_pytree_node_serialization(node.type, serialized_name=node.name, **node.options)
    return library.register_namedtuple_serialization(node.type, serialized_name=node.name)


def make(node: Fresh):
    return node.type(arr(2), "label") if node.options else node.type(arr(2), arr(2, seed=1))


def round_trip(writer, reader, value) -> None:
    """Exports the identity on `value`, writes with one library and reads with the other."""
    exported = writer.export(jax.jit(lambda x: x))(value)
    loaded = reader.deserialize(exported.serialize())
    assert loaded.in_tree == jax.tree.structure(((value,), {}))
    result = loaded.call(value)
    assert jax.tree.structure(result) == jax.tree.structure(value)
    assert type(result) is type(value)


LIBRARIES = {"jaxexp": jaxexp, "jax": jax_export}
each_library = pytest.mark.parametrize("registrar", LIBRARIES)
each_pair = pytest.mark.parametrize(("writer", "reader"), list(itertools.product(LIBRARIES, LIBRARIES)))
each_kind = pytest.mark.parametrize("fresh", [fresh_node, fresh_namedtuple])


@each_kind
@each_pair
@each_library
def test_registration_is_shared(registrar: str, writer: str, reader: str, fresh) -> None:
    node = fresh()
    assert register(LIBRARIES[registrar], node) is node.type
    round_trip(LIBRARIES[writer], LIBRARIES[reader], make(node))


@each_kind
@pytest.mark.parametrize("order", [("jaxexp", "jax"), ("jax", "jaxexp")])
def test_registering_with_both_is_no_error(order, fresh) -> None:
    node = fresh()
    for library in order:
        assert register(LIBRARIES[library], node) is node.type
    for writer, reader in itertools.product(LIBRARIES.values(), repeat=2):
        round_trip(writer, reader, make(node))


@each_kind
@pytest.mark.parametrize("libraries", [("jaxexp",), ("jaxexp", "jax"), ("jax", "jaxexp")])
def test_duplicates_within_a_library(libraries, fresh) -> None:
    """The second registration with one library is an error, whatever the other one knows."""
    node = fresh()
    for library in libraries:
        register(LIBRARIES[library], node)
    for library in libraries:
        expected = jaxexp.ExportError if library == "jaxexp" else ValueError
        with pytest.raises(expected):
            register(LIBRARIES[library], node)
        with pytest.raises(expected):
            register(LIBRARIES[library], node._replace(name=node.name + ".other"))


@each_library
@pytest.mark.parametrize("second", LIBRARIES)
def test_a_name_belongs_to_one_type(registrar: str, second: str) -> None:
    first, other = fresh_node(), fresh_node()
    register(LIBRARIES[registrar], first)
    with pytest.raises(jaxexp.ExportError if second == "jaxexp" else ValueError):
        register(LIBRARIES[second], other._replace(name=first.name))
    # The refused type is not half registered.
    register(LIBRARIES[second], other)
    round_trip(jaxexp, jax_export, make(other))
    round_trip(jaxexp, jax_export, make(first))


def test_errors_name_both_sides() -> None:
    node, other = fresh_node(), fresh_node()
    register(jaxexp, node)
    with pytest.raises(ValueError, match=node.name):
        register(jaxexp, node._replace(name="another.name"))
    with pytest.raises(ValueError, match=node.name) as error:
        register(jaxexp, other._replace(name=node.name))
    assert str(node.type) in str(error.value)


@pytest.mark.parametrize("library", LIBRARIES)
def test_from_children_defaults_to_the_unflatten_function(library: str) -> None:
    node = fresh_node()
    LIBRARIES[library].register_pytree_node_serialization(
        node.type, serialized_name=node.name, from_children=None, **node.options
    )
    round_trip(jaxexp, jaxexp, make(node))


@pytest.mark.parametrize("library", LIBRARIES)
def test_from_children_is_used_where_given(library: str) -> None:
    node, calls = fresh_node(), []

    def from_children(label, children):
        calls.append((label, len(children)))
        return node.type(*children, label)

    LIBRARIES[library].register_pytree_node_serialization(
        node.type, serialized_name=node.name, from_children=from_children, **node.options
    )
    round_trip(jaxexp, jaxexp, make(node))
    assert calls
    assert set(calls) == {("label", 1)}


@pytest.mark.parametrize("library", LIBRARIES)
def test_unregistered_node_needs_from_children(library: str) -> None:
    node = fresh_node(registered=False)
    with pytest.raises(ValueError) as error:
        register(LIBRARIES[library], node)
    assert library == "jax" or isinstance(error.value, jaxexp.ExportError)


@pytest.mark.parametrize("library", LIBRARIES)
def test_only_namedtuples_register_as_namedtuples(library: str) -> None:
    for other in (tuple, dict, fresh_node().type):
        with pytest.raises(ValueError) as error:
            LIBRARIES[library].register_namedtuple_serialization(other, serialized_name="test_registry.wrong")
        assert library == "jax" or isinstance(error.value, jaxexp.ExportError)


def test_works_as_a_class_decorator() -> None:
    number = next(_numbers)

    @functools.partial(
        jaxexp.register_pytree_node_serialization,
        serialized_name=f"test_registry.Decorated{number}",
        serialize_auxdata=lambda aux: b"",
        deserialize_auxdata=lambda data: (),
    )
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Decorated:
        x: typing.Any

    round_trip(jaxexp, jax_export, Decorated(arr(2)))


def test_typing_namedtuple() -> None:
    number = next(_numbers)

    class Typed(typing.NamedTuple):
        left: typing.Any
        right: typing.Any

    jaxexp.register_namedtuple_serialization(Typed, serialized_name=f"test_registry.Typed{number}")
    round_trip(jaxexp, jax_export, Typed(arr(2), [arr(3)]))
    round_trip(jax_export, jaxexp, Typed(arr(2), None))


def test_ordered_dict_needs_no_registration() -> None:
    value = collections.OrderedDict([("b", arr(2)), ("a", arr(3))])
    for writer, reader in itertools.product(LIBRARIES.values(), repeat=2):
        round_trip(writer, reader, value)
    loaded = jaxexp.deserialize(jaxexp.export(jax.jit(lambda d: d))(value).serialize())
    assert list(loaded.call(value)) == ["b", "a"]
    with pytest.raises(ValueError):
        loaded.call(collections.OrderedDict([("a", arr(3)), ("b", arr(2))]))


@each_library
def test_auxdata_must_be_bytes(registrar: str) -> None:
    node = fresh_node()
    register(LIBRARIES[registrar], node._replace(options={**node.options, "serialize_auxdata": lambda aux: aux}))
    value = make(node)
    with pytest.raises(ValueError) as theirs:
        jax_export.export(jax.jit(lambda x: x))(value).serialize()
    with pytest.raises(jaxexp.ExportError) as ours:
        jaxexp.export(jax.jit(lambda x: x))(value).serialize()
    assert isinstance(ours.value, type(theirs.value))


@each_library
@pytest.mark.parametrize("data", [bytes(range(256)), b"", bytearray(b"xyz")])
def test_auxdata_arrives_unchanged(registrar: str, data) -> None:
    node, seen = fresh_node(), []
    options = {"serialize_auxdata": lambda aux: data, "deserialize_auxdata": lambda b: seen.append(b) or "label"}
    register(LIBRARIES[registrar], node._replace(options=options))
    round_trip(jaxexp, jaxexp, make(node))
    assert seen
    assert all(type(b) is bytes and b == bytes(data) for b in seen)


def test_user_functions_that_raise() -> None:
    """A serialize_auxdata that raises is the user's own error; on reading, the artifact is refused."""
    node = fresh_node()

    def refuse(aux):
        raise LookupError("no")

    register(jaxexp, node._replace(options={**node.options, "serialize_auxdata": refuse}))
    with pytest.raises(LookupError, match="no"):
        jaxexp.export(jax.jit(lambda x: x))(make(node)).serialize()

    node = fresh_node()
    register(jaxexp, node._replace(options={**node.options, "deserialize_auxdata": refuse}))
    blob = jaxexp.export(jax.jit(lambda x: x))(make(node)).serialize()
    with pytest.raises(jaxexp.ExportError) as error:
        jaxexp.deserialize(blob)
    assert isinstance(error.value.__cause__, LookupError)


def test_namedtuple_with_other_fields_is_refused() -> None:
    """The reader's class must have the fields that were written; their order may differ."""
    import subprocess
    import sys

    writer = (
        "import collections, jax, jaxexp, sys, numpy as np\n"
        "T = collections.namedtuple('T', 'x y')\n"
        "jaxexp.register_namedtuple_serialization(T, serialized_name='T')\n"
        "e = jaxexp.export(jax.jit(lambda t: t.x - 2 * t.y))(T(np.float32(0), np.float32(0)))\n"
        "sys.stdout.buffer.write(e.serialize(trailer=False))"
    )
    blob = subprocess.run([sys.executable, "-c", writer], capture_output=True, check=True).stdout
    swapped, wrong = (collections.namedtuple("T", names) for names in ("y x", "x z"))
    jaxexp.register_namedtuple_serialization(swapped, serialized_name="T")
    loaded = jaxexp.deserialize(blob)
    assert jax.tree.structure(loaded.in_tree.unflatten([1, 2])) == jax.tree.structure(((swapped(1, 2),), {}))
    renamed = blob.replace(b"\1\0\0\0T\0\0\0", b"\1\0\0\0U\0\0\0")  # a string: its length, then its bytes
    assert renamed != blob
    jaxexp.register_namedtuple_serialization(wrong, serialized_name="U")
    with pytest.raises(jaxexp.ExportError, match="'z'"):
        jaxexp.deserialize(renamed)


def test_registered_dtype_kinds_are_known() -> None:
    """jax.export lets a process add dtypes to the format; jaxexp reads and writes them as well."""
    from jax._src.export import serialization

    int2 = np.dtype("int2")
    exported = jaxexp.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((2,), int2))
    with pytest.raises(jaxexp.ExportError, match="int2"):
        exported.serialize()
    kind = 101
    serialization.register_dtype_kind(int2, kind)
    try:
        blob = exported.serialize()
        assert jaxexp.deserialize(blob).in_avals[0].dtype == int2
        assert jax_export.deserialize(blob).in_avals[0].dtype == int2
        assert (
            jaxexp.deserialize(jax_export.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((2,), int2)).serialize())
            .in_avals[0]
            .dtype
            == int2
        )
    finally:
        del serialization._dtype_to_dtype_kind[int2], serialization._dtype_kind_to_dtype[kind]
    with pytest.raises(jaxexp.DeserializationError):
        jaxexp.deserialize(blob)
