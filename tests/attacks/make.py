"""Writes the hostile files of this folder, and the table of README.md: the same bytes every time."""

from __future__ import annotations

import itertools
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.setrecursionlimit(20_000)

from kit import wire  # noqa: E402
from kit.layout import DICT, LEAF, LIST, NONE, TUPLE, aval, node, table  # noqa: E402
from kit.parts import Part, put_together  # noqa: E402


def call_of(*arguments: Part) -> Part:
    return node(TUPLE, node(TUPLE, *arguments), node(DICT))


def mesh(**axes: int) -> Part:
    sizes, types = list(axes.values()), [1] * len(axes)
    return table("AbstractMesh", axis_names=list(axes), axis_sizes=sizes, axis_types=types)


def spec(*partitions: list[str]) -> Part:
    return table("PartitionSpec", partitions=[table("PartitionSpecOneAxis", axes=axes) for axes in partitions])


def placed(mesh: Part, spec: Part) -> Part:
    return table("Sharding", named_sharding=table("NamedSharding", mesh=mesh, spec=spec))


def sharded(mesh: Part, spec: Part, devices: int = 1) -> Part:
    return function(in_shardings=[placed(mesh, spec)], nr_devices=devices)


def function(**changes: Any) -> Part:
    """A function from float32[2] to float32[2], in the layout of JAX 0.9.2."""
    fields = {
        "serialization_version": 3,
        "function_name": "f",
        "in_tree": call_of(node(LEAF)),
        "in_avals": [aval("2")],
        "out_tree": node(LEAF),
        "out_avals": [aval("2")],
        "in_shardings": [table("Sharding")],
        "out_shardings": [table("Sharding")],
        "platforms": ["cpu"],
        "mlir_module_serialized": bytes(8),
        "calling_convention_version": 10,
        "module_kept_var_idx": [0],
        "nr_devices": 1,
    }
    return table("Exported", **{**fields, **changes})


def vjp_of(**changes: Any) -> Part:
    signature = {
        "in_tree": call_of(node(LEAF), node(LEAF)),
        "in_avals": [aval("2"), aval("2")],
        "in_shardings": [table("Sharding"), table("Sharding")],
        "out_tree": node(TUPLE, node(LEAF)),
    }
    return function(**{**signature, **changes})


def dimension(text: str) -> Part:
    return function(in_avals=[aval(text)], uses_global_constants=True)


def changed(change: Callable[[bytearray], None], artifact: Part | None = None) -> bytes:
    blob = bytearray(put_together(artifact or function()))
    change(blob)
    return bytes(blob)


def with_head(blob: bytes, end: int) -> bytes:
    """Offsets are relative, so whatever lies behind the root offset may move together."""
    return struct.pack("<I", struct.unpack_from("<I", blob)[0] + 12) + wire.MARK + struct.pack("<I", end) + blob[4:]


ATTACKS: dict[str, bytes] = {}  # manifest.json says what each attacks, and what the error says, "" where it loads


def attack(name: str, artifact: Part | bytes) -> None:
    assert name not in ATTACKS
    ATTACKS[name] = artifact if isinstance(artifact, bytes) else put_together(artifact)


# --- work that grows faster than the file -----------------------------------------------------------------------------


def doubled(bottom: Part, times: int, names: Any = None) -> Part:
    for _ in range(times):
        bottom = node(DICT if names else TUPLE, bottom, bottom, names=names)
    return bottom


shared_leaf, shared_none = node(LEAF), node(NONE)
attack("shared_subtrees", function(in_tree=call_of(doubled(shared_leaf, 40))))
attack("shared_subtrees_without_leaves", function(in_tree=call_of(shared_leaf, doubled(shared_none, 40))))
long_keys = [b"k" * 4000 + bytes([c]) for c in b"ab"]
attack("shared_keys", function(in_tree=call_of(shared_leaf, doubled(shared_none, 13, long_keys))))
deep = shared_leaf
for _ in range(1200):
    deep = node(TUPLE, deep)
attack("deep_tree", function(in_tree=call_of(deep)))
vjps = vjp_of()
for order in range(70):
    vjps = function(vjp=vjps) if order == 69 else vjp_of(vjp=vjps)
attack("vjp_chain", vjps)
long_shape = ["2"] * 4000
attack("shared_shape", function(in_avals=[table("AbstractValue", shape=long_shape, dtype=10) for _ in range(1000)]))
size, strings = 8000, 1900
# All of them end where the last one does, and their lengths are text inside of the ones before.
lengths = [struct.pack("<I", 4 * (strings - i - 1) + size) for i in range(strings)]
region = b"".join(length if max(length) < 128 else b"aaaa" for length in lengths) + b"a" * size + bytes(4)
long_axes = {f"axis_{i}": 1 for i in range(250)}
meshes, specs = [mesh(**long_axes) for _ in range(30)], [spec(list(long_axes)) for _ in range(30)]
attack(
    "meshes_times_specs",
    function(
        in_shardings=[placed(m, s) for m in meshes for s in specs],
        in_avals=[aval("2")] * 900,
        in_tree=call_of(*[shared_leaf] * 900),
    ),
)
once, again = (aval(*["2"] * 1000) for _ in range(2))
attack(
    "lists_that_say_it_twice",
    function(
        in_avals=[once] * 1600,
        unique_avals=[again],
        in_avals_idxs=[0] * 1600,
        in_shardings=[table("Sharding")] * 1600,
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

attack("leaves", function(in_tree=call_of(shared_leaf, shared_leaf)))
attack("tree_of_no_call", function(in_tree=node(LIST, node(TUPLE, shared_leaf), node(DICT))))
attack("keys_unsorted", function(in_tree=call_of(node(DICT, shared_leaf, shared_none, names=["b", "a"]))))
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
twins = table("AbstractMesh", axis_names=["x", "x"], axis_sizes=[1, 1], axis_types=[1, 1])
attack("mesh_twins", sharded(twins, spec(["x"])))
attack("spec_of_another_mesh", sharded(mesh(x=1), spec(["y"])))
attack("spec_twice", sharded(mesh(x=1), spec(["x", "x"])))
attack("spec_too_long", sharded(mesh(x=1), spec([], [], ["x"])))


def as_xla(*proto: int) -> list[Part]:
    return [table("Sharding", kind=1, hlo_sharding_proto=bytes(proto))]


permuted = as_xla(8, 3, 26, 2, 4, 2, 74, 1, 8, 82, 1, 90)
attack("op_sharding_permutation", function(in_shardings=permuted, nr_devices=8))
attack("op_sharding_devices", function(in_shardings=as_xla(8, 3, 26, 9, *[128] * 8, 64)))
attack("device_counts", function(nr_devices_short=3))
attack("effects_twice", function(ordered_effects=[table("Effect", type_name="<class 'e'>")] * 2))
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
attack("field_odd", changed(lambda b: struct.pack_into("<H", b, vtable_of_root(b) + 4 + 2 * 18, 41)))
attack("offset_outside", changed(lambda b: wire.write(b, "in_tree@", 2**32 - 4)))
attack("offset_to_itself", changed(lambda b: wire.write(b, "in_avals@", 0)))
attack("offset_odd", changed(lambda b: wire.write(b, "in_tree@", 5)))
attack("count_of_avals", changed(lambda b: wire.write(b, "in_avals", 2**32 - 1)))
attack("count_of_module", changed(lambda b: wire.write(b, "mlir_module_serialized", 2**31 - 1)))
attack("count_of_text", changed(lambda b: wire.write(b, "function_name", 2**32 - 1)))


def vector_as_tables(blob: bytearray) -> None:
    at = wire.locate(blob, "in_avals@")[0]
    struct.pack_into("<I", blob, at, wire.locate(blob, "module_kept_var_idx")[0] - at)


attack("vector_as_tables", changed(vector_as_tables, function(module_kept_var_idx=list(range(1, 60)))))

# --- trailers ---------------------------------------------------------------------------------------------------------

plain = put_together(function())
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
