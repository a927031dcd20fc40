"""Finds and changes single values in serialized bytes, knowing nothing but the published layout of the tables."""

from __future__ import annotations

import struct
from typing import Any

import xxhash

# Each table's fields: slot and type. "T" is a table, "[T]" a vector of tables; scalars have their struct code, "s" is a
# string, "[code]" a vector of scalars.
LAYOUT: dict[str, dict[str, tuple[int, str]]] = {
    "PyTreeDef": {
        "kind": (0, "b"), "children": (1, "[PyTreeDef]"), "children_names": (2, "[s]"), "custom_name": (3, "s"),
        "custom_auxdata": (4, "[b]"),
    },
    "AbstractDevice": {"device_kind": (0, "s"), "num_cores": (1, "I"), "platform": (2, "s")},
    "AbstractMesh": {
        "axis_sizes": (0, "[I]"), "axis_names": (1, "[s]"), "axis_types": (2, "[b]"),
        "abstract_device": (3, "AbstractDevice"),
    },
    "PartitionSpecOneAxis": {"axes": (0, "[s]")},
    "PartitionSpec": {"partitions": (0, "[PartitionSpecOneAxis]"), "reduced": (1, "[s]"), "unreduced": (2, "[s]")},
    "NamedSharding": {
        "mesh": (0, "AbstractMesh"), "spec": (1, "PartitionSpec"), "memory_kind": (2, "s"),
        "abstract_mesh_idx": (3, "I"),
    },
    "AbstractValue": {"kind": (0, "b"), "shape": (1, "[s]"), "dtype": (2, "b"), "memory_space": (3, "b")},
    "Sharding": {"kind": (0, "b"), "hlo_sharding_proto": (1, "[b]"), "named_sharding": (2, "NamedSharding")},
    "Effect": {"type_name": (0, "s")},
    "DisabledSafetyCheck": {"kind": (0, "b"), "custom_call_target": (1, "s")},
    "Exported": {
        "serialization_version": (0, "H"), "function_name": (1, "s"), "in_tree": (2, "PyTreeDef"),
        "in_avals": (3, "[AbstractValue]"), "out_tree": (4, "PyTreeDef"), "out_avals": (5, "[AbstractValue]"),
        "nr_devices_short": (6, "h"), "in_shardings": (7, "[Sharding]"), "out_shardings": (8, "[Sharding]"),
        "platforms": (9, "[s]"), "ordered_effects": (10, "[Effect]"), "unordered_effects": (11, "[Effect]"),
        "disabled_checks": (12, "[DisabledSafetyCheck]"), "mlir_module_serialized": (13, "[b]"),
        "calling_convention_version": (14, "H"), "module_kept_var_idx": (15, "[H]"), "uses_global_constants": (16, "?"),
        "vjp": (17, "Exported"), "nr_devices": (18, "I"), "unique_avals": (19, "[AbstractValue]"),
        "unique_abstract_meshes": (20, "[AbstractMesh]"), "unique_named_shardings": (21, "[NamedSharding]"),
        "in_avals_idxs": (22, "[I]"), "out_avals_idxs": (23, "[I]"), "in_shardings_idxs": (24, "[I]"),
        "out_shardings_idxs": (25, "[I]"), "jax_version": (26, "s"),
    },
}  # fmt: skip


def _u32(buffer: Any, at: int) -> int:
    return struct.unpack_from("<I", buffer, at)[0]


def _field(buffer: Any, table: int, slot: int) -> int | None:
    """Where a table's field lies; None where the table does not have it."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    size = struct.unpack_from("<H", buffer, vtable)[0]
    entry = 4 + 2 * slot
    offset = struct.unpack_from("<H", buffer, vtable + entry)[0] if entry < size else 0
    return table + offset if offset else None


def locate(buffer: Any, path: str) -> tuple[int, str]:
    """The position and type of a value, for paths such as ``vjp.unique_avals.0.dtype``. LookupError where it is absent.

    A path that ends with a vector or string gives the position of its length, one ending with ``@`` after a name the
    position of the field itself (the offset).
    """
    at, kind = _u32(buffer, 0), "Exported"
    for part in path.split("."):
        if part.isdigit():
            kind = kind[1:-1]
            length, index = _u32(buffer, at), int(part)
            if index >= length:
                raise LookupError(f"{path}: {length} elements")
            at += 4 + index * struct.calcsize({"s": "I"}.get(kind, kind) if len(kind) == 1 else "I")
            if kind in LAYOUT or kind == "s":
                at += _u32(buffer, at)
            continue
        name = part.removesuffix("@")
        slot, kind = LAYOUT[kind][name]
        field = _field(buffer, at, slot)
        if field is None:
            raise LookupError(f"{path}: no {name}")
        at = field
        if part.endswith("@"):
            return at, "I"
        if len(kind) > 1 or kind == "s":
            at += _u32(buffer, at)
    return at, kind


def length(buffer: Any, path: str) -> int:
    """The number of elements of a vector; 0 where it is absent."""
    try:
        return _u32(buffer, locate(buffer, path)[0])
    except LookupError:
        return 0


def read(buffer: Any, path: str) -> Any:
    """A scalar or a string."""
    at, kind = locate(buffer, path)
    if kind == "s":
        return bytes(buffer[at + 4 : at + 4 + _u32(buffer, at)]).decode()
    return struct.unpack_from(f"<{kind}", buffer, at)[0]


def write(buffer: bytearray, path: str, value: Any) -> None:
    """Overwrites a scalar, a string of the same length, a vector's length, or (with ``@``) an offset."""
    at, kind = locate(buffer, path)
    if kind == "s" and isinstance(value, (str, bytes)):
        data = value.encode() if isinstance(value, str) else value
        assert len(data) == _u32(buffer, at), "a string is replaced by one of the same length"
        buffer[at + 4 : at + 4 + len(data)] = data
    else:
        struct.pack_into(f"<{kind if len(kind) == 1 and kind != 's' else 'I'}", buffer, at, value)


def remove(buffer: bytearray, path: str) -> None:
    """Makes a table forget a field. Tables that share the vtable forget it too."""
    head, _, name = path.rpartition(".")
    table, kind = locate(buffer, head) if head else (_u32(buffer, 0), "Exported")
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    struct.pack_into("<H", buffer, vtable + 4 + 2 * LAYOUT[kind][name][0], 0)


def add_slot(buffer: bytearray, path: str = "", value_of: int = 0) -> None:
    """Gives a table a field that no reader knows, behind all that the layout has; its value is that of another slot."""
    table, kind = locate(buffer, path) if path else (_u32(buffer, 0), "Exported")
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    size, table_size = struct.unpack_from("<HH", buffer, vtable)
    entries = list(struct.unpack_from(f"<{(size - 4) // 2}H", buffer, vtable + 4))
    unknown = 1 + max(slot for slot, _ in LAYOUT[kind].values())
    entries += [0] * (unknown - len(entries)) + [entries[value_of]]
    assert entries[-1], "the slot to copy is there"
    buffer += bytes(-len(buffer) % 4)
    struct.pack_into("<i", buffer, table, table - len(buffer))
    buffer += struct.pack(f"<{2 + len(entries)}H", 4 + 2 * len(entries), table_size, *entries)


# Trailers; schema/trailer.fbs has the layout.

MARK = b"jaxexp\0\1"


def has_trailer(buffer: Any) -> bool:
    return bytes(buffer[4:12]) == MARK


def trailer_of(buffer: Any) -> tuple[int, int, int]:
    """Where its flat buffer starts, where its footer does, and where the first module's length is."""
    footer = _u32(buffer, 12) - 48
    metadata_size, content_size = struct.unpack_from("<II", buffer, footer + 16)
    return footer - content_size, footer, metadata_size


def seal(buffer: bytearray) -> bytearray:
    """Computes the digests of metadata and trailer anew, as somebody who changes an artifact on purpose would."""
    start, footer, metadata_size = trailer_of(buffer)
    buffer[footer : footer + 16] = xxhash.xxh3_128_digest(bytes(buffer[:metadata_size]))
    buffer[footer + 24 : footer + 40] = xxhash.xxh3_128_digest(bytes(buffer[start : footer + 24]))
    return buffer
