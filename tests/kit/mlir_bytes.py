"""Modules in MLIR bytecode (https://mlir.llvm.org/docs/BytecodeFormat/) from their parts, for attacks on readers."""

from __future__ import annotations

from collections.abc import Sequence

# Attributes of VHLO by number (VhloBytecode.cpp in StableHLO).
_BOOLEAN, _DICTIONARY, _STRING, _TRANSPOSE = 2, 6, 14, 16


def number(value: int) -> bytes:
    """As many zeros at the low end of the first byte as bytes follow."""
    for more in range(8):
        if value < 1 << 7 * (more + 1):
            return (value << (more + 1) | 1 << more).to_bytes(more + 1, "little")
    return b"\0" + value.to_bytes(8, "little")


def _section(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + number(len(content)) + content


def _strings(texts: Sequence[str]) -> bytes:
    encoded = [text.encode() + b"\0" for text in texts]
    return number(len(encoded)) + b"".join(number(len(text)) for text in reversed(encoded)) + b"".join(encoded)


def module(
    texts: Sequence[str], kinds: Sequence[tuple[int, Sequence[int]]], attributes: Sequence[bytes], code: bytes
) -> bytes:
    """A module of bytecode version 6.

    Args:
        texts: its strings; each of the first ones is a dialect.
        kinds: groups of operations: the number of a dialect, and the numbers of the strings that name its operations.
        attributes: encoded by the first dialect.
        code: the block of the outermost region.
    """
    dialects = 1 + max((dialect for dialect, _ in kinds), default=0)
    names = number(dialects) + b"".join(number(i << 1) for i in range(dialects))
    names += number(sum(len(group) for _, group in kinds))
    for dialect, group in kinds:
        names += number(dialect) + number(len(group)) + b"".join(number(name << 1) for name in group)
    offsets = number(len(attributes)) + number(0)
    if attributes:
        offsets += number(0) + number(len(attributes)) + b"".join(number(len(a) << 1 | 1) for a in attributes)
    sections = [_strings(texts), names, b"".join(attributes), offsets, code]
    head = b"ML\xefR" + number(6) + b"StableHLO_v1.18.0\0"
    return head + b"".join(_section(kind, content) for kind, content in enumerate(sections))


def many_attributes(count: int) -> bytes:
    return module(["vhlo", "x"], [(0, [1])], [number(_BOOLEAN) + number(1)] * count, number(0))


def many_operations(size: int) -> bytes:
    """A few names, in very many kinds of operations."""
    long = "n" * (size // 4)
    return module(["vhlo", "x", long], [(0, [1, 2] * 30)] * (size // 120), [], number(0))


def large_dictionary(kinds: int, entries: int) -> bytes:
    """Operations of a kind that is listed over and over, all with one dictionary."""
    names = ["left_side", "lower", "transpose_a", "unit_diagonal", "zz"]
    texts = ["vhlo", "triangular_solve_v1", *names]
    attributes = [number(_STRING) + number(2 + i) for i in range(len(names))]
    attributes += [number(_BOOLEAN) + number(1), number(_TRANSPOSE) + number(0)]
    boolean, transpose = 5, 6
    pairs = [(4, boolean)] * entries + [(0, boolean), (1, boolean), (2, transpose), (3, boolean)]
    attributes.append(number(_DICTIONARY) + number(len(pairs)) + b"".join(number(a) + number(b) for a, b in pairs))
    operations = b"".join(number(kind) + b"\1" + number(0) + number(7) for kind in range(kinds))
    return module(texts, [(0, [1] * kinds)], attributes, number(kinds << 1) + operations)
