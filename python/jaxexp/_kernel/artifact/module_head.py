"""The head of a serialized module, read without an MLIR parser: its producer, operations, attributes and types.

A portable artifact is MLIR bytecode (https://mlir.llvm.org/docs/BytecodeFormat/): sections that state their length. So
the tables of names are read without touching the code. The installed jaxlib may be older or newer than the module
needs, so this file does not use it: `cpp/wire/bytecode` reads the tables.
"""

from __future__ import annotations

import collections
import itertools
import re
from typing import NamedTuple

from jaxexp import _native


class Bytecode(NamedTuple):
    """The head of a module: who wrote it, and for which version of StableHLO, if that says it; its dialects, the full
    names of its kinds of operations, and pairs of a dialect and its number for a kind of attribute or type.
    """

    producer: str
    stablehlo: str | None
    dialects: frozenset[str]
    operations: frozenset[str]
    attribute_codes: frozenset[tuple[str, int]]
    type_codes: frozenset[tuple[str, int]]


# Who wrote a module; None if the bytes are not MLIR bytecode.
producer = _native.module_producer
# Whether a module may use one of some names for an operation, an attribute or a symbol. Names have a section of their
# own, so large constants slow down parsing, but not this.
may_name = _native.module_may_name


def stablehlo_of(producer: str | None) -> str | None:
    """The version of StableHLO in a producer's name."""
    found = re.fullmatch(r"StableHLO_v(\d+\.\d+\.\d+)", producer or "")
    return found[1] if found else None


def is_for_newer(module: bytes | memoryview, stablehlo: str) -> bool:
    version = stablehlo_of(producer(module))
    numbers = [tuple(map(int, one.split("."))) for one in (version or "0", stablehlo)]
    return numbers[0] > numbers[1]


def in_text(module: bytes) -> bytes | None:
    """A module whose strings are UTF-8: names, and values of attributes. Each other string is replaced by a text of its
    length that no other string is. The module's structure was checked before.

    Returns:
        The same object if all strings are text; None if there are more strings of one length than such texts.
    """
    lengths, start, end = _strings(module)
    strings = module[start:end]
    if _is_text(strings):  # each string ends with a zero, so all are text if the whole is
        return module
    ends = list(itertools.accumulate(reversed(lengths)))  # the last string has the first length
    found = [strings[stop - length : stop - 1] for stop, length in zip(ends, reversed(lengths), strict=True)]
    taken, numbers, texts = {*found}, collections.Counter[int](), dict[bytes, bytes]()
    for string in found:
        if string not in texts:
            text = string
            while text in taken and not _is_text(string):
                number = b"%d" % numbers[len(string)]
                if len(number) > len(string):
                    return None
                numbers[len(string)] += 1
                text = number.rjust(len(string), b"?")
            texts[string] = text
    return b"".join([module[:start], *(texts[string] + b"\0" for string in found), module[end:]])


def lengths_of_strings(module: bytes) -> list[int]:
    """How many bytes each string of a module has, once. The module's structure was checked before."""
    return [length - 1 for length in _strings(module)[0]]


def _is_text(string: bytes) -> bool:
    return str(string, "utf-8", "ignore").encode() == string


def _strings(module: bytes) -> tuple[list[int], int, int]:
    """The lengths of a module's strings, each with the zero at its end, the last one first; and where they begin and
    end.
    """
    at = module.index(0, 5) + 1  # behind the magic bytes, a short version and the producer
    while True:
        kind, (length, at) = module[at], _varint(module, at + 1)
        if kind & 0x80:  # the section is aligned
            alignment, at = _varint(module, at)
            at += -at % alignment
        if kind & 0x7F == 0:
            break
        at += length
    end = at + length
    count, at = _varint(module, at)
    lengths = []
    for _ in range(count):
        size, at = _varint(module, at)
        lengths.append(size)
    return lengths, at, end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of MLIR bytecode, and where it ends: the zeros at the end of its first byte count further bytes."""
    first = data[at]
    if first & 1:
        return first >> 1, at + 1
    if not first:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    more = (first & -first).bit_length()
    return int.from_bytes(data[at : at + more], "little") >> more, at + more


def read(module: bytes | memoryview) -> Bytecode:
    """The head of a module; a DeserializationError if the bytes are not MLIR bytecode, or end too early."""
    by, dialects, operations, attribute_codes, type_codes = _native.module_head(module)
    return Bytecode(by, stablehlo_of(by), dialects, operations, attribute_codes, type_codes)
