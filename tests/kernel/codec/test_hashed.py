"""What an artifact says of nodes may be hostile: values that hash alike, and descriptions that nobody wrote.

Who writes an artifact chooses the hashes of numbers, so every road by which bytes become hashed objects is limited.
"""

from __future__ import annotations

import json
import math
import sys
import unittest.mock
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp._errors import SerializationTypeError
from jaxexp._kernel.artifact.node import (
    MOST_OF_ONE_HASH,
    MOST_VALUES,
    Description,
    keys_from_bytes,
    keys_to_bytes,
    most_of_one_hash,
)
from jaxexp._kernel.codec import nodes as library_nodes
from jaxexp.errors import DeserializationError, ExportError
from kit import hostile
from kit.each import each
from kit.layout import CUSTOM, DICT, LEAF, LIST, NONE, TUPLE, aval, function, node, of_values, repeated, table
from kit.library_nodes import Node, described
from kit.parts import put_together

KIT = "kit.library_nodes"
STRICT = jaxexp.Policy(unregistered_nodes=False)
PRIME = 2**61 - 1  # Python's hash of an integer is its remainder


def number(i: int) -> Any:
    return ["int", hex(i * PRIME)]


CHOSEN: dict[str, Callable[[int], Any]] = {
    "int": number,
    "complex": lambda i: ["complex", float(-1000003 * i).hex(), float(i).hex()],
    "tuple": lambda i: ["tuple", 1, "x", number(i)],
    "tuple in tuple": lambda i: ["tuple", ["tuple", number(i), None]],
    "frozenset": lambda i: ["frozenset", number(i)],
    "range": lambda i: ["range", number(i), ["int", hex(i * PRIME + 1)], 1],
    "complex scalar": lambda i: ["scalar", "complex128", np.complex128(complex(-1000003 * i, i)).tobytes().hex()],
    "namedtuple": lambda i: ["namedtuple", KIT, "Pair", ["right", "left"], number(i), 0],
    "dataclass": lambda i: ["dataclass", KIT, "Config", ["sizes", "rate", "color"], number(i), 0, 0],
    "dataclass with slots": lambda i: ["dataclass", KIT, "Settings", ["config", "more"], None, number(i)],
}  # fmt: skip
if sys.version_info >= (3, 12):
    CHOSEN["slice"] = lambda i: ["slice", number(i), 1, 1]

# What hashes such values, as elements or keys.
CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "set": lambda values: ["set", *values],
    "frozenset": lambda values: ["frozenset", *values],
    "dict": lambda values: ["dict", *([value, None] for value in values)],
    "dict in dict": lambda values: ["dict", ["x", ["dict", *([value, None] for value in values)]]],
    "frozenset in namedtuple": lambda values: ["namedtuple", KIT, "Pair", ["right", "left"], 0, ["frozenset", *values]],
    "set in dataclass": lambda values: ["dataclass", KIT, "Settings", ["config", "more"], None, ["set", *values]],
    "frozenset in key of a dict": lambda values: ["dict", [["tuple", ["frozenset", *values]], 1]],
}


def aux(data: Any) -> bytes:
    description = described(f"{KIT}:Node", [], "registered", ["tuple", ["tuple"], data])
    return put_together(function(out_tree=node(CUSTOM, name="jaxexp.node", auxdata=description)))


def is_made(blob: bytes) -> bool:
    exported = jaxexp.deserialize(blob)
    return "GenericNode" not in f"{exported.in_tree} {exported.out_tree}"


def test_the_table_has_all_tags() -> None:
    """A tag that is new has to be judged: can an artifact choose the hashes of its values, does it hash its parts?"""
    judged = {make(1)[0] for make in CHOSEN.values()} | {make([])[0] for make in CONTAINERS.values()}
    not_hashable = {"list", "array"}
    with_secret_or_few = {"bytes", "float", "dtype", "type", "enum", "constant", "ellipsis"}  # of one hash
    assert judged | not_hashable | with_secret_or_few | {"slice"} == set(library_nodes._FROM)


@each("container", CONTAINERS)
@each("kind", CHOSEN)
def test_sets_and_dicts_of_auxiliary_data(kind: str, container: str) -> None:
    values = list(map(CHOSEN[kind], range(1, MOST_OF_ONE_HASH + 2)))
    assert len({hash(library_nodes.from_json(value)) for value in values}) == 1, "this would test nothing"
    assert is_made(aux(CONTAINERS[container](values[:-1])))
    refused = aux(CONTAINERS[container](values))
    assert not is_made(refused)
    assert jaxexp.deserialize(refused).out_tree == jaxexp.deserialize(refused).out_tree
    assert jaxexp.inspect(refused).out_tree


def test_sets_in_sets_multiply_comparisons() -> None:
    """Comparing two sets of eight elements of one hash compares each with eight."""

    def sets(i: int, count: int) -> Any:
        return ["frozenset", *(number(8 * i + k) for k in range(1, count + 1))]

    assert is_made(aux(["set", *(sets(i, 8) for i in range(8))]))
    assert not is_made(aux(["set", *(sets(i, 8) for i in range(9))]))
    assert not is_made(aux(["dict", *([["tuple", sets(i, 8)], 1] for i in range(9))]))
    assert is_made(aux(["list", *(sets(i, 8) for i in range(100))])), "a list compares nothing"
    assert is_made(aux(["dict", *([number(i), sets(i, 8)] for i in range(9))])), "nor does a dict its values"


def test_the_number_of_values_is_limited() -> None:
    """Values of different hashes may seek the same free place in a table, which no count of equal hashes shows."""
    assert most_of_one_hash(range(MOST_VALUES)) == 1
    with pytest.raises(ValueError, match="65537 keys or elements that are not texts"):
        most_of_one_hash(range(MOST_VALUES + 1))
    assert most_of_one_hash([str(i) for i in range(MOST_VALUES + 1)]) == 1


def test_keys_of_dicts() -> None:
    def artifact(count: int, name: str, data: Any) -> bytes:
        encoded = json.dumps(data, separators=(",", ":")).encode()
        return put_together(function(out_tree=node(CUSTOM, *[node(NONE)] * count, name=name, auxdata=encoded)))

    def tagged(make: Callable[[int], Any], count: int) -> Any:
        return {"version": 1, "keys": [make(i) for i in range(count)]}

    refused = [artifact(65, "collections.OrderedDict", [i * PRIME for i in range(65)])]  # as JAX writes them
    for name in ("jaxexp.dict", "jaxexp.OrderedDict"):
        for make in (number, lambda i: ["tuple", number(i), ["None"]]):
            assert jaxexp.deserialize(artifact(64, name, tagged(make, 64))).out_tree.num_leaves == 0
            refused.append(artifact(65, name, tagged(make, 65)))
    for blob in refused:
        with pytest.raises(DeserializationError, match="65 keys or elements with the hash"):
            jaxexp.deserialize(blob)
    # Keys that are no numbers, as JAX would write them; jaxexp writes such keys in its own encoding.
    loaded = jaxexp.deserialize(artifact(2, "collections.OrderedDict", [math.nan, -math.inf]))
    assert jaxexp.deserialize(loaded.serialize()).out_tree == loaded.out_tree


def test_what_would_be_refused_is_not_written() -> None:
    with pytest.raises(SerializationTypeError, match="it has 65 keys or elements with the hash 0"):
        keys_to_bytes([i * PRIME for i in range(65)], SerializationTypeError)
    with pytest.raises(SerializationTypeError, match="more than 4300 digits"):
        keys_to_bytes([(10**4300,)], SerializationTypeError)
    assert keys_from_bytes(keys_to_bytes([10**4299], SerializationTypeError)) == (10**4299,)


@each("key", [jax.tree_util.GetAttrKey("\ud800"), jax.tree_util.DictKey(10**4300)])
def test_keys_that_have_no_text_are_positions(key: Any) -> None:
    keyed = type("Keyed", (), {})
    jax.tree_util.register_pytree_with_keys(keyed, lambda _: ([(key, 1.0)], None), lambda *_: keyed())
    assert Description(library_nodes.describe(keyed, None, 1)).names == (0,)


def test_a_class_whose_name_has_no_text() -> None:
    odd = type("Odd", (), {"__qualname__": "\ud800"})
    jax.tree_util.register_pytree_node(odd, lambda _: ((), None), lambda _, __: odd())
    with pytest.raises(ExportError, match="surrogate"):
        jaxexp.export(jax.jit(lambda x: 0))(odd()).serialize()


@pytest.mark.jax
@each("cls", ["Node", "NotThere"])
@each(
    "data",
    [
        "\ud800", ["opaque", "function", "\ud800"], ["opaque", "a.B", "\udfff"], ["int", hex(10**4300)],
        ["int", hex(10**4299)], ["float", "nan"], ["array", "float32", [2], "0000803f0000803f"],
        ["list", ["array", "float32", [1], "0000803f"]], ["frozenset", ["scalar", "float32", "0000c07f"]],
    ],
)  # fmt: skip
def test_trees_can_be_printed_compared_and_hashed(data: Any, cls: str) -> None:
    for whole in (["tuple", ["tuple", "x"], data], data):  # a text that is all of the data, JAX prints as it is
        description = described(f"{KIT}:{cls}", [["item", "\ud800"]], "registered", whole)
        tree = node(CUSTOM, node(NONE), name="jaxexp.node", auxdata=description)
        blob = put_together(function(out_tree=tree))
        one, other = jaxexp.deserialize(blob), jaxexp.deserialize(blob)
        assert one.out_tree == other.out_tree
        assert hash(one.out_tree) == hash(other.out_tree)
        for text in (repr(one.out_tree), str(one), one._repr_html_(), str(jaxexp.inspect(blob))):
            text.encode()


def test_arrays_in_results_stay_what_they_are() -> None:
    value = Node({"x": jax.numpy.ones(2)}, np.arange(3.0))
    blob = bytes(jaxexp.export(jax.jit(lambda x: Node({"x": x}, np.arange(3.0))))(value.children["x"]).serialize())
    loaded = jaxexp.deserialize(blob)
    assert "GenericNode" in str(loaded.out_tree)
    found = loaded.call(value.children["x"])
    assert type(found) is Node
    np.testing.assert_array_equal(found.aux, value.aux)


@pytest.mark.jax
@each("is_sharded", [False, True])
def test_shapes_of_one_hash(is_sharded: bool) -> None:
    """JAX keeps abstract values in a table, by their shapes."""
    for count in (64, 65):
        sizes = hostile.sizes_of_one_hash(count)  # what was read before changes no outcome
        assert len(set(map(hash, sizes))) == 1
        avals = [aval(*map(str, one)) for one in sizes for _ in range(3)]  # equal ones are one
        indices = list(range(len(avals)))
        if is_sharded:
            spec = table("PartitionSpec", partitions=[table("PartitionSpecOneAxis", axes=["x"])])
            of_one_mesh = [hostile.mesh(["x"])], [table("NamedSharding", spec=spec)]
            blob = hostile.sharded(*of_one_mesh, avals, [(i, 0) for i in indices])
        else:
            blob = of_values(avals, indices)
        assert len(jaxexp.inspect(blob).arguments) == 3 * count
        if count == 64:
            assert len(jaxexp.deserialize(blob).in_avals) == 3 * count
            continue
        with pytest.raises(DeserializationError, match="of different hashes, found more than 64") as error:
            jaxexp.deserialize(blob)
        assert error.value.path == "in_avals[192].shape"
    avals = [aval(str(i), "2") for i in range(1, 1000)]
    assert jaxexp.deserialize(of_values(avals, list(range(999)))).in_avals[998].shape == (999, 2)


def registered(data: Any, **more: Any) -> bytes:
    return described("a:B", kind="registered", data=data, **more)


def with_data(text: bytes) -> bytes:
    return registered(None).replace(b"null", text)


HOSTILE: list[tuple[bytes, str]] = [
    (b"\xff{", "do not describe|codec"),
    (b"", "Expecting value"),
    (b"{}", "do not describe"),
    (described("a:B").replace(b'"version":1', b'"version":2'), "version 2"),
    (described("a:B", kind="mystery"), "kind 'mystery'"),
    (described("a:B", kind=["namedtuple"]), "kind"),  # type: ignore[arg-type]
    (described("a:B").replace(b'["a","B"]', b'["a"]'), "1 texts where there should be 2"),
    (described("a:B").replace(b'["right","left"]', b'"ab"'), "canonical"),
    (described("a:B", [1, 2]), "do not describe"),
    (described("a:B", ["x", ["item", "x"]], "registered"), "two children"),
    (described("a:B", [["other", "x"]], "registered"), "key"),
    (described("a:B", [["item", True]], "registered"), "key"),
    (described("a:B", [["item", "x"]]), "not fields"),
    (described("a:B", data=1), "not fields"),
    (described("a:B", more=1), "canonical"),
    (described("a:B").replace(b'"version":1', b'"version":1,"version":1'), "canonical"),
    (described("a:\ud800"), "surrogate"),
    (described("a:B", ["\udfff", "x"]), "surrogate"),
    (b"[" * 200_000, "do not describe|levels"),
    (with_data(b"1" * 5000), "digits|Exceeds"),
    (with_data(b'["list",' * 65 + b"1" + b"]" * 65), "levels"),
    (registered(1.5), "number"),
    (registered(2**53), "large number"),
    (registered(["what", 1]), "tag 'what'"),
    (registered([]), "should be a value"),
    (registered({"a": 1}), "should be a value"),
    (registered(["type", "a"]), "texts"),
    (registered(["slice", 1, 2]), "parts"),
    (registered(["dict", [1]]), "pairs"),
    (registered(["namedtuple", "a", "B", ["x"]]), "fields"),
    (registered(["dataclass", "a", "B", [], 1]), "fields"),
    (registered(["array", "u1", [-1], ""]), "shape"),
    (registered(["int", "99999999999999999"]), "canonical int"),
    (registered(["float", "0x1p99999"]), "canonical float"),
    (registered(["float", "-nan"]), "canonical float"),
    (registered(["complex", "nan", "NaN"]), "canonical complex"),
    (registered(["bytes", "00 00"]), "canonical bytes"),
    (registered(["type", "a", "\ud800"]), "surrogate"),
    (registered(["dataclass", "a", "B", ["\ud800"], 1]), "surrogate"),
    (registered(["opaque", "\ud800", "x"]), "surrogate"),
]


def with_node(description: bytes, children: int = 2) -> bytes:
    argument = node(CUSTOM, *[node(LEAF)] * children, name="jaxexp.node", auxdata=description)
    tree = node(TUPLE, node(TUPLE, node(LIST, argument)), node(DICT))
    return of_values([aval("1")], [0] * children, in_tree=tree)


@each("description, match", HOSTILE)
def test_hostile_descriptions(description: bytes, match: str) -> None:
    blob = with_node(description)
    for read in (jaxexp.deserialize, jaxexp.inspect):
        with pytest.raises(DeserializationError, match=match) as error:
            read(blob)
        assert error.value.path == "in_tree.children[0].children[0].children[0]"
        assert len(str(error.value)) < 600


@each(
    "value",
    [
        ["dtype", "object"], ["int", hex(10**4300)], ["range", 0, ["int", hex(10**4301)], ["int", hex(10**4300)]],
        ["array", "uint8", [2], "0001"], ["float", "nan"], ["dict", [["complex", "0x0.0p+0", "nan"], 1]],
        ["array", "u1", [2], "00"], ["array", "object", [1], "00"], ["scalar", "u1", ""], ["set", ["list"]],
        ["dict", [["list"], 1]], ["range", "a", 1, 1], ["range", 0, 1, 0], ["slice", 1, 2, ["opaque", "a", "b"]],
        ["opaque", "function", "os.system"], ["type", "os", "system"], ["constant", "jax.numpy", "pi"],
        ["namedtuple", "os", "stat_result", ["x"], 1],
        ["dataclass", KIT, "Config", ["rate", "sizes", "color"], 1, 2, 3],
        ["dataclass", KIT, "Layer", ["weight", "bias", "units"], 1, 2, 3], ["enum", "re", "RegexFlag", "nothing"],
    ],
)  # fmt: skip
def test_data_that_cannot_be_made_is_left_to_generic_nodes(value: Any) -> None:
    assert not is_made(with_node(described(f"{KIT}:Node", kind="registered", data=value)))


def test_what_is_never_described() -> None:
    """JAX believes what a tree structure says about its own types."""
    for name in ("builtins:dict", "builtins:list", "builtins:tuple", "builtins:NoneType", "jaxexp:GenericNode"):
        for data in (None, ["list", "left", "right"], ["tuple", 1]):
            assert not is_made(with_node(described(name, kind="registered", data=data)))


def test_one_large_description_for_many_nodes_is_read_once(monkeypatch: Any) -> None:
    data = ["list", *(["float", float(i).hex()] for i in range(20_000))]
    count, from_json = 20, unittest.mock.Mock(side_effect=library_nodes.from_json)
    description = described(f"{KIT}:Node", ["x"], "registered", ["tuple", ["tuple", "x"], data])
    one = node(CUSTOM, node(LEAF), name="jaxexp.node", auxdata=description)
    tree = node(TUPLE, node(TUPLE, repeated(one, count)), node(DICT))
    blob = of_values([aval("1")], [0] * count, in_tree=tree)
    monkeypatch.setattr(library_nodes, "from_json", from_json)
    assert len(blob) < 2 * len(description)
    loaded = jaxexp.deserialize(blob)
    assert loaded.in_tree.num_leaves == count
    assert from_json.call_count < 2 * len(data)  # as many as for one node
    assert loaded.in_tree == jaxexp.deserialize(blob).in_tree
