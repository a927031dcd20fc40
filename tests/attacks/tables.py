"""Artifacts made of tables as dicts and vectors as lists: one that appears twice is written once."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import flatbuffers

from kit import wire


class Writer:
    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1024)
        self.known: dict[int, int] = {}
        self.kept: list[Any] = []

    def finish(self, root: dict[str, Any]) -> bytes:
        self.builder.Finish(self.value(root, "Exported"))
        return bytes(self.builder.Output())

    def value(self, value: Any, kind: str) -> int:
        if id(value) not in self.known:
            self.kept.append(value)
            self.known[id(value)] = self.new(value, kind)
        return self.known[id(value)]

    def new(self, value: Any, kind: str) -> int:
        builder = self.builder
        if kind == "s":
            data = value if isinstance(value, bytes) else value.encode()
            return builder.CreateString(data)
        if kind.startswith("["):
            return self.vector(value, kind[1:-1])
        fields = {name: (slot, inner) for name, (slot, inner) in wire.LAYOUT[kind].items() if name in value}
        offsets = {
            name: self.value(value[name], inner)
            for name, (_, inner) in fields.items()
            if len(inner) > 1 or inner == "s"
        }
        builder.StartObject(1 + max(slot for slot, _ in wire.LAYOUT[kind].values()))
        for name, (slot, inner) in fields.items():
            if name in offsets:
                builder.PrependUOffsetTRelativeSlot(slot, offsets[name], 0)
            else:
                builder.Prep(struct.calcsize(inner), 0)
                builder.head -= struct.calcsize(inner)
                struct.pack_into(f"<{inner}", builder.Bytes, builder.head, value[name])
                builder.Slot(slot)
        return builder.EndObject()

    def vector(self, values: list[Any], kind: str) -> int:
        builder = self.builder
        is_scalar = len(kind) == 1 and kind != "s"
        size = struct.calcsize(kind) if is_scalar else 4
        offsets = [] if is_scalar else [self.value(v, kind) for v in values]
        builder.StartVector(size, len(values), size)
        for value in reversed(values if is_scalar else offsets):
            if is_scalar:
                builder.head -= size
                unsigned = "B" if kind == "b" else kind
                struct.pack_into(f"<{unsigned}", builder.Bytes, builder.head, value)
            else:
                builder.PrependUOffsetTRelative(value)
        return builder.EndVector()


def leaf() -> dict[str, Any]:
    return {"kind": 0}


def tuple_of(*children: Any) -> dict[str, Any]:
    return {"kind": 2, "children": list(children)}


def dict_of(**children: Any) -> dict[str, Any]:
    return {"kind": 4, "children": list(children.values()), "children_names": list(children)}


def call_of(*arguments: Any) -> dict[str, Any]:
    return tuple_of(tuple_of(*arguments), {"kind": 4})


def aval(*shape: str, dtype: int = 10) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype, "memory_space": 1}


def mesh(**axes: int) -> dict[str, Any]:
    return {"axis_names": list(axes), "axis_sizes": list(axes.values()), "axis_types": [1] * len(axes)}


def spec(*partitions: list[str]) -> dict[str, Any]:
    return {"partitions": [{"axes": axes} for axes in partitions]}


def sharded(mesh: dict[str, Any], spec: dict[str, Any], devices: int = 1) -> dict[str, Any]:
    sharding = {"named_sharding": {"mesh": mesh, "spec": spec}}
    return function(in_shardings=[sharding], nr_devices=devices)


def function(**changes: Any) -> dict[str, Any]:
    """A function from float32[2] to float32[2], in the layout of JAX 0.9.2."""
    return {
        "serialization_version": 3,
        "function_name": "f",
        "in_tree": call_of(leaf()),
        "in_avals": [aval("2")],
        "out_tree": leaf(),
        "out_avals": [aval("2")],
        "in_shardings": [{}],
        "out_shardings": [{}],
        "platforms": ["cpu"],
        "mlir_module_serialized": [0] * 8,
        "calling_convention_version": 10,
        "module_kept_var_idx": [0],
        "nr_devices": 1,
    } | changes


def vjp_of(**changes: Any) -> dict[str, Any]:
    """The VJP of that function."""
    two = [aval("2"), aval("2")]
    signature = {"in_tree": call_of(leaf(), leaf()), "in_avals": two, "in_shardings": [{}, {}]}
    return function(**{**signature, "out_tree": tuple_of(leaf()), **changes})


def dimension(text: str) -> dict[str, Any]:
    return function(in_avals=[aval(text)], uses_global_constants=True)


def changed(change: Callable[[bytearray], None], artifact: dict[str, Any] | None = None) -> bytes:
    blob = bytearray(Writer().finish(artifact or function()))
    change(blob)
    return bytes(blob)


MARK = b"jaxexp\0\1"


def with_head(blob: bytes, end: int) -> bytes:
    """Offsets are relative, so whatever lies behind the root offset may move together."""
    return struct.pack("<I", struct.unpack_from("<I", blob)[0] + 12) + MARK + struct.pack("<I", end) + blob[4:]
