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


class Copy:
    """A string, or a vector of bytes, that is written for itself: others of equal content do not share it."""

    def __init__(self, content: bytes) -> None:
        self.content = content


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
    vtables: dict[bytes, int] = {}
    under_way: set[int] = set()

    def add(piece: bytes) -> int:
        """The distance of what was added from the end of the buffer."""
        nonlocal size
        pieces.append(piece)
        size += len(piece)
        return size

    def layout(kind: str, part: Part) -> tuple[bytes, list[tuple[int, str, Any]], list[tuple[int, str, Any]]]:
        """A vtable, references and numbers of a table."""
        fields = [(*LAYOUT[kind][name], part[name]) for name in LAYOUT[kind] if part.get(name) is not None]
        references = [field for field in fields if len(field[1]) > 1 or field[1] == "s"]
        numbers = sorted((f for f in fields if f not in references), key=lambda field: -struct.calcsize(field[1]))
        sizes = [(slot, 4) for slot, _, _ in references] + [(slot, struct.calcsize(code)) for slot, code, _ in numbers]
        entries, at = [0] * (1 + max((slot for slot, _ in sizes), default=-1)), 4
        for slot, width in sizes:
            entries[slot], at = at, at + width
        return struct.pack(f"<{2 + len(entries)}H", 4 + 2 * len(entries), at + -at % 4, *entries), references, numbers

    # Tables of the same fields share a vtable; these come last.
    for part in walk(root):
        vtable = layout(part.kind, part)[0]
        if vtable not in vtables:
            vtables[vtable] = add(vtable + bytes(-len(vtable) % 4))

    def write(kind: str, value: Any) -> int:
        key = kind, value if isinstance(value, (str, bytes)) else id(value)
        if key not in known:
            known[key] = write_new(kind, value)
        return known[key]

    def write_new(kind: str, value: Any) -> int:
        if kind == "s":
            value = value.content if isinstance(value, Copy) else value
            text = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
            return add(struct.pack("<I", len(text)) + text + bytes(4 - len(text) % 4))
        if kind in LAYOUT:
            return write_table(kind, value)
        inner = kind[1:-1]
        value = value.content if isinstance(value, Copy) else value
        if len(inner) > 1 or inner == "s":
            targets = [write(inner, element) for element in value]
            start = size + 4 * len(targets)  # the first element's distance from the end
            body = b"".join(struct.pack("<I", start - 4 * i - target) for i, target in enumerate(targets))
        elif isinstance(value, bytes):
            body = value
        else:
            body = struct.pack(f"<{len(value)}{inner}", *value)
        return add(struct.pack("<I", len(value)) + body + bytes(-len(body) % 4))

    def write_table(kind: str, part: Part) -> int:
        if id(part) in under_way:
            raise CycleError(kind)
        under_way.add(id(part))
        vtable, references, numbers = layout(kind, part)
        targets = [(4 * i + 4, write(code, value)) for i, (_, code, value) in enumerate(references)]
        under_way.discard(id(part))
        scalars = b"".join(struct.pack(f"<{code}", value) for _, code, value in numbers)
        scalars += bytes(-len(scalars) % 4)
        table = size + 4 + 4 * len(targets) + len(scalars)  # its distance from the end
        body = struct.pack("<i", vtables[vtable] - table)
        body += b"".join(struct.pack("<I", table - at - target) for at, target in targets)
        return add(body + scalars)

    target = write("Exported", root)
    return struct.pack("<I", size + 4 - target) + b"".join(reversed(pieces))


def walk(root: Part) -> Iterator[Part]:
    """All tables, each once."""
    seen: set[int] = set()
    left: list[Any] = [root]
    while left:
        part = left.pop()
        if not isinstance(part, (list, Part)) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, list):
            left.extend(part)
        else:
            yield part
            left.extend(part.values())
