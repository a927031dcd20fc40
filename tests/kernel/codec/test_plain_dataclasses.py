"""Frozen dataclasses as auxiliary data: which ones are only their fields, and that reading them runs nothing."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp._kernel.artifact.node import shown
from jaxexp._kernel.codec import auxdata
from kit.compare import assert_same_values
from kit.corpus import arr
from kit.library_nodes import Config, Node, Settings, replaced_name, written


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
    before = auxdata.to_json(wide)
    assert wide.area == 25
    stored = auxdata.to_json(wide)
    assert stored == before
    assert stored[:4] == ["dataclass", __name__, "Wide", ["sizes", "rate", "color", "width", "hidden"]]
    found = auxdata.from_json(stored)
    assert (found, found.hidden, found.sizes, found.area, found.half) == (wide, 7, (1, 1), 25, 2.5)
    assert shown(stored) == "Wide(sizes=(1, 1), rate=0.5, color=Color.red, width=5, hidden=7)"


def ran(*_: Any) -> typing.NoReturn:
    raise AssertionError("ran")


def refused(base: type = object, frozen: bool = True, eq: bool = True, **defined: Any) -> type:
    """A dataclass that defines something of its own, where the artifact's names are looked for."""
    made: type = type("Refused", (base,), {"__annotations__": {"x": object}, "__module__": __name__, **defined})
    return dataclasses.dataclass(frozen=frozen, eq=eq)(made)  # type: ignore[call-overload, no-any-return]


class Meta(type):
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
    "a metaclass": lambda: dataclasses.dataclass(frozen=True)(Meta("Refused", (), {"__annotations__": {"x": int}})),
    "no dataclass": lambda: type("Refused", (), {"__module__": __name__}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_classes_with_more_than_fields_are_not_made(what: str, monkeypatch: Any) -> None:
    cls = REFUSED[what]()
    monkeypatch.setitem(globals(), "Refused", cls)
    fields = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    with pytest.raises(auxdata.NotDataError):
        auxdata.from_json(["dataclass", __name__, "Refused", fields, *[1] * len(fields)])


def test_one_with_nothing_else_is_made(monkeypatch: Any) -> None:
    cls = refused()
    monkeypatch.setitem(globals(), "Refused", cls)
    found = auxdata.from_json(["dataclass", __name__, "Refused", ["x"], 1])
    assert (type(found), found.x) == (cls, 1)


@pytest.mark.parametrize("what", ["not frozen", "equal by identity", "own __hash__", "an exception"])
def test_instances_of_these_are_text(what: str, monkeypatch: Any) -> None:
    cls = REFUSED[what]()
    monkeypatch.setitem(globals(), "Refused", cls)
    assert auxdata.to_json(cls(1))[0] == "opaque"


def test_instances_with_more_than_data_are_text() -> None:
    more = Config()
    object.__setattr__(more, "cache", {})
    less = Settings(config=Config())
    object.__delattr__(less, "more")
    for value in (more, less, Config((np.ones(2),))):  # type: ignore[arg-type]
        assert auxdata.to_json(value)[0] == "opaque"
    stored = auxdata.to_json(Config((math.sin,)))  # type: ignore[arg-type]
    assert "math.sin" in shown(stored)
    with pytest.raises(auxdata.NotDataError):
        auxdata.from_json(stored)


class WithCache:
    __slots__ = ("cache",)


@dataclasses.dataclass(frozen=True, slots=True)
class Cached(WithCache):
    x: Any


@dataclasses.dataclass(frozen=True)
class CachedAndMore(WithCache):
    x: Any


@pytest.mark.parametrize("cls", [Cached, CachedAndMore])
def test_slots_of_a_base_class_are_no_fields(cls: Any) -> None:
    value = cls(1)
    stored = auxdata.to_json(value)
    assert stored == ["dataclass", __name__, cls.__name__, ["x"], 1]
    assert auxdata.from_json(stored) == value
    object.__setattr__(value, "cache", {})
    assert auxdata.to_json(value)[0] == "opaque"


NAN = {
    "a dataclass": lambda: Config((1,), rate=math.nan * 1),
    "a number": lambda: math.nan * 1,
    "a complex number": lambda: complex(0, math.nan),
    "a part": lambda: ((1.0, math.nan * 1), (Config((1,), rate=-math.nan),)),
}


@pytest.mark.parametrize("what", NAN)
def test_nan_is_the_same_nan(what: str) -> None:
    """Which Python denies, and so do the trees of JAX: a function could never be called with what it was made of."""
    given = Node({"x": arr(3)}, NAN[what]())
    blob = written(given)
    loaded = jaxexp.deserialize(blob)
    assert loaded == jaxexp.deserialize(blob)
    for node in (given, Node({"x": arr(3)}, NAN[what]())):
        found = loaded.call(node)
        assert type(found) is Node
        assert_same_values(found.children["x"], 2 * arr(3))
        assert auxdata.to_json(found.aux) == auxdata.to_json(given.aux)
    with pytest.raises(jaxexp.ExportError, match="auxiliary data"):
        loaded.call(Node({"x": arr(3)}, 1.0))
    assert type(jaxexp.deserialize(written(fun=lambda: Node({"x": arr(3)}, NAN[what]()))).call()) is Node


def test_what_equals_itself() -> None:
    for value in (1.0, math.inf, "nan", ["float", "nan"], np.float32(2), (1j, b"nan"), np.dtype("int32"), None):
        assert auxdata.equals_itself(auxdata.to_json(value)), value
    for value in (math.nan, -math.nan, complex(math.nan, 1), [math.nan], {"a": (math.nan,)}, np.float32("nan")):
        assert not auxdata.equals_itself(auxdata.to_json(value)), value


def test_a_class_of_another_name_is_text() -> None:
    @dataclasses.dataclass(frozen=True)
    class Local:
        x: int

    assert auxdata.to_json(Local(1))[0] == "opaque"


@pytest.mark.parametrize("fields", [["sizes", "rate"], ["rate", "sizes", "color"], ["sizes", "rate", "color", "more"]])
def test_other_fields_are_not_made(fields: list[str]) -> None:
    with pytest.raises(auxdata.NotDataError):
        auxdata.from_json(["dataclass", "kit.library_nodes", "Config", fields, *[1] * len(fields)])


def test_a_node_comes_back_with_its_configuration() -> None:
    """Of a function that makes it: there is no argument from which the class could be known."""
    config = Settings(config=Config((1, 2)))
    loaded = jaxexp.deserialize(written(fun=lambda: Node({"x": arr(3)}, config)))
    found = loaded.call()
    assert type(found) is Node
    assert found.aux == (("x",), config)[1]
    assert_same_values(found.children["x"], arr(3))


def test_another_configuration_is_refused() -> None:
    blob = written(Node({"x": arr(3)}, Config((1, 2))))
    loaded = jaxexp.deserialize(blob)
    assert_same_values(jax.tree.leaves(loaded.call(Node({"x": arr(3)}, Config((1, 2))))), [2 * arr(3)])
    with pytest.raises(jaxexp.ExportError, match="another tree structure"):
        loaded.call(Node({"x": arr(3)}, Config((1, 3))))
    assert "rate=0.5" in repr(jaxexp.deserialize(replaced_name(blob)).in_tree)
