"""The bytes themselves: determinism, buffers, views instead of copies, sizes, depth, and stability."""

from __future__ import annotations

import array
import dataclasses
import gc
import json
import mmap
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp import _native
from jaxexp._kernel.function.data import module_view
from kit import wire
from kit.compare import assert_same_chains, assert_same_fields
from kit.corpus import CASES, arr, export_with

MEGABYTE = 2**20


def exported_case(name: str, library=jaxexp):
    return export_with(library, CASES[name].build())


# --- determinism ----------------------------------------------------------------------------------------------------

_CHILD = """
import hashlib, json, sys
from kit import devices, corpus
import jaxexp
digests = {}
for name in sys.argv[2:]:
    exported = corpus.export_with(jaxexp, corpus.CASES[name].build())
    digests[name] = hashlib.sha256(exported.serialize(vjp_order=corpus.CASES[name].vjp_order)).hexdigest()
loaded = jaxexp.load(sys.argv[1])
digests["loaded"] = hashlib.sha256(loaded.serialize()).hexdigest()
print(json.dumps(digests))
"""


def test_same_bytes_in_every_process(tmp_path, subprocess_env) -> None:
    """Whatever the hash seed: sets of axis names, dictionaries and caches leave no trace."""
    # Several reduced axes: a set, whose order depends on the hash seed.
    m = jax.sharding.AbstractMesh(
        (2, 2, 2), ("alpha", "beta", "gamma"), axis_types=(jax.sharding.AxisType.Explicit,) * 3
    )
    spec = jax.sharding.PartitionSpec(None, reduced={"gamma", "alpha", "beta"})
    exported = dataclasses.replace(
        exported_case("sin"), _in_named_shardings=(jax.sharding.NamedSharding(m, spec),), nr_devices=8
    )
    exported.save(tmp_path / "f")
    names = ["mixed_nodes", "sharded_2d", "several_effects", "symbolic_expressions", "reduced_argument", "unicode_keys"]
    outputs = set()
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(tmp_path / "f"), *names],
            env=subprocess_env(PYTHONHASHSEED=seed), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert set(json.loads(outputs.pop())) == {*names, "loaded"}


def test_same_bytes_from_equal_objects() -> None:
    exported = exported_case("mixed_nodes")
    blob = exported.serialize(vjp_order=1)
    assert type(blob) is bytearray
    assert exported.serialize(vjp_order=1) == blob
    loaded = jaxexp.deserialize(blob)
    assert loaded.serialize(vjp_order=1) == blob
    assert jaxexp.deserialize(loaded.serialize(vjp_order=1)).serialize(vjp_order=1) == blob
    assert jaxexp.Exported.from_jax(jax_export.deserialize(blob)).serialize(vjp_order=1) == blob


# --- buffers --------------------------------------------------------------------------------------------------------

BUFFERS = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "writable memoryview": lambda b: memoryview(bytearray(b)),
    "signed memoryview": lambda b: memoryview(b).cast("b"),
    "shifted memoryview": lambda b: memoryview(b"xyz" + b)[3:],
    "numpy": lambda b: np.frombuffer(b, np.uint8),
    "writable numpy": lambda b: np.frombuffer(b, np.uint8).copy(),
    "array": lambda b: array.array("B", b),
    "trailing bytes": lambda b: b + b"a trailer that no reader of the format sees",
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_any_buffer(kind: str) -> None:
    original = exported_case("perceptron")
    blob = bytes(original.serialize(vjp_order=1))
    buffer = BUFFERS[kind](blob)
    loaded = jaxexp.deserialize(buffer)
    assert_same_chains(loaded, original, 1, as_written=True)
    assert loaded.serialize(vjp_order=1) == blob
    assert loaded == jaxexp.deserialize(blob)


def test_mmap(tmp_path) -> None:
    original = exported_case("perceptron")
    original.save(tmp_path / "f", vjp_order=1)
    with open(tmp_path / "f", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    loaded = jaxexp.deserialize(mapped)
    assert_same_chains(loaded, original, 1, as_written=True)
    del loaded
    gc.collect()
    mapped.close()  # raises BufferError if anything still held the buffer


def test_writable_buffer_may_be_used_again() -> None:
    """As with jax.export: a scratch buffer that is filled with something else leaves the loaded function alone."""
    original = exported_case("sin")
    blob = original.serialize(vjp_order=1)
    loaded = jaxexp.deserialize(blob)
    blob[:] = b"\xff" * len(blob)
    blob.clear()  # a BufferError if anything still held it
    assert_same_chains(loaded, original, 1, as_written=True)


def test_a_mapping_is_not_held(tmp_path) -> None:
    exported_case("sin").save(tmp_path / "f", vjp_order=1)
    with open(tmp_path / "f", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    loaded = jaxexp.deserialize(mapped)
    mapped.close()
    assert "stablehlo.cos" in loaded.vjp().mlir_module()


def test_bytes_are_held_as_long_as_needed() -> None:
    blob = bytes(exported_case("sin").serialize(vjp_order=1))
    before = sys.getrefcount(blob)
    loaded = jaxexp.deserialize(blob)
    vjp = loaded.vjp()
    del loaded
    gc.collect()
    assert sys.getrefcount(blob) > before
    assert "stablehlo.cos" in vjp.mlir_module()
    del vjp
    gc.collect()
    assert sys.getrefcount(blob) == before


def test_owner_that_disappears() -> None:
    """The function keeps its buffer alive by itself."""
    loaded = jaxexp.deserialize(bytes(exported_case("sin").serialize(vjp_order=1)))
    gc.collect()
    _ = [bytes(2000) for _ in range(1000)]
    np.testing.assert_allclose(loaded.call(arr(4)), np.sin(arr(4)), rtol=1e-6)
    assert loaded.vjp().mlir_module_serialized == module_view(loaded.vjp())


# --- views instead of copies ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large():
    """An Exported whose module is 64 MB; nothing here needs it to be a real one."""
    return dataclasses.replace(exported_case("wide_tree"), mlir_module_serialized=bytes(64 * MEGABYTE))


def peak_of(work) -> tuple[int, object]:
    gc.collect()
    tracemalloc.start()
    try:
        result = work()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def address(buffer) -> int:
    return np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]


def test_reading_copies_no_module(large) -> None:
    blob = bytes(large.serialize())
    assert len(blob) > 64 * MEGABYTE
    peak, loaded = peak_of(lambda: jaxexp.deserialize(blob))
    assert peak < MEGABYTE
    peak, _ = peak_of(lambda: (loaded.in_avals, loaded.in_tree, hash(loaded), loaded.in_shardings_hlo))
    assert peak < MEGABYTE
    peak, again = peak_of(loaded.serialize)
    assert 64 * MEGABYTE < peak < 66 * MEGABYTE, "the module is copied once, into the result"
    assert again == blob
    peak, module = peak_of(lambda: loaded.mlir_module_serialized)
    assert 64 * MEGABYTE < peak < 66 * MEGABYTE
    assert loaded.mlir_module_serialized is module


def test_module_is_a_view_into_the_buffer(large) -> None:
    blob = bytes(large.serialize())
    view = _native.Artifact(blob).module()
    assert type(view) is memoryview
    assert view.readonly
    assert view.nbytes == 64 * MEGABYTE
    assert address(blob) < address(view) < address(blob) + len(blob)
    writable = bytearray(blob)
    assert _native.Artifact(writable).module().readonly


def test_vjp_shares_the_buffer() -> None:
    blob = bytes(exported_case("sin").serialize(vjp_order=2))
    artifact = _native.Artifact(blob)
    start, end = address(blob), address(blob) + len(blob)
    modules = [artifact.module(), artifact.vjp().module(), artifact.vjp().vjp().module()]
    assert all(start < address(m) < end for m in modules)
    assert artifact.vjp().vjp().vjp() is None


def test_writing_parts_copies_no_module(large) -> None:
    arguments = [large], jax.__version__, _native.Form(), _native.Notes("jaxexp 0.1.0", {})
    peak, parts = peak_of(lambda: list(_native.EncodedParts(*arguments)))
    assert peak < MEGABYTE
    module = large.mlir_module_serialized
    assert address(module) in [address(part) for part in parts if len(memoryview(part)) == len(module)]
    assert b"".join(map(bytes, parts)) == _native.encode(*arguments) == large.serialize()


def test_saving_copies_no_module(large, tmp_path) -> None:
    peak, _ = peak_of(lambda: large.save(tmp_path / "f"))
    assert peak < MEGABYTE
    peak, loaded = peak_of(lambda: jaxexp.load(tmp_path / "f"))
    assert peak < MEGABYTE
    assert loaded == dataclasses.replace(large, _get_vjp=None)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_reading_a_signature_reads_no_module(large, tmp_path) -> None:
    path = tmp_path / "f"
    large.save(path)

    def resident() -> int:
        return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1])

    before = resident()
    loaded = jaxexp.load(path)
    assert loaded.in_avals == large.in_avals
    assert hash(loaded) == hash(dataclasses.replace(large, _get_vjp=None))
    assert resident() - before < 1024 * 8
    assert len(loaded.mlir_module_serialized) > 60 * MEGABYTE
    assert resident() - before > 1024 * 60


def test_metadata_comes_first(large) -> None:
    """All that a signature needs lies before the modules, the primal's module before those of its VJPs."""
    blob = large.serialize()
    at, _ = wire.locate(blob, "mlir_module_serialized")
    assert at < len(blob) - 64 * MEGABYTE < at + 512
    blob = exported_case("sin").serialize(vjp_order=2)
    starts = [wire.locate(blob, path + "mlir_module_serialized")[0] for path in ("", "vjp.", "vjp.vjp.")]
    assert starts == sorted(starts)
    tables = [wire.locate(blob, path)[0] for path in ("in_tree", "vjp", "vjp.in_tree", "vjp.vjp", "vjp.vjp.out_tree")]
    assert max(tables) < starts[0]


# --- what is written ------------------------------------------------------------------------------------------------


def test_header() -> None:
    """What a reader of JAX 0.12.0.1 expects of its own kind."""
    blob = exported_case("sharded_2d").serialize()
    assert wire.read(blob, "serialization_version") == 12
    assert wire.read(blob, "jax_version") == jax.__version__
    assert wire.read(blob, "nr_devices") == 8
    for gone in ("nr_devices_short", "in_shardings.0.hlo_sharding_proto", "in_shardings.0.kind", "vjp"):
        with pytest.raises(LookupError):
            wire.locate(blob, gone)
    assert wire.length(blob, "in_avals") == wire.length(blob, "in_avals_idxs") == 2
    assert wire.length(blob, "in_shardings") == wire.length(blob, "in_shardings_idxs") == 2
    assert wire.length(blob, "unique_named_shardings") == 3
    assert wire.length(blob, "unique_abstract_meshes") == 1


@pytest.mark.parametrize(
    "name", ["wide_tree", "fifty_arguments", "sharded_2d", "same_nodes_many_times", "perceptron", "mixed_nodes"]
)
def test_equal_subtables_are_written_once(name: str) -> None:
    ours, theirs = exported_case(name), exported_case(name, jax_export)

    def metadata(exported) -> int:
        return len(exported.serialize()) - len(exported.mlir_module_serialized)

    assert metadata(ours) < metadata(theirs)


def test_two_thousand_equal_leaves_take_little() -> None:
    params = {f"layer{i:03}": {"kernel": arr(2), "bias": arr(2), "scale": arr(2)} for i in range(700)}
    ours, theirs = (lib.export(jax.jit(lambda p: p["layer000"]["bias"]))(params) for lib in (jaxexp, jax_export))
    blob, their_blob = ours.serialize(), theirs.serialize()
    assert len(blob) < len(their_blob) / 3
    assert wire.length(blob, "unique_avals") == 1
    assert wire.length(blob, "in_avals") == 2100
    avals = {wire.locate(blob, f"in_avals.{i}")[0] for i in range(2100)}
    assert len(avals) == 1
    trees = {wire.locate(blob, f"in_tree.children.0.children.0.children.{i}")[0] for i in range(700)}
    assert len(trees) == 1, "equal subtrees are one table"
    assert_same_fields(jax_export.deserialize(blob), jax_export.deserialize(their_blob), module=False)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_vjp_orders(order: int) -> None:
    exported = exported_case("sin")
    blob = exported.serialize(vjp_order=order)
    for library in (jaxexp, jax_export):
        link, found = library.deserialize(blob), 0
        while link.has_vjp():
            link, found = link.vjp(), found + 1
        assert found == order
    assert_same_chains(jaxexp.deserialize(blob), exported, order, as_written=True)
    if order:
        shorter = exported.serialize(vjp_order=order - 1)
        assert len(blob) > len(shorter)
        # A longer chain can be cut: what is left is the shorter artifact.
        assert jaxexp.deserialize(blob).serialize(vjp_order=order - 1) == shorter
    assert exported.serialize(order) == blob


def test_order_below_zero_is_order_zero() -> None:
    assert jaxexp.deserialize(exported_case("sin").serialize(vjp_order=-1)).has_vjp() is False
    assert jax_export.deserialize(exported_case("sin", jax_export).serialize(vjp_order=-1)).has_vjp() is False


# --- depth ----------------------------------------------------------------------------------------------------------


def nest(leaf, depth: int):
    for i in range(depth):
        leaf = ((leaf,), [leaf], {"k": leaf, "n": None}, (leaf, leaf) if i < 12 else (leaf, None))[i % 4]
    return leaf


@pytest.mark.parametrize("depth", [200, 600])
def test_deep_trees(depth: int) -> None:
    tree = nest(arr(2), depth)
    ours = jaxexp.export(jax.jit(lambda t: {"sum": sum(jax.tree.leaves(t)), "tree": t}))(tree)
    blob = ours.serialize()
    loaded = jaxexp.deserialize(blob)
    assert_same_fields(loaded, ours)
    assert loaded.serialize() == blob
    np.testing.assert_allclose(loaded.call(tree)["sum"], 8 * arr(2), rtol=1e-6)
    if depth <= 200:  # deeper ones exceed Python's recursion limit in jax.export
        assert_same_fields(jax_export.deserialize(blob), ours)
        theirs = jax_export.export(jax.jit(lambda t: t))(tree).serialize()
        assert_same_fields(jaxexp.deserialize(theirs), jax_export.deserialize(theirs))


def test_too_deep_is_an_error_not_a_crash() -> None:
    """Shared subtables make a deep tree cheap to write down; reading one must not exhaust the stack."""
    tree = jax.tree.structure([0])
    for _ in range(17):  # 131,072 lists, one inside the other
        tree = tree.compose(tree)
    exported = exported_case("sin")
    deep = dataclasses.replace(exported, out_tree=tree)
    try:
        blob = deep.serialize()
    except jaxexp.ExportError:
        return
    with pytest.raises(jaxexp.DeserializationError):
        jaxexp.deserialize(blob)


def test_symbolic_scope_is_shared_by_all_shapes() -> None:
    loaded = jaxexp.deserialize(exported_case("symbolic_several").serialize())
    a, b = loaded.in_avals[0].shape
    assert loaded.in_avals[1].shape[0] == b
    assert loaded.out_avals[0].shape[0] == 2 * a
    assert jnp.shape(loaded.call(arr(2, 3), arr(3, 4))) == (4, 4)
