"""What callers give, as `_runtime` takes it, whose own errors name neither the argument nor what it takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from jaxexp._errors import ExportTypeError, RunError, cause
from jaxexp._kernel.artifact.scalars import integer, sizes_by_name
from jaxexp._kernel.artifact.words import is_text

T = TypeVar("T")


def path(name: str, given: Any, what: str = "a path") -> str:
    """The path of a file; a ValueError if the system has no such paths, as in `open`."""
    found = _taken(name, given, what, os.fsencode)
    if b"\0" in found:
        raise ValueError("embedded null byte")
    return os.fsdecode(found)


def file(name: str, given: Any, what: str = "a path") -> str:
    """The path of a file that is there; an OSError if there is none."""
    found = path(name, given, what)
    os.stat(found)
    return found


def flag(name: str, given: Any) -> None:
    """Refuses what is neither True nor False."""
    if not isinstance(given, bool):
        raise _wrong(name, "True or False", given)


def text(name: str, given: Any) -> str:
    """Unicode text."""
    if isinstance(given, str) and is_text(given):
        return given
    raise _wrong(name, "Unicode text", given)


def device(name: str, given: Any) -> int:
    """The number of a device."""
    found = _taken(name, given, "the numbers of devices", integer)
    if not 0 <= found < 1 << 31:
        raise RunError(f"devices are chosen by their numbers, from 0 on, and not by {given!r}", "argument")
    return found


def devices(given: Any) -> list[int]:
    """The numbers of devices; none for None."""
    return [device("devices", one) for one in _taken("devices", () if given is None else given, "numbers", list)]


def sets_of_sizes(given: Any) -> list[dict[str, int]]:
    """Several of these."""
    if isinstance(given, Mapping):
        raise _wrong("sizes", "a list of dicts such as {'batch': 8}", given)
    return [sizes(one) for one in _taken("sizes", given, "a list of dicts such as {'batch': 8}", list)]


def handler(given: object) -> None:
    """Refuses what is no PyCapsule."""
    if type(given).__name__ != "PyCapsule":
        what = "a PyCapsule, such as jax.ffi.pycapsule makes of a function of a library"
        raise RunError(f"handler= takes {what}, not {given!r:.80}", "argument")


def sizes(given: Any) -> dict[str, int]:
    """The size of each dimension variable."""
    found = sizes_by_name(given)
    for name, size in found.items():
        if not isinstance(name, str) or not is_text(name):
            raise RunError(f"sizes are given by the names of dimension variables, not by {name!r}", "argument")
        if not 0 < size < 1 << 63:
            raise RunError(f"the size of {name} is a number from 1 to 2^63 - 1, not {size}", "argument")
    return found


def options(given: Any) -> dict[str, str | int | float | bool]:
    """What a plugin is told; nothing for None."""
    if not isinstance(given, Mapping | None):
        raise _wrong("options", "a dict such as {'cpu_device_count': 8}", given)
    found: dict[str, Any] = dict(given or {})
    for name, value in found.items():
        text("options", name)
        if isinstance(value, str):
            text("options", value)
        elif not isinstance(value, (bool, float)) and not (isinstance(value, int) and -(1 << 63) <= value < 1 << 63):
            raise _wrong("options", f"text, a number of 64 bits or a bool for {name!r}", value)
    return found


def _taken(name: str, given: Any, what: str, convert: Callable[[Any], T]) -> T:
    try:
        return convert(given)
    except TypeError as error:
        raise _wrong(name, what, given) from cause(error)


def _wrong(name: str, what: str, given: object) -> ExportTypeError:
    return ExportTypeError(f"{name}= takes {what}, not {given!r:.80}")
