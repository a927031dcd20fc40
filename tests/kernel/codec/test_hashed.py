"""Every road by which bytes become hashed objects is limited: who writes an artifact chooses the hashes of numbers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import pytest

import jaxexp
from jaxexp._errors import SerializationTypeError
from jaxexp._kernel.artifact.node import Description
from jaxexp._kernel.codec import auxdata, dict_keys, hashed
from kit import costs, hostile
from kit.layout import CUSTOM, NONE, aval, function, node, of_values, table
from kit.library_nodes import Node, described
from kit.parts import put_together

KIT = "kit.library_nodes"
PRIME = 2**61 - 1  # Python's hash of an integer is its remainder


def number(i: int) -> Any:
    return ["int", hex(i * PRIME)]


# --- values of auxiliary data whose hashes an artifact can choose -----------------------------------------------------

CHOSEN: dict[str, Callable[[int], Any]] = {
    "int": number,
    "complex": lambda i: ["complex", float(-1000003 * i).hex(), float(i).hex()],
    "tuple": lambda i: ["tuple", 1, "x", number(i)],
    "tuple in tuple": lambda i: ["tuple", ["tuple", number(i), None]],
    "frozenset": lambda i: ["frozenset", number(i)],
    "range": lambda i: ["range", number(i), ["int", hex(i * PRIME + 1)], 1],
    "complex scalar": lambda i: ["scalar", "complex128", _complex128(complex(-1000003 * i, i))],
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


def _complex128(value: complex) -> str:
    import numpy as np

    return np.complex128(value).tobytes().hex()


def aux(data: Any) -> bytes:
    """An artifact with one node of a loaded class, and this auxiliary data."""
    description = described(f"{KIT}:Node", [], "registered", ["tuple", ["tuple"], data])
    return put_together(function(out_tree=node(CUSTOM, name="jaxexp.node", auxdata=description)))


def is_made(blob: bytes) -> bool:
    return "GenericNode" not in str(jaxexp.deserialize(blob).out_tree)


def test_the_table_has_all_tags() -> None:
    """A tag that is new has to be judged: can an artifact choose the hashes of its values, does it hash its parts?"""
    judged = {make(1)[0] for make in CHOSEN.values()} | {make([])[0] for make in CONTAINERS.values()}
    not_hashable = {"list", "array"}
    with_secret_or_few = {"bytes", "float", "dtype", "type", "enum", "constant", "ellipsis"}  # of one hash
    assert judged | not_hashable | with_secret_or_few | {"opaque", "slice"} == set(auxdata._FROM)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("kind", CHOSEN)
def test_sets_and_dicts_of_auxiliary_data(kind: str, container: str) -> None:
    values = list(map(CHOSEN[kind], range(1, hashed.MOST_OF_ONE_HASH + 2)))
    assert len({hash(auxdata.from_json(value)) for value in values}) == 1, "this would test nothing"
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
    with pytest.raises(ValueError, match="65537 keys or elements that are not texts"):
        hashed.most_of_one_hash(range(hashed.MOST_VALUES + 1))
    assert hashed.most_of_one_hash(range(hashed.MOST_VALUES)) == 1
    assert hashed.most_of_one_hash([str(i) for i in range(hashed.MOST_VALUES + 1)]) == 1


def test_keys_of_dicts() -> None:
    for name in ("jaxexp.dict", "jaxexp.OrderedDict"):
        for tagged in (number, lambda i: ["tuple", number(i), ["None"]]):
            for count in (64, 65):
                keys = [tagged(i) for i in range(count)]
                data = json.dumps({"version": 1, "keys": keys}, separators=(",", ":")).encode()
                blob = put_together(function(out_tree=node(CUSTOM, *[node(NONE)] * count, name=name, auxdata=data)))
                if count == 64:
                    assert jaxexp.deserialize(blob).out_tree.num_leaves == 0
                    continue
                with pytest.raises(jaxexp.DeserializationError, match="65 keys or elements with the hash"):
                    jaxexp.deserialize(blob)


def test_keys_of_an_ordered_dict_as_jax_writes_them() -> None:
    keys = json.dumps([i * PRIME for i in range(65)]).encode()
    tree = node(CUSTOM, *[node(NONE)] * 65, name="collections.OrderedDict", auxdata=keys)
    with pytest.raises(jaxexp.DeserializationError, match="65 keys or elements with the hash"):
        jaxexp.deserialize(put_together(function(out_tree=tree)))


def test_what_would_be_refused_is_not_written() -> None:
    with pytest.raises(SerializationTypeError, match="it has 65 keys or elements with the hash 0"):
        dict_keys.keys_to_bytes([i * PRIME for i in range(65)], SerializationTypeError)
    with pytest.raises(SerializationTypeError, match="more than 4300 digits"):
        dict_keys.keys_to_bytes([(10**4300,)], SerializationTypeError)
    assert dict_keys.keys_from_bytes(dict_keys.keys_to_bytes([10**4299], SerializationTypeError)) == (10**4299,)


@pytest.mark.parametrize("key", [jax.tree_util.GetAttrKey("\ud800"), jax.tree_util.DictKey(10**4300)], ids=type)
def test_keys_that_have_no_text_are_positions(key: Any) -> None:
    class Keyed:
        pass

    jax.tree_util.register_pytree_with_keys(Keyed, lambda _: ([(key, 1.0)], None), lambda _, children: Keyed())
    from jaxexp._kernel.codec import library_nodes

    assert library_nodes._key(key, 3).kind == "position"
    assert Description(library_nodes.describe(Keyed, None, 1)).names == (0,)


def test_a_class_whose_name_has_no_text() -> None:
    odd = type("Odd", (), {"__qualname__": "\ud800"})
    jax.tree_util.register_pytree_node(odd, lambda _: ((), None), lambda _, __: odd())
    with pytest.raises(jaxexp.ExportError, match="surrogate"):
        jaxexp.export(jax.jit(lambda x: 0))(odd()).serialize()


# --- what can be made can be printed, compared and hashed -------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        "\ud800", ["opaque", "function", "\ud800"], ["opaque", "a.B", "\udfff"], ["int", hex(10**4300)],
        ["int", hex(10**4299)], ["float", "nan"], ["array", "float32", [2], "0000803f0000803f"],
        ["list", ["array", "float32", [1], "0000803f"]], ["scalar", "float32", "0000c07f"],
        ["frozenset", ["scalar", "float32", "0000c07f"]],
    ],
    ids=lambda data: json.dumps(data)[:40],
)  # fmt: skip
@pytest.mark.parametrize("cls", ["Node", "NotThere"])
def test_trees_can_be_printed_compared_and_hashed(data: Any, cls: str) -> None:
    description = described(f"{KIT}:{cls}", [["item", "\ud800"]], "registered", ["tuple", ["tuple", "x"], data])
    tree = node(CUSTOM, node(NONE), name="jaxexp.node", auxdata=description)
    blob = put_together(function(out_tree=tree))
    one, other = jaxexp.deserialize(blob), jaxexp.deserialize(blob)
    assert one.out_tree == other.out_tree
    assert hash(one.out_tree) == hash(other.out_tree)
    for text in (repr(one.out_tree), str(one), one._repr_html_(), str(jaxexp.inspect(blob))):
        text.encode()


def test_a_text_that_is_all_of_the_auxiliary_data() -> None:
    """JAX prints it as it is."""
    for text in ("\ud800", "\u202e", "x"):
        description = described(f"{KIT}:Node", [], "registered", text)
        blob = put_together(function(out_tree=node(CUSTOM, name="jaxexp.node", auxdata=description)))
        assert is_made(blob) == (text != "\ud800")
        assert jaxexp.deserialize(blob).out_tree == jaxexp.deserialize(blob).out_tree
        repr(jaxexp.deserialize(blob).out_tree).encode()


def test_keys_that_are_no_number() -> None:
    """As JAX would write them; jaxexp writes such keys in its own encoding."""
    tree = node(CUSTOM, node(NONE), node(NONE), name="collections.OrderedDict", auxdata=b"[NaN, -Infinity]")
    loaded = jaxexp.deserialize(put_together(function(out_tree=tree)))
    assert jaxexp.deserialize(loaded.serialize()).out_tree == loaded.out_tree


def test_arrays_in_results_stay_what_they_are() -> None:
    """Only the tree that is compared has a generic node."""
    import numpy as np

    value = Node({"x": jax.numpy.ones(2)}, np.arange(3.0))
    blob = bytes(jaxexp.export(jax.jit(lambda x: Node({"x": x}, np.arange(3.0))))(value.children["x"]).serialize())
    loaded = jaxexp.deserialize(blob)
    assert "GenericNode" in str(loaded.out_tree)
    found = loaded.call(value.children["x"])
    assert type(found) is Node
    np.testing.assert_array_equal(found.aux, value.aux)


# --- cost -------------------------------------------------------------------------------------------------------------


def _keys_of_children(count: int) -> bytes:
    description = described("x:Y", [["item", i * PRIME] for i in range(count)], "registered")
    return put_together(function(out_tree=node(CUSTOM, *[node(NONE)] * count, name="jaxexp.node", auxdata=description)))


def _set_of_sets(levels: int, number_: int = 0) -> Any:
    """Sets of 40 sets of one hash, in each other. All but one of their elements are equal."""
    if levels == 0:
        return number(number_ + 1)
    return ["frozenset", *(_set_of_sets(levels - 1, i) for i in range(39)), _set_of_sets(levels - 1, 100 + number_)]


LARGE = {
    "keys of a dict": lambda: aux(["dict", *([number(i), None] for i in range(50_000))]),
    "tuples": lambda: aux(["frozenset", *(["tuple", *[1] * 20, number(i)] for i in range(24_000))]),
    "dataclasses": lambda: aux(["set", *(CHOSEN["dataclass"](i) for i in range(16_000))]),
    "sets in sets": lambda: aux(_set_of_sets(3)),
    "keys of children": lambda: _keys_of_children(40_000),
    "a division": lambda: aux(["range", 0, ["int", hex(10**1_000_000)], ["int", hex(10**500_000)]]),
    "an integer": lambda: aux(["int", "0x" + "f" * 2_000_000]),
}


@pytest.mark.parametrize(
    "way", [jaxexp.deserialize, jaxexp.inspect, "policy"], ids=["deserialize", "inspect", "policy"]
)
@pytest.mark.parametrize("family", LARGE)
def test_cost_of_auxiliary_data(family: str, way: Any) -> None:
    blob = LARGE[family]()
    assert len(blob) > 1_000_000
    jaxexp.deserialize(aux(None))
    start = time.process_time()
    if way == "policy":
        with pytest.raises(jaxexp.PolicyError):
            jaxexp.deserialize(blob, policy=jaxexp.Policy(unregistered_nodes=False))
    else:
        way(blob)
    assert time.process_time() - start < costs.allowed_seconds(len(blob), costs.slowness())


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sharded", [False, True])
def test_shapes_of_one_hash(is_sharded: bool) -> None:
    """JAX keeps abstract values in a table, by their shapes."""
    for count in (64, 65):
        sizes = hostile.sizes_of_one_hash(count)  # what was read before changes no outcome
        assert len(set(map(hash, sizes))) == 1
        avals = [aval(*map(str, one)) for one in sizes for _ in range(3)]  # equal ones are one
        spec = table("PartitionSpec", partitions=[table("PartitionSpecOneAxis", axes=["x"])])
        if is_sharded:
            pairs = [(i, 0) for i in range(len(avals))]
            blob = hostile.sharded([hostile.mesh(["x"])], [table("NamedSharding", spec=spec)], avals, pairs)
        else:
            blob = of_values(avals, list(range(len(avals))))
        assert len(jaxexp.inspect(blob).arguments) == 3 * count
        if count == 64:
            assert len(jaxexp.deserialize(blob).in_avals) == 3 * count
            continue
        with pytest.raises(
            jaxexp.DeserializationError, match="shapes of different hashes, found more than 64"
        ) as error:
            jaxexp.deserialize(blob)
        assert error.value.path == "in_avals[192].shape"


def test_many_shapes_of_different_hashes() -> None:
    avals = [aval(str(i), "2") for i in range(1, 1000)]
    assert jaxexp.deserialize(of_values(avals, list(range(999)))).in_avals[998].shape == (999, 2)


def test_cost_of_shapes() -> None:
    blob = hostile.shapes_of_one_hash(1_000_000)
    jaxexp.deserialize(aux(None))
    start = time.process_time()
    with pytest.raises(jaxexp.DeserializationError):
        jaxexp.deserialize(blob)
    assert time.process_time() - start < costs.allowed_seconds(len(blob), costs.slowness())
