"""Artifacts with texts in them that do something to a terminal or a log, and whether an output has such a text raw."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax

import jaxexp

from . import library_nodes
from .corpus import CASES, export_with
from .parts import Part, put_together, take_apart, walk
from .wire import LAYOUT

LINE = "EVIL"  # begins a line if a line break is not escaped

HOSTILE: dict[str, str | bytes] = {
    "terminal": "\x1b[31mred\x07",
    "lines": f"a\n{LINE}\r{LINE}\x85{LINE}\u2028{LINE}",
    "direction": "\u202eabc\u2066\u200f\u061c",
    "controls": "\x9b31m\x7f\0\U000e0041",
    "no UTF-8": b"a\xff\xc3(\xed\xa0\x80\xf4\x90\x80\x80",
    "expression": "a + \x1b[31m",
}

# Between them, they have all kinds of texts.
_EXPORTED = (
    "nested_containers", "namedtuples", "ordered_dict", "symbolic_batch", "sharded_2d", "explicit_mesh", "memory_kinds",
    "unreduced_result", "several_effects", "custom_call_allowed", "multi_platform",
)  # fmt: skip


def assert_clean(output: bytes, where: object) -> None:
    """Nothing but printable characters of UTF-8, in lines that jaxexp began."""
    for line in output.decode().split("\n"):
        assert line.isprintable(), (where, line)
        assert not line.startswith(LINE), (where, line)


def places(compatibility: str | None = None) -> Iterator[tuple[str, Callable[[str | bytes], bytes]]]:
    """Each field that is a text, and functions that make an artifact with another text there.

    With "everywhere", also where the artifact says the same again, so that it can be read.
    """
    seen = set()
    for root in _roots(compatibility):
        whole = put_together(root)
        for part in list(walk(root)):
            for field, value in list(part.items()):
                for how, changed in _changes(part.kind, field, value):
                    place = f"{part.kind}.{field}, {how}"
                    if place in seen:
                        continue
                    seen.add(place)

                    def at_one_place(text: str | bytes, root=root, part=part, field=field, changed=changed) -> bytes:
                        before, part[field] = part[field], changed(text)
                        try:
                            return put_together(root)
                        finally:
                            part[field] = before

                    yield place, at_one_place
                    old = value if isinstance(value, str) else next(iter(value), None)
                    if isinstance(old, str):
                        yield f"{place}, everywhere", lambda text, whole=whole, old=old: _renamed(whole, old, text)


@functools.cache
def artifacts(compatibility: str | None = None) -> dict[str, bytes]:
    """For each field that is a text, an artifact with each of the hostile texts there."""
    found = {
        f"{place}: {kind}": make(text)
        for place, make in places(compatibility)
        if not place.endswith("everywhere")
        for kind, text in HOSTILE.items()
    }
    meshes = _exported("sharded_2d", compatibility)
    for kind, text in HOSTILE.items():  # an axis of a mesh, also where specs name it
        found[f"everywhere: {kind}"] = _renamed(meshes, "x", text)
    return found


def _exported(name: str, compatibility: str | None) -> bytes:
    case = CASES[name]
    with case.context():
        return _written(export_with(jaxexp, case.build()), compatibility)


def _written(exported: jaxexp.Exported, compatibility: str | None) -> bytes:
    """For this release, or today's if this one is too old."""
    try:
        return bytes(exported.serialize(trailer=False, compatibility=compatibility))
    except jaxexp.errors.TooOldReaderError:
        return bytes(exported.serialize(trailer=False))


def _renamed(artifact: bytes, old: str, new: str | bytes) -> bytes:
    root = take_apart(artifact)
    for part in walk(root):
        for field, value in part.items():
            if isinstance(value, list):
                part[field] = [new if text == old else text for text in value]
            elif value == old:
                part[field] = new
    return put_together(root)


def _roots(compatibility: str | None) -> Iterator[Part]:
    for name in _EXPORTED:
        yield take_apart(_exported(name, compatibility))
    for value in library_nodes.VALUES.values():
        yield take_apart(_written(jaxexp.export(jax.jit(library_nodes.double))(value), compatibility))


def _changes(kind: str, field: str, value: Any) -> Iterator[tuple[str, Callable[[str | bytes], Any]]]:
    """How a value of an artifact is changed, if it is a text or a list of texts."""
    code = LAYOUT[kind][field][1]
    if code == "s":
        yield "text", lambda text: text
    elif code == "[s]":
        for i in sorted({0, len(value) - 1} - {-1}):
            yield f"{i} of {len(value)}", lambda text, i=i: [*value[:i], text, *value[i + 1 :]]  # type: ignore[misc]
    elif field == "custom_auxdata":
        yield "bytes", lambda text: text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
        try:
            data = json.loads(bytes(value))
        except ValueError:
            return
        for place, names in ("list", data), ("keys", data.get("keys") if isinstance(data, dict) else None):
            if not isinstance(names, list) or not names:
                continue

            def in_json(text: str | bytes, names: list[Any] = names) -> bytes:
                shown = text.decode("latin-1") if isinstance(text, bytes) else text
                first = ["item", shown] if isinstance(names[0], list) else shown
                changed = [first, *names[1:]]
                return json.dumps({**data, "keys": changed} if isinstance(data, dict) else changed).encode()

            yield f"{place} of {type(names[0]).__name__}", in_json
