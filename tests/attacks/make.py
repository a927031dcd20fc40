"""Writes the hostile files of this folder, and the table of README.md: the same bytes every time."""

from __future__ import annotations

import itertools
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers
import xxhash

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.setrecursionlimit(20_000)

from kit import wire  # noqa: E402


class Writer:
    """Artifacts made of tables as dicts and vectors as lists: one that appears twice is written once."""

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


def with_head(blob: bytes, end: int) -> bytes:
    """Offsets are relative, so whatever lies behind the root offset may move together."""
    return struct.pack("<I", struct.unpack_from("<I", blob)[0] + 12) + wire.MARK + struct.pack("<I", end) + blob[4:]


ATTACKS: dict[str, bytes] = {}  # manifest.json says what each attacks, and what the error says, "" where it loads


def attack(name: str, artifact: dict[str, Any] | bytes) -> None:
    assert name not in ATTACKS
    ATTACKS[name] = artifact if isinstance(artifact, bytes) else Writer().finish(artifact)


# --- work that grows faster than the file -----------------------------------------------------------------------------


def doubled(bottom: Any, times: int, node: Callable[..., Any] = tuple_of) -> Any:
    for _ in range(times):
        bottom = node(bottom, bottom)
    return bottom


shared_leaf, shared_none = leaf(), {"kind": 1}
attack("shared_subtrees", function(in_tree=call_of(doubled(shared_leaf, 40))))
attack("shared_subtrees_without_leaves", function(in_tree=call_of(leaf(), doubled(shared_none, 40))))
long_keys = [b"k" * 4000 + bytes([c]) for c in b"ab"]
attack(
    "shared_keys",
    function(
        in_tree=call_of(
            leaf(), doubled(shared_none, 13, lambda *c: {"kind": 4, "children": list(c), "children_names": long_keys})
        )
    ),
)
deep = leaf()
for _ in range(1200):
    deep = tuple_of(deep)
attack("deep_tree", function(in_tree=call_of(deep)))
vjps = vjp_of()
for order in range(70):
    vjps = function(vjp=vjps) if order == 69 else vjp_of(vjp=vjps)
attack("vjp_chain", vjps)
long_shape = ["2"] * 4000
attack("shared_shape", function(in_avals=[{"shape": long_shape, "dtype": 10} for _ in range(1000)]))
size, strings = 8000, 1900
# All of them end where the last one does, and their lengths are text inside of the ones before.
lengths = [struct.pack("<I", 4 * (strings - i - 1) + size) for i in range(strings)]
region = b"".join(length if max(length) < 128 else b"aaaa" for length in lengths) + b"a" * size + bytes(4)
long_axes = {f"axis_{i}": 1 for i in range(250)}
meshes, specs = [mesh(**long_axes) for _ in range(30)], [spec(list(long_axes)) for _ in range(30)]
attack(
    "meshes_times_specs",
    function(
        in_shardings=[{"named_sharding": {"mesh": m, "spec": s}} for m in meshes for s in specs],
        in_avals=[aval("2")] * 900,
        in_tree=call_of(*[shared_leaf] * 900),
    ),
)
once, again = ({"shape": shape, "dtype": 10, "memory_space": 1} for shape in (["2"] * 1000, ["2"] * 1000))
attack(
    "lists_that_say_it_twice",
    function(
        in_avals=[once] * 1600,
        unique_avals=[again],
        in_avals_idxs=[0] * 1600,
        in_shardings=[{}] * 1600,
        in_tree=call_of(*[shared_leaf] * 1600),
        out_avals=[],
        out_shardings=[],
        out_tree=shared_none,
    ),
)

# --- dimensions -------------------------------------------------------------------------------------------------------

attack("dimension_nesting", dimension("floordiv(" * 1000 + "a" + ", 2)" * 1000))
attack("dimension_exponent", dimension("a^1000000000"))
attack("dimension_power_of_sum", dimension("max(a + b + c + d + 1, a + b + c + d)^200"))
attack("dimension_integer", dimension("9" * 60_000))
attack("dimension_large_integer", dimension("9" * 30 + "*a"))
attack("dimension_number_power", dimension("9^999999999"))
attack("dimension_division_by_zero", dimension("floordiv(a, 0)"))
attack("dimension_negative", dimension("-5"))
attack("dimension_of_code", dimension("__import__('os').abort()"))
attack("dimension_of_two", dimension("a, b"))
attack("dimension_with_constants", dimension("4611686018427387904*2*a"))
maxima = " + ".join(f"max({a}, {b})" for a, b in itertools.pairwise("abcde"))
minima = " + ".join(f"min({a}, {b})" for a, b in itertools.pairwise("acegi"))
attack("dimension_maxima", dimension(f"max({maxima}, {minima})"))
attack("dimension_maxima_in_maxima", dimension("max(" * 12 + "a" + "".join(f", {b})" for b in "bcdefghijklm")))
attack("symbolic_without_constants", function(in_avals=[aval("b")]))

# --- lies -------------------------------------------------------------------------------------------------------------

attack("leaves", function(in_tree=call_of(leaf(), leaf())))
attack("tree_of_no_call", function(in_tree={"kind": 3, "children": [tuple_of(leaf()), {"kind": 4}]}))
attack("keys_unsorted", function(in_tree=call_of(dict_of(b=leaf(), a={"kind": 1}))))
attack("kept_unsorted", function(module_kept_var_idx=[0, 0]))
attack("kept_outside", function(module_kept_var_idx=[1]))
attack("vjp_dtype", function(vjp=vjp_of(in_avals=[aval("2"), aval("2", dtype=3)])))
attack("vjp_shape", function(vjp=vjp_of(in_avals=[aval("3"), aval("2")])))
attack("vjp_count", function(vjp=function()))
attack("vjp_platform", function(vjp=vjp_of(platforms=["tpu"])))
attack("lists_that_differ", function(unique_avals=[aval("2"), aval("3")], in_avals_idxs=[0], out_avals_idxs=[1]))
attack("index_outside", function(unique_avals=[aval("2")], in_avals_idxs=[7], out_avals_idxs=[0]))
attack("mesh_of_other_devices", sharded(mesh(x=8), spec(["x"]), 2))
attack("mesh_overflow", sharded(mesh(a=2**31, b=2**31, c=4), spec(["a"])))
attack("mesh_of_nothing", sharded(mesh(x=0), spec(["x"])))
attack("mesh_of_many_axes", sharded(mesh(**{f"a{i}": 1 for i in range(5000)}), spec()))
attack("mesh_twins", sharded({"axis_names": ["x", "x"], "axis_sizes": [1, 1], "axis_types": [1, 1]}, spec(["x"])))
attack("spec_of_another_mesh", sharded(mesh(x=1), spec(["y"])))
attack("spec_twice", sharded(mesh(x=1), spec(["x", "x"])))
attack("spec_too_long", sharded(mesh(x=1), spec([], [], ["x"])))
proto = {"kind": 1, "hlo_sharding_proto": [8, 3, 26, 2, 4, 2, 74, 1, 8, 82, 1, 90]}
attack("op_sharding_permutation", function(in_shardings=[proto], nr_devices=8))
attack("op_sharding_devices", function(in_shardings=[{"kind": 1, "hlo_sharding_proto": [8, 3, 26, 9, *[128] * 8, 64]}]))
attack("device_counts", function(nr_devices_short=3))
attack("effects_twice", function(ordered_effects=[{"type_name": "<class 'e'>"}, {"type_name": "<class 'e'>"}]))
attack("platforms_twice", function(platforms=["cpu", "cpu"], uses_global_constants=True))
attack("text_surrogate", function(function_name=b"\xed\xa0\x80"))
attack("text_overlong", function(platforms=[b"\xc0\xaf"]))

# --- places -----------------------------------------------------------------------------------------------------------


def vtable_of_root(blob: bytearray) -> int:
    table = struct.unpack_from("<I", blob)[0]
    return table - struct.unpack_from("<i", blob, table)[0]


def in_overlap(blob: bytearray) -> None:
    """Makes platforms a vector of strings of that region."""
    blob += bytes(-len(blob) % 4)
    at, _ = wire.locate(blob, "platforms@")
    vector = len(blob)
    struct.pack_into("<I", blob, at, vector - at)
    places = [i for i, length in enumerate(lengths) if max(length) < 128]
    texts = vector + 4 + 4 * len(places)
    blob += struct.pack("<I", len(places))
    for i in places:
        blob += struct.pack("<I", texts + 4 * i - len(blob))
    blob.extend(region)


attack("overlapping_strings", changed(in_overlap))
attack("vtable_odd", changed(lambda b: struct.pack_into("<H", b, vtable_of_root(b), 7)))
attack("vtable_outside", changed(lambda b: struct.pack_into("<i", b, struct.unpack_from("<I", b)[0], -(2**30))))
attack("vtable_of_everything", changed(lambda b: struct.pack_into("<H", b, vtable_of_root(b), 65534)))
attack("field_outside", changed(lambda b: struct.pack_into("<H", b, vtable_of_root(b) + 4 + 2 * 18, 65532)))
attack("offset_outside", changed(lambda b: wire.write(b, "in_tree@", 2**32 - 4)))
attack("offset_to_itself", changed(lambda b: wire.write(b, "in_avals@", 0)))
attack("offset_odd", changed(lambda b: wire.write(b, "in_tree@", 5)))
attack("count_of_avals", changed(lambda b: wire.write(b, "in_avals", 2**32 - 1)))
attack("count_of_module", changed(lambda b: wire.write(b, "mlir_module_serialized", 2**31 - 1)))
attack("count_of_text", changed(lambda b: wire.write(b, "function_name", 2**32 - 1)))
attack(
    "vector_as_tables",
    changed(
        lambda b: struct.pack_into(
            "<I",
            b,
            wire.locate(b, "in_avals@")[0],
            wire.locate(b, "module_kept_var_idx")[0] - wire.locate(b, "in_avals@")[0],
        ),
        function(module_kept_var_idx=list(range(1, 60))),
    ),
)


# --- trailers ---------------------------------------------------------------------------------------------------------

plain = Writer().finish(function())
attack("trailer_cut", with_head(plain, 10**6))
attack("trailer_of_nothing", with_head(plain, len(plain) + 12))
headed = with_head(plain, len(plain) + 12 + 48)
attack("trailer_of_zeros", headed + bytes(16) + struct.pack("<II", len(headed), 0) + bytes(16) + wire.MARK)
footer = xxhash.xxh3_128_digest(headed) + struct.pack("<II", len(headed), 0)
attack("trailer_without_tables", headed + footer + xxhash.xxh3_128_digest(footer) + wire.MARK)


def main() -> None:
    for old in HERE.glob("*.bin"):
        old.unlink()
    for name, blob in ATTACKS.items():
        (HERE / f"{name}.bin").write_bytes(blob)
    manifest = json.loads((HERE / "manifest.json").read_text())
    assert sorted(manifest) == sorted(ATTACKS), "manifest.json says what each file attacks"
    rows = "\n".join(f"| `{name}.bin` | {entry['attacks']} |" for name, entry in manifest.items())
    readme = (HERE / "README.md").read_text().partition("|---|---|\n")
    (HERE / "README.md").write_text("".join(readme[:2]) + rows + "\n")


if __name__ == "__main__":
    main()
