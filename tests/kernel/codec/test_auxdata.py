"""Auxiliary data of pytree nodes as JSON, and classes that are found by their names: reading them runs nothing."""

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
import typing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._kernel.artifact.node import Description, shown
from jaxexp._kernel.codec import nodes as library_nodes
from kit.compare import assert_same_values
from kit.corpus import arr
from kit.each import each
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
    replaced_name,
    written,
)

pytestmark = pytest.mark.jax
KIT = "kit.library_nodes"


DATA = [
    None, True, False, 0, -1, 2**53 - 1, 2**53, -(2**70), 10**4000, 1.5, -0.0, math.inf, 1 + 2j, "", "é\ud800",
    b"\xff\0", (), (1, (2,)), [], [1, [2.0]], {}, {"a": 1, 2: (None,)}, {1, 2}, frozenset({"a", "b"}),
    slice(1, None, 2), range(3), ..., np.dtype("float32"), jnp.dtype("bfloat16"), np.float32(1.5),
    np.asarray(2, jnp.bfloat16)[()], np.bool_(True), np.arange(6).reshape(2, 3), int, list, type(None), np.float32,
    jnp.float32, jnp.bfloat16, Pair, Node, Color.red, Pair(1, ("x",)), MISSING, collections.OrderedDict,
    {"deep": [({"x": (1.0,)},)]}, Config((1, 2)), Settings(config=Config(), more=[{"array": (1, ("a", "b"))}]),
]  # fmt: skip


@each("value", DATA)
def test_data_comes_back(value: Any) -> None:
    stored = json.loads(json.dumps(library_nodes.to_json(value)))
    assert json.dumps(stored).count("opaque") == 0
    found = library_nodes.from_json(stored)
    assert type(found) is type(value)
    if value is MISSING or isinstance(value, type):
        assert found is value
    elif isinstance(value, np.ndarray):
        np.testing.assert_array_equal(found, value)
    else:
        assert found == value
        assert repr(found) == repr(value) or isinstance(value, (set, frozenset, dict))
    assert isinstance(shown(stored), str)


OPAQUE = [
    (math.sin, "math.sin"),
    (jnp.sin, "sin"),
    (lambda x: x, "<lambda>"),
    (PLAIN, "<object object>"),
    (types.SimpleNamespace, "types.SimpleNamespace"),
    (math, "module 'math'"),
    (enum.StrEnum("Names", "a").a, "a"),  # its class cannot be found
    (Flag.one | Flag.two, "Flag"),
    (np.zeros(1 << 17, "u1"), "uint8[131072], SHA-256 "),
    (np.array([None]), "None"),
]


@each("value, text", OPAQUE)
def test_what_is_no_data_is_text(value: Any, text: str) -> None:
    for whole in (value, (1, [value])):
        stored = library_nodes.to_json(whole)
        assert text in shown(stored)
        assert " at 0x" not in shown(stored)
        with pytest.raises(library_nodes.NotDataError):
            library_nodes.from_json(stored)
    assert stored == library_nodes.to_json((1, [value]))


def test_modules_and_code_have_no_paths() -> None:
    """The paths are those of a machine and of its user."""
    code = test_modules_and_code_have_no_paths.__code__
    assert library_nodes.text_of((np, [json])) == "tuple(module 'numpy', list(module 'json'))"
    assert library_nodes.text_of(code) == "code of test_modules_and_code_have_no_paths"
    blob = written(Node({"x": arr(2)}, (np, code, WithPath().method)))
    assert not any(text in blob for text in (b"<code object", b"/home/user", np.__file__.encode()))


class WithPath(list[Any]):
    def __repr__(self) -> str:
        return "WithPath(/home/user)"

    def method(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...


@dataclasses.dataclass
class WithWidth:
    width: int

    def method(self) -> None: ...


class BytesWithPath(bytes):
    __repr__ = WithPath.__repr__


@each(
    "method, text",
    [
        (functools.partial(WithPath([1]).method, 1), "partial(test_auxdata.WithPath.method of WithPath(1), 1)"),
        (WithPath.of_class, "test_auxdata.WithPath.of_class of test_auxdata.WithPath"),
        (WithWidth(3).method, "test_auxdata.WithWidth.method of WithWidth(width=3)"),
        (BytesWithPath().hex, "BytesWithPath.hex of test_auxdata.BytesWithPath"),
        (", ".join, "str.join of ', '"),
        (dict.fromkeys, "dict.fromkeys of builtins.dict"),
        (math.sin, "math.sin"),
    ],
)
def test_methods_are_named(method: Any, text: str) -> None:
    assert re.sub(r"[\w.]*test_auxdata", "test_auxdata", library_nodes.text_of(method)) == text


def test_long_and_deep_things_have_bounded_texts() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    described = Description(library_nodes.describe(Node, (("x",), deep), 1))
    assert described.is_opaque
    assert len(described.encoded) < 2000
    one, other = (library_nodes.text_of("x" * 10_000 + end) for end in "ab")
    assert one != other
    assert len(one) < 2200


def test_items_of_dicts_may_come_in_any_order() -> None:
    one, other = ({"a": math.sin, "b": {"c": 1, "d": 2}}, {"b": {"d": 2, "c": 1}, "a": math.sin})
    loaded = jaxexp.deserialize(written(Node({"x": arr(2)}, one)))
    assert_same_values(jax.tree.leaves(loaded.call(Node({"x": arr(2)}, other))), [2 * arr(2)])


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
                with pytest.raises(library_nodes.NotDataError):
                    library_nodes.from_json(value)
    assert set(sys.modules) == before
    found = library_nodes.node_data(Description(described(f"{KIT}:Pair")))
    assert found == (Pair, None)


def test_a_class_with_other_fields_is_not_used() -> None:
    def node_data(name: str, keys: Any, kind: str, data: Any = None) -> Any:
        return library_nodes.node_data(Description(described(f"{KIT}:{name}", keys, kind, data)))

    for keys in (("left", "right"), ("right",), ("right", "left", "more"), ()):
        assert node_data("Pair", keys, "namedtuple") is None
    assert node_data("Layer", ["weight", "bias"], "registered", ["tuple", 3]) == (Layer, (3,))
    for keys, data in (
        (["bias", "weight"], ["tuple", 3]), (["weight"], ["tuple", 3]), (["weight", "bias"], ["tuple"]),
        (["weight", "bias"], None), (["weight", "bias"], ["list", 3]), (["weight", ["item", "bias"]], ["tuple", 3]),
    ):  # fmt: skip
        assert node_data("Layer", keys, "registered", data) is None
    for fields in (["sizes", "rate"], ["rate", "sizes", "color"], ["sizes", "rate", "color", "more"]):
        with pytest.raises(library_nodes.NotDataError):
            library_nodes.from_json(["dataclass", KIT, "Config", fields, *[1] * len(fields)])


def test_of_two_local_classes_neither_is_used() -> None:
    def node() -> Any:
        local = type("Local", (dict,), {})
        jax.tree_util.register_pytree_node(
            local, lambda d: (d.values(), tuple(d)), lambda keys, leaves: local(zip(keys, leaves, strict=True))
        )
        return local(x=arr(2))

    first = node()
    blob = written(first)
    assert type(jaxexp.deserialize(blob).call(first)) is type(first)
    second = node()
    loaded = jaxexp.deserialize(blob)
    assert "GenericNode" in str(loaded.in_tree)
    for value in (first, second):
        assert type(loaded.call(value)) is type(value)


@dataclasses.dataclass(frozen=True)
class Wide(Config, typing.Generic[typing.TypeVar("T")]):  # type: ignore[misc]
    width: int = 3
    kind: typing.ClassVar[str] = "wide"
    hidden: int = dataclasses.field(default=1, init=False, repr=False, compare=False)

    @functools.cached_property
    def area(self) -> int:
        return self.width**2

    @property
    def half(self) -> float:
        return self.width / 2


def test_only_fields_are_stored() -> None:
    wide = Wide((1,), width=5)
    object.__setattr__(wide, "hidden", 7)
    before = library_nodes.to_json(wide)
    assert wide.area == 25
    stored = library_nodes.to_json(wide)
    assert stored == before
    assert stored[:4] == ["dataclass", __name__, "Wide", ["sizes", "rate", "color", "width", "hidden"]]
    found = library_nodes.from_json(stored)
    assert (found, found.hidden, found.sizes, found.area, found.half) == (wide, 7, (1, 1), 25, 2.5)
    assert shown(stored) == "Wide(sizes=(1, 1), rate=0.5, color=Color.red, width=5, hidden=7)"


def ran(*_: Any) -> typing.NoReturn:
    raise AssertionError("ran")


def refused(base: type = object, frozen: bool = True, eq: bool = True, **defined: Any) -> type:
    made: type = type("Refused", (base,), {"__annotations__": {"x": object}, "__module__": __name__, **defined})
    return dataclasses.dataclass(frozen=frozen, eq=eq)(made)  # type: ignore[call-overload, no-any-return]


class CallingMeta(type):
    def __call__(cls, *args: Any) -> Any:
        ran()


class Descriptor:
    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else ran()

    def __set__(self, instance: Any, value: Any) -> None:
        ran()


REFUSED: dict[str, Any] = {
    "not frozen": lambda: refused(frozen=False),
    "equal by identity": lambda: refused(eq=False),
    "own __eq__": lambda: refused(__eq__=ran, __hash__=object.__hash__),
    "own __hash__": lambda: refused(__hash__=ran),
    "own __new__": lambda: refused(__new__=lambda cls, *_: ran()),
    "own __getattribute__": lambda: refused(__getattribute__=ran),
    "own __getattr__": lambda: refused(__getattr__=ran),
    "own __del__": lambda: refused(__del__=lambda _: None),
    "own __class__": lambda: refused(__class__=property(ran)),
    "a descriptor": lambda: refused(x=Descriptor()),
    "a dict": lambda: refused(dict),
    "an exception": lambda: refused(ValueError),
    "a subclass that is none": lambda: type("Refused", (Config,), {"__module__": __name__}),
    "a metaclass": lambda: dataclasses.dataclass(frozen=True)(
        CallingMeta("Refused", (), {"__annotations__": {"x": int}})
    ),
    "no dataclass": lambda: type("Refused", (), {"__module__": __name__}),
    "nothing else": refused,
}


@each("what", REFUSED)
def test_classes_with_more_than_fields_are_not_made(what: str, monkeypatch: Any) -> None:
    cls = REFUSED[what]()
    monkeypatch.setitem(globals(), "Refused", cls)
    fields = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    stored = ["dataclass", __name__, "Refused", fields, *[1] * len(fields)]
    if what == "nothing else":
        found = library_nodes.from_json(stored)
        assert (type(found), found.x) == (cls, 1)
        return
    with pytest.raises(library_nodes.NotDataError):
        library_nodes.from_json(stored)
    if what in ("not frozen", "equal by identity", "own __hash__", "an exception"):  # instances of these are text
        assert library_nodes.to_json(cls(1))[0] == "opaque"


def test_instances_with_more_than_data_are_text() -> None:
    @dataclasses.dataclass(frozen=True)
    class Local:
        x: int

    more, less = Config(), Settings(config=Config())
    object.__setattr__(more, "cache", {})
    object.__delattr__(less, "more")
    for value in (more, less, Config((np.ones(2),)), Local(1)):  # type: ignore[arg-type]
        assert library_nodes.to_json(value)[0] == "opaque"
    stored = library_nodes.to_json(Config((math.sin,)))  # type: ignore[arg-type]
    assert "math.sin" in shown(stored)
    with pytest.raises(library_nodes.NotDataError):
        library_nodes.from_json(stored)


class WithCache:
    __slots__ = ("cache",)


@dataclasses.dataclass(frozen=True, slots=True)
class Cached(WithCache):
    x: Any


def test_slots_of_a_base_class_are_no_fields() -> None:
    value = Cached(1)
    stored = library_nodes.to_json(value)
    assert stored == ["dataclass", __name__, "Cached", ["x"], 1]
    assert library_nodes.from_json(stored) == value
    object.__setattr__(value, "cache", {})
    assert library_nodes.to_json(value)[0] == "opaque"


NAN = [
    lambda: math.nan * 1,
    lambda: complex(0, math.nan),
    lambda: {"a": np.float32("nan")},
    lambda: ((1.0, math.nan * 1), (Config((1,), rate=-math.nan),)),
]


@each("nan", NAN)
def test_nan_is_the_same_nan(nan: Any) -> None:
    """Which Python denies, and so do the trees of JAX: a function could never be called with what it was made of."""
    given = Node({"x": arr(3)}, nan())
    blob = written(given)
    loaded = jaxexp.deserialize(blob)
    assert loaded == jaxexp.deserialize(blob)
    for node in (given, Node({"x": arr(3)}, nan())):
        found = loaded.call(node)
        assert type(found) is Node
        assert_same_values(found.children["x"], 2 * arr(3))
        assert library_nodes.to_json(found.aux) == library_nodes.to_json(given.aux)
    with pytest.raises(jaxexp.errors.ExportError, match="auxiliary data"):
        loaded.call(Node({"x": arr(3)}, 1.0))


def test_a_node_comes_back_with_its_configuration() -> None:
    """Of a function that makes it: there is no argument from which the class could be known."""
    config = Settings(config=Config((1, 2)))
    found = jaxexp.deserialize(written(fun=lambda: Node({"x": arr(3)}, config))).call()
    assert type(found) is Node
    assert found.aux == config
    assert_same_values(found.children["x"], arr(3))


def test_another_configuration_is_refused() -> None:
    blob = written(Node({"x": arr(3)}, Config((1, 2))))
    loaded = jaxexp.deserialize(blob)
    assert_same_values(jax.tree.leaves(loaded.call(Node({"x": arr(3)}, Config((1, 2))))), [2 * arr(3)])
    with pytest.raises(jaxexp.errors.ExportError, match="another tree structure"):
        loaded.call(Node({"x": arr(3)}, Config((1, 3))))
    assert "rate=0.5" in repr(jaxexp.deserialize(replaced_name(blob)).in_tree)
