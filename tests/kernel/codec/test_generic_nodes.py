"""Nodes of classes that nobody registered, or only somebody else: how trees with them are written, read and called."""

from __future__ import annotations

import collections
import copy
import itertools
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._kernel.codec import binding, treedefs
from jaxexp._kernel.codec import nodes as library_nodes
from jaxexp.errors import DeserializationError, ExportError, PolicyError, SerializationError
from kit.alike import LIBRARIES
from kit.compare import assert_same_values
from kit.corpus import arr, spec
from kit.each import each
from kit.library_nodes import MISSING, VALUES, Node, Pair, described, double, replaced_name, written

pytestmark = pytest.mark.jax


@pytest.fixture(params=["node list", "node by node"])
def way_of_trees(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tree structures go through their node list where its layout is known, and node by node where it is not."""
    assert treedefs.state_is_known
    monkeypatch.setattr(treedefs, "state_is_known", request.param == "node list")
    binding.bind.cache_clear()
    yield
    monkeypatch.undo()
    binding.bind.cache_clear()
    binding.bind()


@each("name", ["namedtuple in dict", "dataclass", "node"])
def test_generic_nodes_stand_in(name: str, way_of_trees: None) -> None:
    value = VALUES[name]
    blob = replaced_name(written(value))
    loaded = jaxexp.deserialize(blob)
    assert "Nobody" in str(loaded.in_tree)
    args, _ = loaded.in_tree.unflatten(jax.tree.leaves(value))
    for given, call in ((value, loaded.call), (args[0], jax.jit(loaded.call))):
        assert_same_values(jax.tree.leaves(call(given)), [2 * leaf for leaf in jax.tree.leaves(value)])
    assert jax.tree.structure(loaded.call(*args)) == jax.tree.structure(args[0])
    assert loaded.serialize(trailer=False) == blob
    assert jaxexp.deserialize(loaded.serialize()) == jaxexp.deserialize(loaded.serialize())
    assert "Nobody" in jaxexp.inspect(loaded.serialize()).in_tree


def generic_pair() -> Any:
    loaded = jaxexp.deserialize(replaced_name(written(Pair(arr(1), arr(2)))))
    return loaded, loaded.in_tree.unflatten([1, "two"])[0][0]


def test_generic_node() -> None:
    _, node = generic_pair()
    assert type(node) is jaxexp.GenericNode
    assert node._class_name.endswith(".Pair")
    assert (node._names, node._static, len(node)) == (("right", "left"), None, 2)
    assert (node.right, node.left) == (node["right"], node["left"]) == (node[0], node[1]) == tuple(node) == (1, "two")
    assert {"right", "left"} <= set(dir(node))
    assert repr(node).endswith(".Pair, right=1, left='two')")
    assert node == copy.copy(node) == copy.deepcopy(node) == pickle.loads(pickle.dumps(node))
    assert hash(node) == hash(copy.copy(node))
    assert node not in (jax.tree.map(lambda _: 3, node), Pair(1, "two"))
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(node)] == [".right", ".left"]
    for use, error, message in (
        (lambda: node.middle, AttributeError, "has no 'middle'; it has right, left"),
        (lambda: node["middle"], KeyError, "has no 'middle'"),
        (lambda: node[2], IndexError, None),
        (lambda: setattr(node, "right", 3), AttributeError, "immutable"),
        (lambda: jaxexp.GenericNode(described("a:B"), [1]), ExportError, "2 children, not 1"),
        (lambda: jaxexp.GenericNode(b"{}", []), ExportError, "made from its description in an artifact"),
    ):
        with pytest.raises(error, match=message):
            use()


def test_arguments_for_generic_nodes() -> None:
    loaded, _ = generic_pair()
    expected = [2 * arr(1), 2 * arr(2)]
    Other = collections.namedtuple("Other", "right left")
    for given in (
        {"left": arr(2), "right": arr(1)},
        collections.OrderedDict(right=arr(1), left=arr(2)),
        Node({"right": arr(1), "left": arr(2)}, "other data"),
        Other(arr(1), arr(2)),
    ):
        assert_same_values(jax.tree.leaves(loaded.call(given)), expected)
        assert_same_values(jax.tree.leaves(jax.jit(loaded.call)(given)), expected)
        loaded.specialize(given)
    assert type(loaded.call(Other(arr(1), arr(2)))) is Other
    assert type(loaded.call({"left": arr(2), "right": arr(1)})) is jaxexp.GenericNode
    for wrong in (
        {"left": arr(2)}, {"left": arr(2), "middle": arr(1)}, (arr(1), arr(2)), arr(1), None, [arr(1), arr(2)],
        collections.OrderedDict(left=arr(2), right=arr(1)), Node({"left": arr(2), "right": arr(1)}, None),
        Pair(arr(1), (arr(2),)),
    ):  # fmt: skip
        with pytest.raises(ExportError, match="another tree structure") as error:
            loaded.call(wrong)
        assert "right, left" in str(error.value) or isinstance(wrong, Pair)


def test_errors_leave_out_what_would_fit() -> None:
    loaded = jaxexp.deserialize(replaced_name(written((Pair(arr(1), arr(2)), {"step": arr(1)}))))
    loaded.call(({"left": arr(2), "right": arr(1)}, {"step": arr(1)}))
    for wrong, line in (
        ((Pair(arr(1), arr(2)), [arr(1)]), "args[0][1]: expected <class 'dict'>, found <class 'list'>"),
        ((Pair(arr(1), [arr(2)]), {"step": arr(1)}), "expected one array, found <class 'list'> of 1"),
    ):
        with pytest.raises(ExportError, match="another tree structure") as error:
            loaded.call(wrong)
        assert len(str(error.value).splitlines()) == 2
        assert line in str(error.value)


def test_a_class_that_is_imported_later(monkeypatch: Any) -> None:
    loaded = jaxexp.deserialize(replaced_name(written(arr(2), fun=lambda x: Pair(x, x))))
    assert type(loaded.call(arr(2))) is jaxexp.GenericNode
    name = loaded.call(arr(2))._class_name.rpartition(".")[0]
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    assert type(loaded.call(arr(2))) is jaxexp.GenericNode
    module.Pair = Pair  # type: ignore[attr-defined]
    assert type(loaded.call(arr(2))) is Pair
    assert type(jaxexp.deserialize(loaded.serialize()).out_tree.unflatten([1, 2])) is Pair


def test_functions_in_static_data_are_compared() -> None:
    value = Node({"x": arr(2)}, jnp.sin)
    loaded = jaxexp.deserialize(written(value, fun=lambda node: {"same": node, "none": arr(1)}))
    assert "GenericNode" in str(loaded.in_tree)
    result = loaded.call(value)["same"]
    assert type(result) is Node
    assert result.aux is jnp.sin
    with pytest.raises(ExportError, match=r"auxiliary data of .*Node is .*sin.* in export and .*cos.* in the call"):
        loaded.call(Node({"x": arr(2)}, jnp.cos))
    generic = loaded.in_tree.unflatten([arr(2)])[0][0]
    assert "sin" in generic._static
    assert type(loaded.call(generic)["same"]) is jaxexp.GenericNode


def test_its_repr_shows_types_of_arrays_and_escapes_names() -> None:
    node = jaxexp.GenericNode(
        described("lib:Layer", ["w", "rest"], "registered", ["tuple", *["x" * 30] * 30]),
        [np.zeros((300, 2), np.float32), {"b": [jax.numpy.ones(3)], "n": (np.int32(4),), "s": None}],
    )
    assert "w=float32[300,2], rest={'b': [float32[3]], 'n': (np.int32(4),), 's': None})" in repr(node)
    assert len(repr(node)) < 250
    assert len(node._static or "") > 900
    node = jaxexp.GenericNode(described("a:B\x1b]0;x\x07\u202e"), [1, 2])
    for text in (repr(node), str(node), str(jax.tree.structure(node))):
        assert text.isprintable()
        assert "\\x1b" in text


KIT = "kit.library_nodes"


@each("name", VALUES)
def test_trees_come_back(name: str, way_of_trees: None) -> None:
    value = VALUES[name]
    exported = jaxexp.export(jax.jit(double))(value)
    loaded = jaxexp.deserialize(exported.serialize())
    theirs = jax_export.deserialize(bytearray(exported.serialize()))
    for found in (loaded, theirs):
        assert found.in_tree == exported.in_tree
        assert found.out_tree == exported.out_tree
        result = jax.jit(found.call)(value)
        assert jax.tree.structure(result) == jax.tree.structure(value)
        assert_same_values(jax.tree.leaves(result), [2 * leaf for leaf in jax.tree.leaves(value)])
    assert jax.tree.structure(loaded.call(value)) == jax.tree.structure(value)


def test_a_registration_comes_first() -> None:
    Registered = collections.namedtuple("Registered", "a b")
    before = written(Registered(arr(1), arr(2)))
    jaxexp.register_namedtuple_serialization(Registered, serialized_name="test_generic_nodes.Registered")
    after = written(Registered(arr(1), arr(2)))
    assert b"jaxexp.node" in before
    assert b"jaxexp.node" not in after
    assert b"test_generic_nodes.Registered" in after
    assert jaxexp.deserialize(after).call(Registered(arr(1), arr(2))).b.shape == (2,)


def test_strict_names_all_types_and_how_to_register_them() -> None:
    Local = collections.namedtuple("Local", "x")
    value = {"a": Pair(arr(1), Local(arr(1))), "b": Node({"x": arr(1)}, 3), "c": Pair(arr(1), None)}
    exported = jaxexp.export(jax.jit(lambda t: (MISSING, t)))(value)
    with pytest.raises(SerializationError) as error:
        exported.serialize(strict=True)
    lines = str(error.value).split("\n  ")
    assert "4 pytree node types" in lines[0]
    start, _, line = lines[1].partition("; ")
    assert start == f"from {__name__} import Local"
    assert line == f"jaxexp.register_namedtuple_serialization(Local, serialized_name='{__name__}.Local')"
    assert lines[2].startswith(f"from {KIT} import Pair; jaxexp.register_namedtuple_serialization(Pair, ")
    assert "register_pytree_node_serialization(Node, " in lines[3]
    assert "auxiliary data is of <class 'tuple'>" in lines[3]
    assert "serialize_auxdata=lambda _: b'', deserialize_auxdata=lambda _: None)" in lines[4]
    with pytest.raises(SerializationError, match="4 pytree node types"):
        exported.save("never", strict=True)
    assert written({"x": arr(1)}, strict=True) == written({"x": arr(1)})
    # The line does what the message says.
    exec(line, {"jaxexp": jaxexp, "Local": Local})
    with pytest.raises(SerializationError, match="3 pytree node types") as error:
        exported.serialize(strict=True)
    assert "Local" not in str(error.value)


def test_strict_refuses_keys_that_are_not_strings() -> None:
    for kind in (dict, collections.OrderedDict):
        exported = jaxexp.export(jax.jit(lambda t: t[1]))(kind({1: arr(1)}))
        with pytest.raises(SerializationError, match=r"with strict=True: .* keys that are not strings") as error:
            exported.serialize(strict=True)
        assert isinstance(error.value, TypeError)
        exported.serialize()


def test_a_tuple_with_other_values_than_fields() -> None:
    odd = type("Odd", (tuple,), {"_fields": ("one", "two")})
    with pytest.raises(SerializationError, match=r"Odd.* with 1 values, which is not a namedtuple of as many"):
        library_nodes.describe(odd, None, 1)  # JAX refuses such a tuple where it asks for keys


def test_old_readers_are_refused() -> None:
    exported = jaxexp.export(jax.jit(double))(Pair(arr(1), arr(1)))
    with pytest.raises(ExportError, match=r"Pair.*0\.10\.2"):
        exported.serialize(compatibility="jax-0.6.2")
    exported.serialize(compatibility="jax-0.10.2")


_numbers = itertools.count(100)
each_library = each("library", LIBRARIES)


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
    return f"elsewhere.Pt{next(_numbers)}"


def registered(name: str, library: Any = jaxexp) -> bytes:
    """An artifact of a function that swaps the fields of a Pt, registered under this name."""
    exported = library.export(jax.jit(lambda p: Pt(p.y, 2 * p.x)))(Pt(arr(1), arr(2)))
    blob = exported.serialize(trailer=False) if library is jaxexp else exported.serialize()
    return bytes(blob).replace(b"elsewhere.Pt000", name.encode())


def tagged(tag: str, name: str = "elsewhere.Nobody") -> bytes:
    blob = bytes(jaxexp.export(jax.jit(lambda t: t))(Tagged(arr(2), tag)).serialize(trailer=False))
    return blob.replace(b"elsewhere.Tagged", name.encode())


@each_library
def test_generic_nodes_of_names(library: str, way_of_trees: None) -> None:
    name = new_name()
    blob = registered(name, LIBRARIES[library])
    loaded = jaxexp.deserialize(blob)
    ((node,), _) = loaded.in_tree.unflatten([arr(1), arr(2)])
    assert type(node) is jaxexp.GenericNode
    assert (node._class_name, node._names, node._static) == (name, ("x", "y"), None)
    Other = collections.namedtuple("Other", "x y")
    for given in (node, {"y": arr(2), "x": arr(1)}, Pt(arr(1), arr(2)), Other(arr(1), arr(2))):
        assert_same_values(list(loaded.call(given)), [arr(2), 2 * arr(1)])
    assert_same_values(list(jax.jit(loaded.call)(node)), [arr(2), 2 * arr(1)])
    assert type(loaded.call(node)) is jaxexp.GenericNode
    assert jaxexp.deserialize(blob).in_tree == loaded.in_tree
    assert jaxexp.deserialize(registered(new_name())).in_tree != loaded.in_tree
    with pytest.raises(ExportError, match=rf"args\[0\]: expected {name} with the children x, y; found .*Q with y, x"):
        loaded.call(collections.namedtuple("Q", "y x")(arr(2), arr(1)))
    with pytest.raises(ValueError, match="unregistered type"):
        jax_export.deserialize(bytearray(blob))  # as before
    with jaxexp.install():
        assert type(jax_export.deserialize(bytearray(blob)).call({"x": arr(1), "y": arr(2)})) is jaxexp.GenericNode


def test_they_are_written_as_they_were() -> None:
    """So a process that has the class gets it, whatever became of the artifact on the way."""
    name = new_name()
    blob = registered(name)
    loaded = jaxexp.deserialize(blob)
    assert loaded.serialize(trailer=False) == blob
    on_the_way = {
        "strict": loaded.serialize(strict=True),
        "old reader": loaded.serialize(compatibility="jax-0.4.35"),
        "migrated": jaxexp.migrate(blob),
        "pickled": pickle.loads(pickle.dumps(loaded)).serialize(),
    }
    assert jaxexp.compatibility(blob).custom_nodes == (name,)
    assert jaxexp.compatibility(on_the_way["strict"]).readable_by(jax.__version__)
    with pytest.raises(ExportError, match=f"nodes of {name}; write for JAX 0.4.35 or newer"):
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
    blob = registered(name)
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
    loaded = jaxexp.deserialize(registered(name))
    Swapped = collections.namedtuple("Swapped", "y x")
    jaxexp.register_namedtuple_serialization(Swapped, serialized_name=name)
    said = rf"args\[0\]: expected {name} with the children x, y; found {name} with y, x"
    with pytest.raises(ExportError, match=said):
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
    with pytest.raises(ExportError, match=rf"args\[0\]: expected {name} with the children 0; found .*Here with child"):
        loaded.call(Here(arr(2), "red"))
    jaxexp.register_pytree_node_serialization(
        Here, serialized_name=name, serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode
    )
    assert loaded.call(node).tag == "red"
    with pytest.raises(ExportError, match=f"of {name} is b'red' in export and b'blue' in the call"):
        loaded.call(Here(arr(2), "blue"))


def test_names_of_fields() -> None:
    ((node,), _) = jaxexp.deserialize(registered(new_name())).in_tree.unflatten([1, "two"])
    assert node == copy.deepcopy(node) == pickle.loads(pickle.dumps(node))
    assert node != jaxexp.GenericNode(b'["x", "y"]', [1, "two"], "elsewhere.other")
    # Lists of something else, or of another number of fields, are no names.
    for auxdata in (b'["x", "x"]', b'["x"]', b"[1, 2]", b"[" * 100_000 + b"]", b"", b"\xff]"):
        assert jaxexp.GenericNode(auxdata, [1, 2], "elsewhere.other")._names == (0, 1)


def test_names_of_newer_versions_are_refused() -> None:
    name = new_name()
    with pytest.raises(DeserializationError, match=r"'jaxexp\.\w+', which is unknown here: a newer jaxexp"):
        jaxexp.deserialize(registered(name).replace(name.encode(), b"jaxexp.".ljust(len(name), b"x")))
    with pytest.raises(ExportError, match="a newer jaxexp may know it"):
        jaxexp.GenericNode(b"", [], "jaxexp.other")


def test_a_policy_can_refuse_them() -> None:
    strict, name = jaxexp.Policy(unregistered_nodes=False), new_name()
    jaxexp.deserialize(registered(name), policy=jaxexp.Policy())
    with pytest.raises(PolicyError, match=f"unregistered classes: {name}. Register the classes"):
        jaxexp.deserialize(registered(name), policy=strict)
    decomposed = jaxexp.export(jax.jit(jnp.linalg.qr))(spec((3, 3))).serialize()
    with pytest.raises(PolicyError, match=r"QRResult\. These classes are JAX's own, .* tuples or dicts"):
        jaxexp.deserialize(decomposed, policy=strict)
