"""Takes serialized bytes apart into plain Python objects, and puts such objects together again.

A table is a `Part`: a dict of its fields with the name of its type. What the bytes share (two fields that lead to one
table) is one object here, and the other way round.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from .wire import LAYOUT


class Part(dict[str, Any]):
    """A table: the fields that it has, by name. Compared and hashed by identity."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class CycleError(ValueError):
    """A part that is below itself: the bytes have no place for that."""


def take_apart(data: bytes) -> Part:
    """The root table of an artifact that is in order. Fields that are not there are not in the Part either."""
    known: dict[tuple[str, int], Any] = {}

    def number(code: str, at: int) -> Any:
        return struct.unpack_from(f"<{code}", data, at)[0]

    def value(kind: str, at: int) -> Any:
        if len(kind) == 1 and kind != "s":
            return number(kind, at)
        target = at + number("I", at)
        if (kind, target) in known:
            return known[kind, target]
        if kind in LAYOUT:
            result: Any = Part(kind)
            vtable = target - number("i", target)
            size = number("H", vtable)
            for name, (slot, inner) in LAYOUT[kind].items():
                offset = number("H", vtable + 4 + 2 * slot) if 4 + 2 * slot < size else 0
                if offset:
                    result[name] = value(inner, target + offset)
        elif kind == "s":
            result = data[target + 4 : target + 4 + number("I", target)].decode()
        else:
            inner, length = kind[1:-1], number("I", target)
            if inner == "b":
                result = list(struct.unpack_from(f"<{length}b", data, target + 4))
            else:
                width = 4 if len(inner) > 1 or inner == "s" else struct.calcsize(inner)
                result = [value(inner, target + 4 + i * width) for i in range(length)]
        known[kind, target] = result
        return result

    root = value("Exported", 0)
    assert isinstance(root, Part)
    return root


def put_together(root: Part) -> bytes:
    """The bytes of a table and of all below it; objects that are used more than once are written once.

    Raises CycleError where a part is below itself.
    """
    pieces: list[bytes] = []  # last one first, as offsets lead forward
    size = 0
    known: dict[tuple[str, int], int] = {}
    under_way: set[int] = set()

    def add(piece: bytes) -> int:
        """The distance of what was added from the end of the buffer."""
        nonlocal size
        pieces.append(piece)
        size += len(piece)
        return size

    def write(kind: str, value: Any) -> int:
        key = kind, value if isinstance(value, (str, bytes)) else id(value)
        if key not in known:
            known[key] = write_new(kind, value)
        return known[key]

    def write_new(kind: str, value: Any) -> int:
        if kind == "s":
            text = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
            return add(struct.pack("<I", len(text)) + text + bytes(4 - len(text) % 4))
        if kind in LAYOUT:
            return write_table(kind, value)
        inner = kind[1:-1]
        if len(inner) > 1 or inner == "s":
            targets = [write(inner, element) for element in value]
            start = size + 4 * len(targets)  # the first element's distance from the end
            body = b"".join(struct.pack("<I", start - 4 * i - target) for i, target in enumerate(targets))
        else:
            body = struct.pack(f"<{len(value)}{inner}", *value)
        return add(struct.pack("<I", len(value)) + body + bytes(-len(body) % 4))

    def write_table(kind: str, part: Part) -> int:
        if id(part) in under_way:
            raise CycleError(kind)
        under_way.add(id(part))
        fields = [(*LAYOUT[kind][name], part[name]) for name in LAYOUT[kind] if part.get(name) is not None]
        references = [(slot, write(code, value)) for slot, code, value in fields if len(code) > 1 or code == "s"]
        numbers = [(slot, code, value) for slot, code, value in fields if len(code) == 1 and code != "s"]
        numbers.sort(key=lambda field: -struct.calcsize(field[1]))
        under_way.discard(id(part))

        slots = 1 + max((slot for slot, _, _ in fields), default=-1)
        vtable_size = 4 + 2 * slots
        entries = [0] * slots
        at = 4
        for slot, _ in references:
            entries[slot], at = at, at + 4
        scalars = b""
        for slot, code, value in numbers:
            entries[slot] = at + len(scalars)
            scalars += struct.pack(f"<{code}", value)
        scalars += bytes(-len(scalars) % 4)
        table = size + at + len(scalars)  # its distance from the end
        body = struct.pack("<i", vtable_size + vtable_size % 4)
        body += b"".join(struct.pack("<I", table - entries[slot] - target) for slot, target in references)
        add(body + scalars)
        vtable = struct.pack(f"<{2 + slots}H", vtable_size, at + len(scalars), *entries)
        add(vtable + bytes(vtable_size % 4))
        return table

    target = write("Exported", root)
    return struct.pack("<I", size + 4 - target) + b"".join(reversed(pieces))


def walk(root: Part) -> Iterator[Part]:
    """All tables, each once."""
    seen: set[int] = set()
    left: list[Any] = [root]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left.extend(part)
        elif isinstance(part, Part) and id(part) not in seen:
            seen.add(id(part))
            yield part
            left.extend(part.values())
