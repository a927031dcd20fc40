"""Pickles of jaxexp's objects outlive changes of its files."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pickletools
import pkgutil
import typing
from typing import Any

import pytest

import jaxexp
from kit.corpus import CASES, export_with

pytestmark = pytest.mark.jax


def named_in(pickled: bytes) -> set[str]:
    """The modules whose objects a pickle looks up."""
    names: list[str] = []
    modules = set()
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "STACK_GLOBAL":
            modules.add(names[-2])
        elif isinstance(argument, str):
            names.append(argument)
    return modules


def test_public_objects_say_that_they_are_of_jaxexp() -> None:
    for owner in (jaxexp, jaxexp.errors):
        for name in owner.__all__:
            value = getattr(owner, name)
            if getattr(value, "__module__", "jax").startswith("jaxexp"):
                assert value.__module__ == owner.__name__, name
                assert getattr(owner, value.__qualname__) is value


def test_pickles_name_public_objects_only(tmp_path) -> None:
    """A pickle that somebody keeps must not depend on how jaxexp's files are laid out."""
    exported = export_with(jaxexp, CASES["sin"].build())
    blob = bytes(exported.serialize(vjp_order=1))
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as writer:
        writer.add("a/sin", blob)
        writer.add("b/sin", exported)
    with pytest.raises(jaxexp.errors.DeserializationError) as refusal:
        jaxexp.deserialize(b"no artifact")
    with jaxexp.Archive.open(tmp_path / "fleet.zip") as archive:
        objects = {
            "function": jaxexp.deserialize(blob), "archive": archive, "slice": archive.glob("a/*"),
            "handle": archive["b/sin"], "summary": archive["b/sin"].summary, "inspection": jaxexp.inspect(blob),
            "argument": jaxexp.inspect(blob).arguments[0], "compatibility": jaxexp.compatibility(blob),
            "refusal": jaxexp.compatibility(blob).refusals[0], "policy": jaxexp.Policy(max_devices=1),
            "check": jaxexp.DisabledSafetyCheck.platform(), "error": refusal.value,
        }  # fmt: skip
        for name, value in objects.items():
            pickled = pickle.dumps(value)
            home = "jaxexp.errors" if name == "error" else "jaxexp"
            assert {module for module in named_in(pickled) if module.startswith("jaxexp")} == {home}, name
            again = pickle.loads(pickled)
            assert type(again) is type(value)
            if name in ("archive", "slice"):
                assert list(again) == list(value)
            elif name == "handle":
                assert again.load() == value.load()
            elif name != "error":
                assert again == value, name


def every_error() -> list[Any]:
    """One of each class of errors that jaxexp has, in any of its modules, with all that such an error carries."""
    for module in pkgutil.walk_packages(jaxexp.__path__, "jaxexp."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    classes = [jaxexp.errors.ExportError]
    for found in classes:
        classes += [kind for kind in found.__subclasses__() if kind not in classes]
    errors = []
    for kind in classes:
        if kind.__module__.startswith("jaxexp"):
            own = [] if kind.__init__ is ValueError.__init__ else list(inspect.signature(kind).parameters)
            error: Any = kind(*[(0, 6, 0) if name == "since" else f"the {name}" for name in own or ["message"]])
            if hasattr(error, "file"):
                error.file = "the file"
            errors.append(error)
    return errors


def test_errors() -> None:
    errors = every_error()
    names = {type(error).__name__ for error in errors}
    assert {*jaxexp.errors.__all__} <= names
    assert {"RefusedError", "TooOldReaderError", "WorkerError"} <= names
    for error in errors:
        error.add_note("a note")
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(again) is type(error)
            assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_annotations_of_public_classes_are_understood() -> None:
    for name in jaxexp.__all__:
        value = getattr(jaxexp, name)
        if isinstance(value, type):
            fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
            assert {field.name for field in fields} <= set(typing.get_type_hints(value)), name
