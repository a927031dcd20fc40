"""What the head of a serialized module tells, without an MLIR parser: its producer, operations, attributes and types.

A portable artifact is MLIR bytecode (https://mlir.llvm.org/docs/BytecodeFormat/): sections with a length each, so the
tables that name what the module is made of are read without touching the code. An older or newer jaxlib than the
module needs may be installed, so this module uses none.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import NoReturn

from jaxexp._errors import DeserializationError

_WHERE = "mlir_module_serialized"
_MAGIC = b"ML\xefR"
_STRINGS, _DIALECTS, _OFFSETS = 0, 1, 3  # kinds of sections
_ATTRIBUTES, _ATTRIBUTE_OFFSETS = 2, 3

# From these versions of the format on, ...
_VERSIONED_DIALECTS = 1  # a dialect may state a version
_COUNTED_OPERATIONS = 2  # the number of operations stands before their names
_REGISTERED_OPERATIONS = 5  # an operation's name carries a flag


@dataclasses.dataclass(frozen=True, slots=True)
class Bytecode:
    """The head of a module.

    Attributes:
        producer: who wrote it, as ``"StableHLO_v1.13.0"``.
        stablehlo: the version of StableHLO that it was written for, from `producer`; None if that names none.
        dialects: the names of its dialects.
        operations: the full names of the kinds of operations in it, such as ``"vhlo.add_v1"``.
        attribute_codes: pairs of a dialect and the number that it has for a kind of attribute.
        type_codes: pairs of a dialect and the number that it has for a kind of type.
    """

    producer: str
    stablehlo: str | None
    dialects: frozenset[str]
    operations: frozenset[str]
    attribute_codes: frozenset[tuple[str, int]]
    type_codes: frozenset[tuple[str, int]]


def producer(module: bytes | memoryview) -> str | None:
    """Who wrote a module; None where the bytes are no MLIR bytecode."""
    head = bytes(module[:256])
    if not head.startswith(_MAGIC):
        return None
    start = _Reader(memoryview(head), len(_MAGIC))
    try:
        start.number()
        return start.text()
    except DeserializationError:
        return None


def stablehlo_of(producer: str | None) -> str | None:
    """The version of StableHLO in the name of a producer."""
    found = re.fullmatch(r"StableHLO_v(\d+\.\d+\.\d+)", producer or "")
    return found[1] if found else None


def may_name(module: bytes | memoryview, *names: str) -> bool:
    """Whether one of these may be the name of an operation, an attribute or a symbol in a module.

    Names have a section of their own. Searching it takes no longer where there are large constants, and parsing the
    module would.
    """
    try:
        strings = bytes(dict(_open(module)[2])[_STRINGS].data)
    except (DeserializationError, KeyError):  # no bytecode, or damaged: then it may be anywhere
        strings = bytes(module)
    return any(name.encode() in strings for name in names)


def read(module: bytes | memoryview) -> Bytecode:
    """The head of a module.

    Raises:
        DeserializationError: the bytes are no MLIR bytecode, or end too early.
    """
    version, by, found = _open(module)
    sections = dict(found)
    for needed in (_STRINGS, _DIALECTS, _ATTRIBUTES, _ATTRIBUTE_OFFSETS):
        if needed not in sections:
            raise DeserializationError(_WHERE, "MLIR bytecode", f"no section {needed}")
    strings = list(sections[_STRINGS].strings())
    dialects, operations = _names(sections[_DIALECTS], strings, version)
    attributes, types = _codes(sections[_ATTRIBUTES], sections[_ATTRIBUTE_OFFSETS], dialects)
    return Bytecode(by, stablehlo_of(by), frozenset(dialects), operations, attributes, types)


def _open(module: bytes | memoryview) -> tuple[int, str, Iterator[tuple[int, _Reader]]]:
    """The version of the bytecode's format, its producer, and its sections by their kind."""
    view = memoryview(module).cast("B")
    if bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise DeserializationError(
            _WHERE, "a StableHLO portable artifact", f"bytes that begin with {bytes(view[:4])!r}"
        )
    reader = _Reader(view, len(_MAGIC))
    return reader.number(), reader.text(), reader.sections()


def _names(section: _Reader, strings: list[str], version: int) -> tuple[list[str], frozenset[str]]:
    dialects = []
    for _ in range(section.number()):
        name, versioned = section.number(), 0
        if version >= _VERSIONED_DIALECTS:
            name, versioned = divmod(name, 2)
        dialects.append(section.element(strings, name))
        if versioned and next(section.sections(), None) is None:
            section.refuse("no version of a dialect")
    if version >= _COUNTED_OPERATIONS:
        section.number()
    operations = set()
    while not section.at_end():
        dialect = section.element(dialects, section.number())
        for _ in range(section.number()):
            name = section.number()
            if version >= _REGISTERED_OPERATIONS:
                name //= 2
            operations.add(f"{dialect}.{section.element(strings, name)}")
    return dialects, frozenset(operations)


def _codes(
    entries: _Reader, offsets: _Reader, dialects: list[str]
) -> tuple[frozenset[tuple[str, int]], frozenset[tuple[str, int]]]:
    """The kinds of attributes and of types: an entry that its dialect encodes begins with the number of its kind."""
    counts = offsets.number(), offsets.number()
    found: list[set[tuple[str, int]]] = []
    for count in counts:
        codes: set[tuple[str, int]] = set()
        while count > 0:
            dialect = offsets.element(dialects, offsets.number())
            group = offsets.number()
            if group == 0 or group > count:
                offsets.refuse(f"a group of {group} entries where {count} are left")
            for _ in range(group):
                size, encoded = divmod(offsets.number(), 2)
                if encoded:
                    codes.add((dialect, entries.peek()))
                entries.skip(size)
            count -= group
        found.append(codes)
    return frozenset(found[0]), frozenset(found[1])


class _Reader:
    """A place in the bytes of a section."""

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self.data = data
        self.at = at

    def refuse(self, found: str) -> NoReturn:
        raise DeserializationError(_WHERE, "MLIR bytecode", f"{found} at byte {self.at} of a section")

    def at_end(self) -> bool:
        return self.at >= len(self.data)

    def skip(self, size: int) -> None:
        if size > len(self.data) - self.at:
            self.refuse(f"{len(self.data) - self.at} bytes where {size} have to follow")
        self.at += size

    def peek(self) -> int:
        before = self.at
        value = self.number()
        self.at = before
        return value

    def number(self) -> int:
        """An unsigned integer: the zeros at the low end of its first byte count the bytes that follow."""
        if self.at_end():
            self.refuse("the end")
        first = self.data[self.at]
        more = 8 if first == 0 else (first & -first).bit_length() - 1
        start = self.at
        self.skip(1 + more)
        if more == 8:
            return int.from_bytes(self.data[start + 1 : self.at], "little")
        return int.from_bytes(self.data[start : self.at], "little") >> (more + 1)

    def text(self) -> str:
        """A string that ends with a zero."""
        start = self.at
        while not self.at_end() and self.data[self.at]:
            self.at += 1
        self.skip(1)
        return bytes(self.data[start : self.at - 1]).decode(errors="replace")

    def element(self, of: list[str], index: int) -> str:
        if index >= len(of):
            self.refuse(f"the number {index} for one of {len(of)} names")
        return of[index]

    def sections(self) -> Iterator[tuple[int, _Reader]]:
        while not self.at_end():
            kind = self.data[self.at]
            self.skip(1)
            size = self.number()
            if kind & 0x80:
                alignment = self.number()
                if alignment == 0 or alignment & (alignment - 1):
                    self.refuse(f"an alignment of {alignment}")
                while not self.at_end() and self.data[self.at] == 0xCB:  # padding
                    self.at += 1
            start = self.at
            self.skip(size)
            yield kind & 0x7F, _Reader(self.data[start : self.at])

    def strings(self) -> Iterator[str]:
        count = self.number()
        if count > len(self.data):
            self.refuse(f"{count} strings in {len(self.data)} bytes")
        sizes = [self.number() for _ in range(count)]
        for size in reversed(sizes):
            start = self.at
            self.skip(size)
            yield bytes(self.data[start : self.at - 1]).decode(errors="replace")
