"""Auxiliary data of pytree nodes as JSON, and classes that are found by their names."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import json
import math
import re
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._kernel.artifact.node import Description, shown
from jaxexp._kernel.codec import auxdata, library_nodes
from kit.compare import assert_same_values
from kit.corpus import arr
from kit.library_nodes import (
    MISSING,
    PLAIN,
    Color,
    Config,
    Flag,
    Layer,
    Node,
    Pair,
    Settings,
    described,
    written,
)

KIT = "kit.library_nodes"


# --- auxiliary data ---------------------------------------------------------------------------------------------------

DATA = [
    None, True, False, 0, -1, 2**53 - 1, 2**53, -(2**70), 10**4000, 1.5, -0.0, math.inf, 1 + 2j, "", "é\ud800",
    b"\xff\0", (), (1, (2,)), [], [1, [2.0]], {}, {"a": 1, 2: (None,)}, {1, 2}, frozenset({"a", "b"}),
    slice(1, None, 2), range(3), ..., np.dtype("float32"), jnp.dtype("bfloat16"), np.float32(1.5),
    np.asarray(2, jnp.bfloat16)[()], np.bool_(True), np.arange(6).reshape(2, 3), int, list, type(None), np.float32,
    jnp.float32, jnp.bfloat16, Pair, Node, Color.red, Pair(1, ("x",)), MISSING, collections.OrderedDict,
    {"deep": [({"x": (1.0,)},)]}, Config((1, 2)), Settings(config=Config(), more=[{"array": (1, ("a", "b"))}]),
]  # fmt: skip


@pytest.mark.parametrize("value", DATA, ids=[f"{i}-{type(value).__name__}" for i, value in enumerate(DATA)])
def test_data_comes_back(value: Any) -> None:
    stored = json.loads(json.dumps(auxdata.to_json(value)))
    assert json.dumps(stored).count("opaque") == 0
    found = auxdata.from_json(stored)
    assert type(found) is type(value)
    if value is MISSING or isinstance(value, type):
        assert found is value
    else:
        np.testing.assert_array_equal(found, value) if isinstance(value, np.ndarray) else assert_alike(found, value)
    assert isinstance(shown(stored), str)


def assert_alike(found: Any, value: Any) -> None:
    assert found == value
    assert repr(found) == repr(value) or isinstance(value, (set, frozenset, dict))


OPAQUE = {
    "function": (math.sin, "math.sin"),
    "jitted function": (jnp.sin, "sin"),
    "local function": (lambda x: x, "<lambda>"),
    "object": (PLAIN, "<object object>"),
    "class": (types.SimpleNamespace, "types.SimpleNamespace"),
    "module": (math, "module 'math'"),
    "string subclass": (enum.StrEnum("Names", "a").a, "a"),  # its class cannot be found
    "combined flag": (Flag.one | Flag.two, "Flag"),
    "large array": (np.zeros(1 << 17, "u1"), "uint8[131072], SHA-256 "),
    "array of objects": (np.array([None]), "None"),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_what_is_no_data_is_text(name: str) -> None:
    value, text = OPAQUE[name]
    for whole in (value, (1, [value])):
        stored = auxdata.to_json(whole)
        assert text in shown(stored)
        assert " at 0x" not in shown(stored)
        with pytest.raises(auxdata.NotDataError):
            auxdata.from_json(stored)
    assert stored == auxdata.to_json((1, [value]))


def test_modules_and_code_have_no_paths() -> None:
    """The paths are those of a machine and of its user."""
    code = test_items_of_dicts_may_come_in_any_order.__code__
    assert auxdata.text_of((np, [json])) == "tuple(module 'numpy', list(module 'json'))"
    assert auxdata.text_of(code) == "code of test_items_of_dicts_may_come_in_any_order"
    blob = written(Node({"x": arr(2)}, (np, code)))
    assert b"<code object" not in blob
    assert np.__file__.encode() not in blob


class WithPath:
    def __repr__(self) -> str:
        return "WithPath(/home/user)"

    def method(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...


@dataclasses.dataclass
class WithWidth(WithPath):
    width: int


class ListWithPath(list[int]):
    def __repr__(self) -> str:
        return "ListWithPath(/home/user)"


class BytesWithPath(bytes):
    __repr__ = WithPath.__repr__


METHODS = {
    "method": (WithPath().method, "test_auxdata.WithPath.method of test_auxdata.WithPath"),
    "method of a partial": (
        functools.partial(WithPath().method, 1),
        "partial(test_auxdata.WithPath.method of test_auxdata.WithPath, 1)",
    ),
    "method of a class": (WithPath.of_class, "test_auxdata.WithPath.of_class of test_auxdata.WithPath"),
    "method of data": (WithWidth(3).method, "test_auxdata.WithPath.method of WithWidth(width=3)"),
    "built-in method": (BytesWithPath().hex, "BytesWithPath.hex of test_auxdata.BytesWithPath"),
    "built-in method of data": (", ".join, "str.join of ', '"),
    "built-in method of a list": (ListWithPath([1]).append, "ListWithPath.append of ListWithPath(1)"),
    "built-in method of a class": (dict.fromkeys, "dict.fromkeys of builtins.dict"),
    "built-in function": (math.sin, "math.sin"),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_named(name: str) -> None:
    """The repr of a method's object may have paths. What is data in the object is a part of the text."""
    method, text = METHODS[name]
    found = auxdata.text_of(method)
    assert re.sub(r"[\w.]*test_auxdata", "test_auxdata", found) == text
    assert b"/home/user" not in written(Node({"x": arr(2)}, (method,)))


def test_long_and_deep_things_have_bounded_texts() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    described = Description(library_nodes.describe(Node, (("x",), deep), 1))
    assert described.is_opaque
    assert len(described.encoded) < 2000
    one, other = (auxdata.text_of("x" * 10_000 + end) for end in "ab")
    assert one != other
    assert len(one) < 2200


def test_items_of_dicts_may_come_in_any_order() -> None:
    one, other = ({"a": math.sin, "b": {"c": 1, "d": 2}}, {"b": {"d": 2, "c": 1}, "a": math.sin})
    loaded = jaxexp.deserialize(written(Node({"x": arr(2)}, one)))
    assert_same_values(jax.tree.leaves(loaded.call(Node({"x": arr(2)}, other))), [2 * arr(2)])


# --- classes ----------------------------------------------------------------------------------------------------------


class Trap(types.ModuleType):
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    def __hash__(cls) -> int:
        raise AssertionError("asked for its hash")

    __eq__ = object.__eq__


class TrapOfClass(metaclass=Meta):
    pass


class Impostor:
    """Says that it is a class."""

    @property
    def __class__(self) -> Any:
        raise AssertionError("asked for its class")


IMPOSTOR = Impostor()


def test_names_run_nothing(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "trap", Trap("trap"))
    monkeypatch.setitem(sys.modules, "nothing", None)
    monkeypatch.setitem(sys.modules, "impostor", IMPOSTOR)
    here = __name__
    assert sys.modules[here].IMPOSTOR is IMPOSTOR
    before = set(sys.modules)
    for name in (
        "trap:Pair", "nothing:Pair", "impostor:Pair", "not_there:Pair", "antigravity:Pair", ":", ".:.", f"{KIT}:",
        f"{KIT}:Pair.right", f"{KIT}:Pair.__class__", f"{here}:TrapOfClass", f"{here}:TrapOfClass.x",
        f"{here}:IMPOSTOR", f"{here}:IMPOSTOR.x", f"{KIT}:MISSING", f"{KIT}:double", f"{KIT}:.Pair", "os:system",
        "builtins:eval", "subprocess:Popen", "collections:namedtuple", "jax.numpy:__getattr__",
        f"{here}:test_names_run_nothing.<locals>.X",
    ):  # fmt: skip
        for kind in ("namedtuple", "registered"):
            assert library_nodes.node_data(Description(described(name, kind=kind))) is None, name
        for tag in (["type"], ["constant"], ["enum"], ["dataclass"]):
            value = [*tag, *name.split(":"), *{"enum": ["x"], "dataclass": [["x"], 1]}.get(tag[0], [])]
            if not (tag == ["constant"] and name.endswith("MISSING")):
                with pytest.raises(auxdata.NotDataError):
                    auxdata.from_json(value)
    assert set(sys.modules) == before
    found = library_nodes.node_data(Description(described(f"{KIT}:Pair")))
    assert found == (Pair, None)


@pytest.mark.parametrize("keys", [("left", "right"), ("right",), ("right", "left", "more"), ()])
def test_a_namedtuple_with_other_fields_is_not_used(keys: Any) -> None:
    assert library_nodes.node_data(Description(described(f"{KIT}:Pair", keys))) is None


def test_a_dataclass_with_other_fields_is_not_used() -> None:
    def node_data(keys: Any, data: Any) -> Any:
        return library_nodes.node_data(Description(described(f"{KIT}:Layer", keys, "registered", data)))

    assert node_data(["weight", "bias"], ["tuple", 3]) == (Layer, (3,))
    for keys, data in (
        (["bias", "weight"], ["tuple", 3]), (["weight"], ["tuple", 3]), (["weight", "bias"], ["tuple"]),
        (["weight", "bias"], None), (["weight", "bias"], ["list", 3]), (["weight", "bias"], ["tuple", 3, 4]),
        (["weight", ["item", "bias"]], ["tuple", 3]),
    ):  # fmt: skip
        assert node_data(keys, data) is None


class Swapped:
    """Its children have another order in each process, as some libraries'."""

    order = ("a", "b")

    def __init__(self, **children: Any) -> None:
        self.__dict__.update(children)


jax.tree_util.register_pytree_node(
    Swapped,
    lambda node: ([getattr(node, name) for name in Swapped.order], None),
    lambda _, children: Swapped(**dict(zip(Swapped.order, children, strict=True))),
)


def test_children_in_another_order_are_noticed(monkeypatch: Any) -> None:
    blob = written(Swapped(a=arr(2), b=arr(2, seed=1)), fun=lambda node: node.a - node.b)
    loaded = jaxexp.deserialize(blob)
    assert_same_values(loaded.call(Swapped(a=arr(2), b=arr(2, seed=1))), arr(2) - arr(2, seed=1))
    monkeypatch.setattr(Swapped, "order", ("b", "a"))
    with pytest.raises(
        jaxexp.ExportError, match=r"Swapped has the children b, a in this process, and a, b in the artif"
    ):
        jaxexp.deserialize(blob).call(Swapped(a=arr(2), b=arr(2, seed=1)))


def test_of_two_local_classes_neither_is_used() -> None:
    def node() -> Any:
        class Local(dict[str, Any]):
            pass

        jax.tree_util.register_pytree_node(
            Local, lambda d: (d.values(), tuple(d)), lambda keys, leaves: Local(zip(keys, leaves, strict=True))
        )
        return Local(x=arr(2))

    first = node()
    blob = written(first)
    assert type(jaxexp.deserialize(blob).call(first)) is type(first)
    second = node()
    loaded = jaxexp.deserialize(blob)
    assert "GenericNode" in str(loaded.in_tree)
    for value in (first, second):
        assert type(loaded.call(value)) is type(value)
