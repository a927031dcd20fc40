"""Artifacts from tables that are laid out at will: each object is written once, wherever it is used."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from .parts import Copy, Part, put_together

LEAF, NONE, TUPLE, LIST, DICT, CUSTOM = range(6)
MODULE = b"ML\xefR"


def table(type_: str, /, **fields: Any) -> Part:
    part = Part(type_)
    part.update(fields)
    return part


def node(kind: int, *children: Any, names: Any = None, name: str | None = None, auxdata: Any = None) -> Part:
    return table(
        "PyTreeDef", kind=kind, children=list(children) or None, children_names=names, custom_name=name,
        custom_auxdata=auxdata,
    )  # fmt: skip


def repeated(child: Part, count: int) -> Part:
    """A tree that has a child so often, in tuples of some hundreds."""
    group = node(TUPLE, *[child] * 256)
    return node(TUPLE, *[group] * (count // 256), *[child] * (count % 256))


def aval(*shape: Any, dtype: int = 10) -> Part:
    return table("AbstractValue", kind=0, shape=list(shape), dtype=dtype, memory_space=1)


def function(**changes: Any) -> Part:
    """A function without arguments and results, in today's layout."""
    fields = {
        "serialization_version": 12,
        "function_name": "f",
        "in_tree": arguments(0),
        "out_tree": node(TUPLE),
        "platforms": ["cpu"],
        "mlir_module_serialized": MODULE,
        "calling_convention_version": 10,
        "uses_global_constants": 1,
        "nr_devices": 1,
        "jax_version": "0.12.0.1",
    }
    return table("Exported", **{**fields, **changes})


def arguments(count: int) -> Part:
    leaf = node(LEAF)
    return node(TUPLE, node(TUPLE, *[leaf] * count), node(DICT))


def of_values(avals: Sequence[Part], indices: Sequence[int], shardings: Sequence[int] = (), **changes: Any) -> bytes:
    """A function with these arguments, by index."""
    signature = {
        "in_tree": arguments(len(indices)),
        "unique_avals": list(avals),
        "in_avals_idxs": list(indices),
        "in_shardings_idxs": list(shardings) or [0] * len(indices),
    }
    return put_together(function(**{**signature, **changes}))


def with_constraints(constraints: Sequence[str] = (), metadata: Sequence[tuple[str, str]] = (), *dims: str) -> bytes:
    """An artifact with a trailer, and one argument of these dimensions."""
    return _sealed(_of_arguments(1, *dims), constraints=constraints, metadata=metadata)


def _of_arguments(count: int, *dims: str, **changes: Any) -> bytes:
    return of_values([aval(*dims or ("1",))], [0] * count, mlir_module_serialized=Copy(MODULE), **changes)


def with_weights(files: int, tensors: int) -> bytes:
    """An artifact whose trailer has one file so often, and so many tensors, which its dict of arguments has, too."""
    names = [f"{i:06x}" for i in range(tensors)]
    first = node(DICT, *[node(LEAF)] * tensors, names=names)
    blob = _of_arguments(tensors, in_tree=node(TUPLE, node(TUPLE, first), node(DICT)))
    return _sealed(blob, weights=(files, names))


def with_cases(cases: int, values: int, data: int = 0) -> bytes:
    """An artifact whose trailer has one case so often, of one argument so often, of so many bytes."""
    return _sealed(_of_arguments(1), cases=(cases, values, data))


def _sealed(blob: bytes, **trailer: Any) -> bytes:
    # The module is moved to the end, where an artifact with a trailer has it.
    at = blob.index(struct.pack("<I", len(MODULE)) + MODULE)
    field = next(i for i in range(4, at, 4) if i + struct.unpack_from("<I", blob, i)[0] == at)
    body = bytearray(blob)
    struct.pack_into("<I", body, field, len(body) - field)
    start = 12
    metadata_bytes = bytearray(struct.pack("<I", struct.unpack_from("<I", body)[0] + start) + b"jaxexp\0\1" + bytes(4))
    metadata_bytes += body[4:]
    module = struct.pack("<I", len(MODULE)) + MODULE
    content = _trailer(**trailer)
    end = len(metadata_bytes) + len(module) + len(content) + 48
    struct.pack_into("<I", metadata_bytes, 12, end)
    foot = xxhash.xxh3_128_digest(bytes(metadata_bytes)) + struct.pack("<II", len(metadata_bytes), len(content))
    return bytes(metadata_bytes) + module + content + foot + xxhash.xxh3_128_digest(content + foot) + b"jaxexp\0\1"


def _trailer(
    constraints: Sequence[str] = (),
    metadata: Sequence[tuple[str, str]] = (),
    weights: tuple[int, Sequence[str]] | None = None,
    cases: tuple[int, int, int] | None = None,
) -> bytes:
    import flatbuffers

    builder = flatbuffers.Builder(1024)

    def vector(offsets: list[int]) -> int:
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())

    def made(slots: dict[int, int]) -> int:
        builder.StartObject(6)
        for slot, offset in slots.items():
            builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
        return int(builder.EndObject())

    entries = [made({0: builder.CreateString(key), 1: builder.CreateString(value)}) for key, value in metadata]
    texts = [builder.CreateString(text) for text in constraints]

    def with_digest(slot: int, digest: bytes) -> int:
        builder.Prep(1, 16)
        for byte in reversed(digest):
            builder.PrependByte(byte)
        builder.Slot(slot)
        return int(builder.EndObject())

    def stored(name: str, digest_slot: int) -> int:
        """A file or a tensor of this name, without bytes."""
        text = builder.CreateString(name)
        builder.StartObject(4)
        builder.PrependUOffsetTRelativeSlot(0, text, 0)
        return with_digest(digest_slot, bytes(16))

    builder.StartObject(4)
    builder.PrependUint32Slot(0, len(MODULE), 0)
    notes = with_digest(1, xxhash.xxh3_128_digest(MODULE))
    slots = {0: builder.CreateString("jaxexp 0.1.0"), 1: vector([notes])}
    if texts:
        slots[2] = vector(texts)
    if entries:
        slots[3] = vector(entries)
    if weights is not None:
        files, names = weights
        slots[4] = made({0: vector([stored("", 2)] * files), 1: vector([stored(name, 3) for name in names])})
    if cases is not None:
        count, values, size = cases
        shape, name = builder.CreateNumpyVector(np.array([size], np.uint64)), builder.CreateString("")
        value = made({1: shape, 2: builder.CreateByteVector(bytes(size))})  # of dtype 0: bools
        case = made({0: name, 2: vector([value] * values), 3: vector([])})
        recording = made({0: vector([])})
        slots[5] = made({0: vector([case] * count), 1: vector([recording]), 2: vector([]), 3: vector([])})
    builder.Finish(made(slots))
    return bytes(builder.Output())
