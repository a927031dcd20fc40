"""Attributes of `Exported` as protocols, the class, and objects without fields have them: as in `jax.export`."""

from __future__ import annotations

import dataclasses
import operator
import pickle
import sys
import typing
from collections.abc import Sequence
from typing import Any, Protocol

import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._kernel.function.data import attributes_of
from kit.alike import LIBRARIES, reload
from kit.models import KEYWORDS, exported_case
from kit.weighted import bound

each_field = pytest.mark.parametrize("name", KEYWORDS)


@typing.runtime_checkable
class Signature(Protocol):
    fun_name: str
    in_tree: Any
    in_avals: Sequence[Any]
    in_shardings_hlo: Sequence[Any]
    nr_devices: int
    mlir_module_serialized: bytes
    _get_vjp: Any

    def call(self, *args: Any) -> Any: ...


@typing.runtime_checkable
class Other(Protocol):
    fun_name: str
    no_such_field: int


FUNCTIONS = {
    "of jax.export": lambda: exported_case("sin", jax_export),
    "exported": lambda: exported_case("sin"),
    "loaded": lambda: reload(jaxexp, exported_case("sin")),
    "changed": lambda: dataclasses.replace(reload(jaxexp, exported_case("sin")), fun_name="other"),
    "with weights": lambda: bound()[0],
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_protocols_of_data(function: str) -> None:
    exported = FUNCTIONS[function]()
    assert isinstance(exported, Signature)
    assert not isinstance(exported, Other)


def test_a_protocol_decodes_nothing() -> None:
    loaded = reload(jaxexp, exported_case("sin"))
    before = set(attributes_of(loaded))
    assert isinstance(loaded, Signature)
    asks_for_values = sys.version_info < (3, 12)
    assert (attributes_of(loaded).keys() == before) != asks_for_values


@each_field
def test_the_class_has_no_values(name: str) -> None:
    for library in LIBRARIES.values():
        assert not hasattr(library.Exported, name)
        with pytest.raises(AttributeError, match=f"type object 'Exported' has no attribute '{name}'"):
            getattr(library.Exported, name)
        assert all(field.default is dataclasses.MISSING for field in dataclasses.fields(library.Exported))


@each_field
def test_an_object_whose_constructor_was_not_called(name: str) -> None:
    for library in LIBRARIES.values():
        made = object.__new__(library.Exported)
        assert not hasattr(made, name)
        assert getattr(made, name, "nothing") == "nothing"
        with pytest.raises(AttributeError, match="'Exported' object has no attribute") as error:
            getattr(made, name)
        assert error.value.obj is made
        object.__setattr__(made, name, "mine")
        assert getattr(made, name) == vars(made)[name] == "mine"
        object.__delattr__(made, name)
        assert not hasattr(made, name)
    needed = name.replace("_shardings_hlo", "_named_shardings")
    with pytest.raises(AttributeError, match=f"'_?{needed}': its constructor was not called"):
        getattr(object.__new__(jaxexp.Exported), name)


@pytest.mark.parametrize(
    "use", [hash, repr, dataclasses.asdict, pickle.dumps, *map(operator.methodcaller, ["has_vjp", "call", "serialize"])]
)
def test_uses_of_such_an_object(use: Any) -> None:
    with pytest.raises(AttributeError, match=r"'Exported' object has no attribute .*: its constructor was not called"):
        use(object.__new__(jaxexp.Exported))


@pytest.mark.parametrize("name", ["weights", "unbound", "executables"])
def test_such_an_object_without_its_weights(name: str) -> None:
    assert not hasattr(object.__new__(jaxexp.BoundExported), name)
