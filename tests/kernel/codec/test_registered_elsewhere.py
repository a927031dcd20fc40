"""Nodes whose class was registered for serialization where an artifact was written, and is not registered here."""

from __future__ import annotations

import collections
import copy
import itertools
import pickle
from typing import Any

import jax
import pytest
from jax import export as jax_export

import jaxexp
from kit.compare import assert_same_values
from kit.corpus import arr

_numbers = itertools.count(100)
LIBRARIES = {"jaxexp": jaxexp, "jax": jax_export}
each_library = pytest.mark.parametrize("library", LIBRARIES)


class Tagged:
    """A node with auxiliary data."""

    def __init__(self, child: Any, tag: str) -> None:
        self.child, self.tag = child, tag


jax.tree_util.register_pytree_node(Tagged, lambda n: ((n.child,), n.tag), lambda tag, children: Tagged(*children, tag))
jaxexp.register_pytree_node_serialization(
    Tagged, serialized_name="elsewhere.Tagged", serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode
)
Pt = collections.namedtuple("Pt", "x y")
jaxexp.register_namedtuple_serialization(Pt, serialized_name="elsewhere.Pt000")


def new_name() -> str:
    """A serialized name that no class has here, as long as the one above."""
    return f"elsewhere.Pt{next(_numbers)}"


def written(name: str, library: Any = jaxexp) -> bytes:
    """An artifact of a function that swaps the fields of a Pt, registered under this name."""
    exported = library.export(jax.jit(lambda p: Pt(p.y, 2 * p.x)))(Pt(arr(1), arr(2)))
    blob = exported.serialize(trailer=False) if library is jaxexp else exported.serialize()
    return bytes(blob).replace(b"elsewhere.Pt000", name.encode())


def tagged(tag: str, name: str = "elsewhere.Nobody") -> bytes:
    blob = bytes(jaxexp.export(jax.jit(lambda t: t))(Tagged(arr(2), tag)).serialize(trailer=False))
    return blob.replace(b"elsewhere.Tagged", name.encode())


@each_library
def test_generic_nodes_stand_in(library: str, way_of_trees: None) -> None:
    name = new_name()
    blob = written(name, LIBRARIES[library])
    loaded = jaxexp.deserialize(blob)
    ((node,), _) = loaded.in_tree.unflatten([arr(1), arr(2)])
    assert type(node) is jaxexp.GenericNode
    assert (node._class_name, node._names, node._static) == (name, ("x", "y"), None)
    Other = collections.namedtuple("Other", "x y")
    for given in (node, {"y": arr(2), "x": arr(1)}, Pt(arr(1), arr(2)), Other(arr(1), arr(2))):
        for call in (loaded.call, jax.jit(loaded.call)):
            assert_same_values(list(call(given)), [arr(2), 2 * arr(1)])
    assert type(loaded.call(node)) is jaxexp.GenericNode
    assert jaxexp.deserialize(blob).in_tree == loaded.in_tree
    assert jaxexp.deserialize(written(new_name())).in_tree != loaded.in_tree
    with pytest.raises(jaxexp.ExportError, match=f"{name} has the children x, y, and .*Q y, x"):
        loaded.call(collections.namedtuple("Q", "y x")(arr(2), arr(1)))
    with pytest.raises(ValueError, match="unregistered type"):
        jax_export.deserialize(bytearray(blob))  # as before


def test_they_are_written_as_they_were() -> None:
    """So a process that has the class gets it, whatever became of the artifact on the way."""
    name = new_name()
    blob = written(name)
    loaded = jaxexp.deserialize(blob)
    assert loaded.serialize(trailer=False) == blob
    on_the_way = {
        "strict": loaded.serialize(strict=True),
        "old reader": loaded.serialize(compatibility="jax-0.4.35"),
        "migrated": jaxexp.migrate(blob),
        "pickled": pickle.loads(pickle.dumps(loaded)).serialize(),
        "again": jaxexp.deserialize(loaded.serialize()).serialize(),
    }
    assert jaxexp.compatibility(blob).custom_nodes == (name,)
    assert jaxexp.compatibility(on_the_way["strict"]).readable_by(jax.__version__)
    with pytest.raises(jaxexp.ExportError, match=f"nodes of {name}; write for JAX 0.4.35 or newer"):
        loaded.serialize(compatibility="jax-0.4.34")
    Here = collections.namedtuple("Here", "x y")
    jax_export.register_namedtuple_serialization(Here, serialized_name=name)
    expected = jax.tree.structure(((Here(1, 2),), {}))
    for what, artifact in on_the_way.items():
        for library in LIBRARIES.values() if what != "old reader" else (jaxexp,):
            assert library.deserialize(bytearray(artifact)).in_tree == expected, what


@each_library
def test_a_class_that_is_registered_later(library: str) -> None:
    name = new_name()
    blob = written(name)
    loaded = jaxexp.deserialize(blob)
    assert type(loaded.call({"x": arr(1), "y": arr(2)})) is jaxexp.GenericNode
    ((node,), _) = loaded.in_tree.unflatten([arr(1), arr(2)])
    Here = collections.namedtuple("Here", "x y")
    LIBRARIES[library].register_namedtuple_serialization(Here, serialized_name=name)
    for given in (Here(arr(1), arr(2)), node, {"x": arr(1), "y": arr(2)}):
        result = loaded.call(given)
        assert type(result) is Here
        assert_same_values(list(result), [arr(2), 2 * arr(1)])
    assert "GenericNode" in str(loaded.in_tree)
    assert loaded.serialize(trailer=False) == blob
    again = jaxexp.deserialize(blob)
    assert again.in_tree == jax.tree.structure(((Here(1, 2),), {})) != loaded.in_tree


def test_a_class_with_other_fields_is_no_substitute() -> None:
    name = new_name()
    loaded = jaxexp.deserialize(written(name))
    Swapped = collections.namedtuple("Swapped", "y x")
    jaxexp.register_namedtuple_serialization(Swapped, serialized_name=name)
    with pytest.raises(jaxexp.ExportError, match=f"{name} has the children x, y, and {name} y, x"):
        loaded.call(Swapped(arr(2), arr(1)))
    result = loaded.call({"x": arr(1), "y": arr(2)})
    assert type(result) is jaxexp.GenericNode  # whose fields are in the artifact's order
    assert_same_values([result.x, result.y], [arr(2), 2 * arr(1)])


def test_auxiliary_data_of_registered_functions() -> None:
    name = "elsewhere.Toggle"
    blob = tagged("red", name)
    loaded = jaxexp.deserialize(blob)
    assert loaded.serialize(trailer=False) == blob
    ((node,), _) = loaded.in_tree.unflatten([arr(2)])
    assert (node._class_name, node._names, node._static) == (name, (0,), "b'red'")
    assert_same_values(loaded.call(node)[0], arr(2))
    assert jaxexp.deserialize(tagged("blue", name)).in_tree != loaded.in_tree

    class Here(Tagged):
        pass

    jax.tree_util.register_pytree_node(Here, lambda n: ((n.child,), n.tag), lambda tag, children: Here(*children, tag))
    with pytest.raises(jaxexp.ExportError, match=rf"{name} has the children 0, and .*Here child"):
        loaded.call(Here(arr(2), "red"))
    jaxexp.register_pytree_node_serialization(
        Here, serialized_name=name, serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode
    )
    assert loaded.call(node).tag == "red"
    with pytest.raises(jaxexp.ExportError, match=f"of {name} is b'red' in export and b'blue' in the call"):
        loaded.call(Here(arr(2), "blue"))


def test_copies() -> None:
    ((node,), _) = jaxexp.deserialize(written(new_name())).in_tree.unflatten([1, "two"])
    assert node == copy.copy(node) == copy.deepcopy(node) == pickle.loads(pickle.dumps(node))
    tree = jaxexp.deserialize(tagged("red")).in_tree
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert node != jaxexp.GenericNode(b'["x", "y"]', [1, "two"], "elsewhere.other")
    # Lists of something else, or of another number of fields, are no names.
    for auxdata in (b'["x", "x"]', b'["x"]', b"[1, 2]", b"[" * 100_000 + b"]", b"", b"\xff]"):
        assert jaxexp.GenericNode(auxdata, [1, 2], "elsewhere.other")._names == (0, 1)


def test_names_of_newer_versions_are_refused() -> None:
    blob = written(new_name())
    name = jaxexp.compatibility(blob).custom_nodes[0]
    with pytest.raises(jaxexp.DeserializationError, match=r"'jaxexp\.\w+', which is unknown here: a newer jaxexp"):
        jaxexp.deserialize(blob.replace(name.encode(), b"jaxexp.".ljust(len(name), b"x")))
    with pytest.raises(jaxexp.ExportError, match="a newer jaxexp may know it"):
        jaxexp.GenericNode(b"", [], "jaxexp.other")


def test_a_policy_can_refuse_them() -> None:
    name = new_name()
    jaxexp.deserialize(written(name), policy=jaxexp.Policy())
    with pytest.raises(jaxexp.PolicyError, match=f"unregistered classes: {name}. Register the classes"):
        jaxexp.deserialize(written(name), policy=jaxexp.Policy(unregistered_nodes=False))


def test_in_place_of_jax_export() -> None:
    blob = bytearray(written(new_name()))
    with jaxexp.install():
        assert type(jax_export.deserialize(blob).call({"x": arr(1), "y": arr(2)})) is jaxexp.GenericNode
