"""Hostile descriptions of pytree nodes."""

from __future__ import annotations

import math
from typing import Any

import jax
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._kernel.codec import auxdata, classes, library_nodes
from kit import wire
from kit.corpus import arr
from kit.library_nodes import (
    Node,
    described,
    written,
)

KIT = "kit.library_nodes"


HOSTILE: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"\xff{", "do not describe|codec"),
    "empty": (b"", "Expecting value"),
    "a list": (b"[]", "do not describe"),
    "no fields": (b"{}", "do not describe"),
    "another version": (described("a:B").replace(b'"version":1', b'"version":2'), "version 2"),
    "another kind": (described("a:B", kind="mystery"), "kind 'mystery'"),
    "kind is a list": (described("a:B", kind=["namedtuple"]), "kind"),  # type: ignore[arg-type]
    "a class of one name": (described("a:B").replace(b'["a","B"]', b'["a"]'), "1 texts where there should be 2"),
    "a class of numbers": (described("a:B").replace(b'["a","B"]', b"[1,2]"), "texts"),
    "keys are text": (described("a:B").replace(b'["right","left"]', b'"ab"'), "canonical"),
    "keys are numbers": (described("a:B", [1, 2]), "do not describe"),
    "two equal keys": (described("a:B", ["x", "x"]), "two children"),
    "equal keys of two kinds": (described("a:B", ["x", ["item", "x"]], "registered"), "two children"),
    "an unknown key": (described("a:B", [["other", "x"]], "registered"), "key"),
    "a key of a bool": (described("a:B", [["item", True]], "registered"), "key"),
    "a namedtuple of items": (described("a:B", [["item", "x"]]), "not fields"),
    "a namedtuple with data": (described("a:B", data=1), "not fields"),
    "white space": (described("a:B") + b" ", "canonical"),
    "more fields": (described("a:B", more=1), "canonical"),
    "a field twice": (described("a:B").replace(b'"version":1', b'"version":1,"version":1'), "canonical"),
    "a float": (described("a:B", kind="registered", data=1.5), "number"),
    "infinity": (described("a:B", kind="registered", data=math.inf), "number"),
    "a large number": (described("a:B", kind="registered", data=2**53), "large number"),
    "a very large number": (described("a:B", kind="registered").replace(b"null", b"1" * 5000), "digits|Exceeds"),
    "an unknown tag": (described("a:B", kind="registered", data=["what", 1]), "tag 'what'"),
    "no tag": (described("a:B", kind="registered", data=[]), "should be a value"),
    "an object": (described("a:B", kind="registered", data={"a": 1}), "should be a value"),
    "a type without a name": (described("a:B", kind="registered", data=["type", "a"]), "texts"),
    "a slice of two": (described("a:B", kind="registered", data=["slice", 1, 2]), "parts"),
    "a dict of no pairs": (described("a:B", kind="registered", data=["dict", [1]]), "pairs"),
    "a namedtuple that is short": (described("a:B", kind="registered", data=["namedtuple", "a", "B", ["x"]]), "fields"),
    "a dataclass that is long": (described("a:B", kind="registered", data=["dataclass", "a", "B", [], 1]), "fields"),
    "an array of a negative size": (described("a:B", kind="registered", data=["array", "u1", [-1], ""]), "shape"),
    "an integer of no digits": (described("a:B", kind="registered", data=["int", "x"]), "canonical int"),
    "an integer in decimals": (described("a:B", kind="registered", data=["int", "99999999999999999"]), "canonical int"),
    "a number in words": (described("a:B", kind="registered", data=["float", "one"]), "canonical float"),
    "a float too large": (described("a:B", kind="registered", data=["float", "0x1p99999"]), "canonical float"),
    "another NaN": (described("a:B", kind="registered", data=["float", "-nan"]), "canonical float"),
    "NaN in capitals": (described("a:B", kind="registered", data=["complex", "nan", "NaN"]), "canonical complex"),
    "half a byte": (described("a:B", kind="registered", data=["bytes", "0"]), "canonical bytes"),
    "bytes with spaces": (described("a:B", kind="registered", data=["bytes", "00 00"]), "canonical bytes"),
    "an array whose shape is text": (described("a:B", kind="registered", data=["array", "u1", "", ""]), "shape"),
    "a class of half a character": (described("a:\ud800"), "surrogate"),
    "a key of half a character": (described("a:B", ["\udfff", "x"]), "surrogate"),
    "a type of half a character": (described("a:B", kind="registered", data=["type", "a", "\ud800"]), "surrogate"),
    "a field of half a character": (
        described("a:B", kind="registered", data=["dataclass", "a", "B", ["\ud800"], 1]), "surrogate",
    ),
    "a function of half a character's type": (
        described("a:B", kind="registered", data=["opaque", "\ud800", "x"]), "surrogate",
    ),
    "deep data": (described("a:B", kind="registered").replace(b"null", b'["list",' * 65 + b"1" + b"]" * 65), "levels"),
    "very deep JSON": (b"[" * 200_000, "do not describe|levels"),
    "a deep end": (described("a:B", kind="registered").replace(b"null", b"[" * 9000 + b"]" * 9000), "descr|value"),
}  # fmt: skip


def hostile(description: bytes, children: int = 2) -> bytes:
    """An artifact whose argument is a node of this description."""

    class Any_(list[Any]):  # noqa: N801
        pass

    jax.tree_util.register_pytree_node(Any_, lambda n: (tuple(n), None), lambda _, leaves: Any_(leaves))
    name = f"{'x' * 11}"
    jaxexp.register_pytree_node_serialization(
        Any_, serialized_name=f"{name}{id(Any_)}", serialize_auxdata=lambda _: description, deserialize_auxdata=bytes
    )
    blob = bytearray(jaxexp.export(jax.jit(lambda t: 0))([Any_([arr(1)] * children)]).serialize(trailer=False))
    at, _ = wire.locate(blob, "in_tree.children.0.children.0.children.0.custom_name")
    blob[at : at + 4 + 12] = (11).to_bytes(4, "little") + b"jaxexp.node\0"
    return bytes(blob)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_descriptions(name: str) -> None:
    description, match = HOSTILE[name]
    blob = hostile(description)
    with pytest.raises(jaxexp.DeserializationError, match=match) as error:
        jaxexp.deserialize(blob)
    assert error.value.path == "in_tree.children[0].children[0].children[0]"
    assert len(str(error.value)) < 600
    assert "jaxexp.node" in jaxexp.inspect(blob).in_tree


@pytest.mark.parametrize(
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
    ids=str,
)  # fmt: skip
def test_data_that_cannot_be_made_is_left_to_generic_nodes(value: Any) -> None:
    loaded = jaxexp.deserialize(hostile(described(f"{KIT}:Node", kind="registered", data=value)))
    assert "GenericNode" in str(loaded.in_tree)
    assert loaded.call([{"right": arr(1), "left": arr(1)}]) == 0


@pytest.mark.parametrize(
    "name", ["builtins:dict", "builtins:list", "builtins:tuple", "builtins:NoneType", "jaxexp:GenericNode"]
)
def test_what_is_never_described(name: str) -> None:
    """JAX believes what a tree structure says about its own types."""
    for data in (None, ["list", "left", "right"], ["tuple", 1]):
        loaded = jaxexp.deserialize(hostile(described(name, kind="registered", data=data)))
        assert "GenericNode" in str(loaded.in_tree)
        assert loaded.call([{"right": arr(1), "left": arr(1)}]) == 0


def test_wrong_number_of_children() -> None:
    blob = hostile(described("a:B"), children=3)
    with pytest.raises(jaxexp.DeserializationError, match=r"3 children, on which .*a\.B has 2 children"):
        jaxexp.deserialize(blob)
    assert "jaxexp.node(*, *, *)" in jaxexp.inspect(blob).in_tree


def test_one_large_description_for_many_nodes_is_read_once(monkeypatch: Any) -> None:
    data = ["list", *(["float", float(i).hex()] for i in range(20_000))]
    count, made = 20, []
    value = [Node({"x": arr(1)}, "placeholder")] * count
    description = described(f"{KIT}:Node", ["x"], "registered", ["tuple", ["tuple", "x"], data])
    original = library_nodes.describe
    monkeypatch.setattr(library_nodes, "describe", lambda *args: description if args[0] is Node else original(*args))
    blob = written(value, fun=lambda t: 0)
    monkeypatch.setattr(auxdata, "from_json", count_calls(auxdata.from_json, made))
    assert len(blob) < 2 * len(description)
    loaded = jaxexp.deserialize(blob)
    assert loaded.in_tree.num_leaves == count
    assert len(made) < 2 * len(data)  # as many as for one node
    assert loaded.in_tree == jaxexp.deserialize(blob).in_tree


def count_calls(function: Any, made: list[Any]) -> Any:
    def counted(value: Any) -> Any:
        made.append(None)
        return function(value)

    return counted


def test_the_name_belongs_to_jaxexp() -> None:
    for library in (jaxexp, jax_export):
        with pytest.raises(ValueError, match=r"jaxexp\.node"):
            library.register_pytree_node_serialization(
                Node, serialized_name="jaxexp.node", serialize_auxdata=repr, deserialize_auxdata=repr
            )  # type: ignore[arg-type]
    assert classes.is_registered(jaxexp.GenericNode)
