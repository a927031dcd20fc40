"""Writes the hostile files of this folder, manifest.json and README.md: the same bytes every time."""

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

from attacks.tables import (  # noqa: E402
    MARK,
    Writer,
    aval,
    call_of,
    changed,
    dict_of,
    dimension,
    function,
    leaf,
    mesh,
    sharded,
    spec,
    tuple_of,
    vjp_of,
    with_head,
)
from kit import wire  # noqa: E402

ATTACKS: dict[str, tuple[bytes, str, str]] = {}  # the bytes, what they attack, what the error says ("" where they load)


def attack(name: str, what: str, expected: str, artifact: dict[str, Any] | bytes) -> None:
    blob = artifact if isinstance(artifact, bytes) else Writer().finish(artifact)
    assert name not in ATTACKS
    ATTACKS[name] = blob, what, expected


# --- work that grows faster than the file -----------------------------------------------------------------------------


def doubled(bottom: Any, times: int, node: Callable[..., Any] = tuple_of) -> Any:
    for _ in range(times):
        bottom = node(bottom, bottom)
    return bottom


shared_leaf, shared_none = leaf(), {"kind": 1}
attack(
    "shared_subtrees",
    "time: 2^40 leaves in 41 shared nodes",
    "trees of at most [0-9]+ nodes",
    function(in_tree=call_of(doubled(shared_leaf, 40))),
)
attack(
    "shared_subtrees_without_leaves",
    "memory: 2^40 nodes without a leaf, so no aval counts them",
    "trees of at most [0-9]+ nodes",
    function(in_tree=call_of(leaf(), doubled(shared_none, 40))),
)
long_keys = [b"k" * 4000 + bytes([c]) for c in b"ab"]
attack(
    "shared_keys",
    "time: comparing long keys of dicts that are shared 2^13 times, within the limit on nodes",
    "dicts with keys of at most [0-9]+ bytes in total",
    function(
        in_tree=call_of(
            leaf(), doubled(shared_none, 13, lambda *c: {"kind": 4, "children": list(c), "children_names": long_keys})
        )
    ),
)
deep = leaf()
for _ in range(1200):
    deep = tuple_of(deep)
attack("deep_tree", "the stack: a tree of 1,200 levels", "levels", function(in_tree=call_of(deep)))
vjps = vjp_of()
for order in range(70):
    vjps = function(vjp=vjps) if order == 69 else vjp_of(vjp=vjps)
attack("vjp_chain", "the stack: 70 VJPs inside each other", "arguments|at most 64 VJPs", vjps)
long_shape = ["2"] * 4000
attack(
    "shared_shape",
    "time: a shape of 4,000 dimensions that 1,000 avals share",
    "vectors that do not overlap and are not shared over and over",
    function(in_avals=[{"shape": long_shape, "dtype": 10} for _ in range(1000)]),
)
size, strings = 8000, 1900
# All of them end where the last one does, and their lengths are text inside of the ones before.
lengths = [struct.pack("<I", 4 * (strings - i - 1) + size) for i in range(strings)]
region = b"".join(length if max(length) < 128 else b"aaaa" for length in lengths) + b"a" * size + bytes(4)
attack(
    "overlapping_strings",
    "time: a thousand overlapping strings, each of which is checked for UTF-8",
    "vectors that do not overlap",
    b"",
)
long_axes = {f"axis_{i}": 1 for i in range(250)}
meshes, specs = [mesh(**long_axes) for _ in range(30)], [spec(list(long_axes)) for _ in range(30)]
attack(
    "meshes_times_specs",
    "time: each of 30 specs of 250 axes with each of 30 meshes of these axes",
    "tables that can be compared in [0-9]+ steps",
    function(
        in_shardings=[{"named_sharding": {"mesh": m, "spec": s}} for m in meshes for s in specs],
        in_avals=[aval("2")] * 900,
        in_tree=call_of(*[shared_leaf] * 900),
    ),
)
once, again = ({"shape": shape, "dtype": 10, "memory_space": 1} for shape in (["2"] * 1000, ["2"] * 1000))
attack(
    "lists_that_say_it_twice",
    "time: equal avals of 1,000 dimensions at two places, compared for each of 1,600 arguments",
    "tables that can be compared in [0-9]+ steps",
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

attack(
    "dimension_nesting",
    "the stack: 1,000 operations inside each other",
    "at most 64 nested operations",
    dimension("floordiv(" * 1000 + "a" + ", 2)" * 1000),
)
attack("dimension_exponent", "memory: a power with 10^9 factors", "powers of at most 63", dimension("a^1000000000"))
attack(
    "dimension_power_of_sum",
    "memory: a maximum that folds into a sum, whose power JAX multiplies out",
    "powers of at most 63",
    dimension("max(a + b + c + d + 1, a + b + c + d)^200"),
)
attack("dimension_integer", "time: a number of 60,000 digits", "at most 16384 characters", dimension("9" * 60_000))
attack(
    "dimension_large_integer",
    "numbers: a number that does not fit into 64 bits",
    "fit into 63 bits",
    dimension("9" * 30 + "*a"),
)
attack("dimension_number_power", "memory: a power of a number", "as JAX prints it", dimension("9^999999999"))
attack(
    "dimension_division_by_zero",
    "sizes: a division by zero",
    "without a division by zero",
    dimension("floordiv(a, 0)"),
)
attack("dimension_negative", "sizes: a negative size", "not negative", dimension("-5"))
attack(
    "dimension_of_code",
    "the parser: Python code in a dimension",
    "as JAX prints it",
    dimension("__import__('os').abort()"),
)
attack("dimension_of_two", "shapes: two dimensions in the text of one", "as JAX prints it", dimension("a, b"))
attack(
    "dimension_with_constants",
    "numbers: constants that fold to 2^63",
    "as JAX prints it",
    dimension("4611686018427387904*2*a"),
)
maxima = " + ".join(f"max({a}, {b})" for a, b in itertools.pairwise("abcde"))
minima = " + ".join(f"min({a}, {b})" for a, b in itertools.pairwise("acegi"))
attack(
    "dimension_maxima",
    "time: maxima of sums of maxima, which keep JAX's parser busy for half a minute; it loads",
    "",
    dimension(f"max({maxima}, {minima})"),
)
attack(
    "dimension_maxima_in_maxima",
    "time: twelve nested maxima, which take exponential time in JAX's parser; it loads",
    "",
    dimension("max(" * 12 + "a" + "".join(f", {b})" for b in "bcdefghijklm")),
)
attack(
    "symbolic_without_constants",
    "modules: a symbolic dimension, but a module that claims to use none",
    "uses_global_constants",
    function(in_avals=[aval("b")]),
)

# --- lies -------------------------------------------------------------------------------------------------------------

attack(
    "leaves", "trees: two leaves for one aval", "1 leaves, one for each aval", function(in_tree=call_of(leaf(), leaf()))
)
attack(
    "tree_of_no_call",
    "trees: a list instead of the arguments and keywords of a call",
    "tuple of arguments",
    function(in_tree={"kind": 3, "children": [tuple_of(leaf()), {"kind": 4}]}),
)
attack(
    "keys_unsorted",
    "trees: a dict with descending keys",
    "keys in ascending order",
    function(in_tree=call_of(dict_of(b=leaf(), a={"kind": 1}))),
)
attack(
    "kept_unsorted",
    "arguments: one argument is kept twice",
    "indices in ascending order",
    function(module_kept_var_idx=[0, 0]),
)
attack(
    "kept_outside",
    "arguments: an argument is kept that does not exist",
    "an index below 1",
    function(module_kept_var_idx=[1]),
)
attack(
    "vjp_dtype",
    "VJPs: a cotangent of another dtype",
    "the dtype of cotangents",
    function(vjp=vjp_of(in_avals=[aval("2"), aval("2", dtype=3)])),
)
attack(
    "vjp_shape",
    "VJPs: an argument of another shape",
    "the shape of the primal's argument",
    function(vjp=vjp_of(in_avals=[aval("3"), aval("2")])),
)
attack("vjp_count", "VJPs: no cotangent", "a cotangent for each of its results", function(vjp=function()))
attack(
    "vjp_platform",
    "VJPs: a VJP for another platform",
    "platforms of the primal",
    function(vjp=vjp_of(platforms=["tpu"])),
)
attack(
    "lists_that_differ",
    "avals: the index and the list name different avals",
    "the aval that its index stands for",
    function(unique_avals=[aval("2"), aval("3")], in_avals_idxs=[0], out_avals_idxs=[1]),
)
attack(
    "index_outside",
    "indices: an aval that does not exist",
    "an index below 1",
    function(unique_avals=[aval("2")], in_avals_idxs=[7], out_avals_idxs=[0]),
)
attack(
    "mesh_of_other_devices",
    "devices: a mesh of 8 in a function for 2",
    "a mesh of 2 devices",
    sharded(mesh(x=8), spec(["x"]), 2),
)
attack(
    "mesh_overflow",
    "devices: axes whose product is 0 modulo 2^32",
    "found a larger one",
    sharded(mesh(a=2**31, b=2**31, c=4), spec(["a"])),
)
attack("mesh_of_nothing", "devices: an axis of size 0", "a positive size", sharded(mesh(x=0), spec(["x"])))
attack(
    "mesh_of_many_axes",
    "names: 5,000 axes",
    "at most 256 mesh axes",
    sharded(mesh(**{f"a{i}": 1 for i in range(5000)}), spec()),
)
attack(
    "mesh_twins",
    "names: two axes with the same name",
    "each mesh axis once",
    sharded({"axis_names": ["x", "x"], "axis_sizes": [1, 1], "axis_types": [1, 1]}, spec(["x"])),
)
attack(
    "spec_of_another_mesh",
    "names: an axis that the mesh does not have",
    "an axis of the mesh",
    sharded(mesh(x=1), spec(["y"])),
)
attack("spec_twice", "names: an axis that is used twice", "each axis once", sharded(mesh(x=1), spec(["x", "x"])))
attack(
    "spec_too_long",
    "shapes: three partitions for one dimension",
    "one with 3 partitions",
    sharded(mesh(x=1), spec([], [], ["x"])),
)
proto = {"kind": 1, "hlo_sharding_proto": [8, 3, 26, 2, 4, 2, 74, 1, 8, 82, 1, 90]}
attack(
    "op_sharding_permutation",
    "XLA, which ends the process: an order of axes with an axis that does not exist",
    "with an order of its devices",
    function(in_shardings=[proto], nr_devices=8),
)
attack(
    "op_sharding_devices",
    "XLA: tiles for 2^62 devices",
    "one for each device",
    function(in_shardings=[{"kind": 1, "hlo_sharding_proto": [8, 3, 26, 9, *[128] * 8, 64]}]),
)
attack("device_counts", "devices: two different counts", "the other number of devices", function(nr_devices_short=3))
attack(
    "effects_twice",
    "effects: the same type twice",
    "each effect once",
    function(ordered_effects=[{"type_name": "<class 'e'>"}, {"type_name": "<class 'e'>"}]),
)
attack(
    "platforms_twice",
    "platforms: the same platform twice",
    "each platform once",
    function(platforms=["cpu", "cpu"], uses_global_constants=True),
)
attack("text_surrogate", "texts: a lone surrogate", "UTF-8", function(function_name=b"\xed\xa0\x80"))
attack("text_overlong", "texts: a slash encoded in two bytes", "UTF-8", function(platforms=[b"\xc0\xaf"]))

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


ATTACKS["overlapping_strings"] = (changed(in_overlap), *ATTACKS["overlapping_strings"][1:])
attack(
    "vtable_odd",
    "places: a vtable with an odd size",
    "root table is damaged",
    changed(lambda b: struct.pack_into("<H", b, vtable_of_root(b), 7)),
)
attack(
    "vtable_outside",
    "places: a vtable after the end",
    "root table is damaged",
    changed(lambda b: struct.pack_into("<i", b, struct.unpack_from("<I", b)[0], -(2**30))),
)
attack(
    "vtable_of_everything",
    "places: a vtable that claims a size of 64 kB",
    "root table is damaged",
    changed(lambda b: struct.pack_into("<H", b, vtable_of_root(b), 65534)),
)
attack(
    "field_outside",
    "places: a field 64 kB after its table",
    "inside the buffer",
    changed(lambda b: struct.pack_into("<H", b, vtable_of_root(b) + 4 + 2 * 18, 65532)),
)
attack(
    "offset_outside",
    "places: a tree at an offset of 4 GB",
    "one that leads out of it",
    changed(lambda b: wire.write(b, "in_tree@", 2**32 - 4)),
)
attack(
    "offset_to_itself",
    "places: a vector at the position of its own offset",
    "one that leads out of it",
    changed(lambda b: wire.write(b, "in_avals@", 0)),
)
attack(
    "offset_odd",
    "places: a tree at an odd place",
    "a multiple of four",
    changed(lambda b: wire.write(b, "in_tree@", 5)),
)
attack(
    "count_of_avals",
    "memory: 2^32 - 1 avals in 700 bytes",
    "a vector inside the buffer",
    changed(lambda b: wire.write(b, "in_avals", 2**32 - 1)),
)
attack(
    "count_of_module",
    "memory: a module of 2 GiB in a file of 700 bytes",
    "a vector inside the buffer",
    changed(lambda b: wire.write(b, "mlir_module_serialized", 2**31 - 1)),
)
attack(
    "count_of_text",
    "memory: a name of 4 GiB",
    "a zero-terminated string inside the buffer",
    changed(lambda b: wire.write(b, "function_name", 2**32 - 1)),
)
attack(
    "vector_as_tables",
    "places: a vector of numbers instead of avals",
    "inside the buffer|out of it",
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
attack(
    "trailer_cut",
    "trailers: a trailer that ends after the end of the file",
    "as the artifact says of itself",
    with_head(plain, 10**6),
)
attack(
    "trailer_of_nothing",
    "trailers: a mark without a trailer",
    "the end of a trailer",
    with_head(plain, len(plain) + 12),
)
headed = with_head(plain, len(plain) + 12 + 48)
attack(
    "trailer_of_zeros",
    "trailers: digests of zeros",
    "the trailer's bytes as they were written",
    headed + bytes(16) + struct.pack("<II", len(headed), 0) + bytes(16) + MARK,
)
footer = xxhash.xxh3_128_digest(headed) + struct.pack("<II", len(headed), 0)
attack(
    "trailer_without_tables",
    "trailers: correct digests of nothing",
    "tables inside the trailer",
    headed + footer + xxhash.xxh3_128_digest(footer) + MARK,
)


def main() -> None:
    for old in HERE.glob("*.bin"):
        old.unlink()
    for name, (blob, _, _) in ATTACKS.items():
        (HERE / f"{name}.bin").write_bytes(blob)
    manifest = {name: {"attacks": what, "expected": expected} for name, (_, what, expected) in ATTACKS.items()}
    (HERE / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    rows = "\n".join(f"| `{name}.bin` | {what} |" for name, (_, what, _) in ATTACKS.items())
    (HERE / "README.md").write_text(
        "# Hostile files\n\n"
        "Each file is refused with one `DeserializationError`, unless the table says that it loads. Both take little\n"
        "time and memory; `python tests/attacks/measure.py` prints how much. `make.py` writes the files,\n"
        "`manifest.json` and this page.\n\n"
        f"| file | what it attacks |\n|---|---|\n{rows}\n"
    )


if __name__ == "__main__":
    main()
