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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp import _native
from jaxexp._kernel.artifact.chain import chain
from kit import wire
from kit.compare import assert_same_chains, assert_same_fields
from kit.corpus import CASES, arr, export_with, f32, spec

pytestmark = pytest.mark.jax
MEGABYTE = 2**20


def exported_case(name: str, library=jaxexp):
    return export_with(library, CASES[name].build())


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


@pytest.mark.processes(reason="hash seeds differ between processes")
def test_same_bytes_in_every_process(tmp_path, subprocess_env) -> None:
    """Whatever the hash seed: sets of axis names, dictionaries and caches leave no trace."""
    # Several reduced axes: a set, whose order depends on the hash seed.
    m = jax.sharding.AbstractMesh((2, 2, 2), ("alpha", "beta", "gamma"), (jax.sharding.AxisType.Explicit,) * 3)
    sharding = jax.sharding.NamedSharding(m, jax.sharding.PartitionSpec(None, reduced={"gamma", "alpha", "beta"}))
    dataclasses.replace(exported_case("sin"), _in_named_shardings=(sharding,), nr_devices=8).save(tmp_path / "f")
    names = ["mixed_nodes", "sharded_2d", "several_effects", "symbolic_expressions", "reduced_argument", "unicode_keys"]
    outputs = set()
    for seed in ("1", "4242"):
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


BUFFERS = [
    bytes, bytearray, memoryview, lambda b: memoryview(bytearray(b)), lambda b: memoryview(b).cast("b"),
    lambda b: memoryview(b"xyz" + b)[3:], lambda b: np.frombuffer(b, np.uint8),
    lambda b: np.frombuffer(b, np.uint8).copy(), lambda b: array.array("B", b),
    lambda b: b + b"a trailer that no reader of the format sees",
]  # fmt: skip


def test_any_buffer() -> None:
    original = exported_case("perceptron")
    blob = bytes(original.serialize(vjp_order=1))
    for buffer in BUFFERS:
        loaded = jaxexp.deserialize(buffer(blob))
        assert_same_chains(loaded, original, 1, as_written=True)
        assert loaded.serialize(vjp_order=1) == blob
        assert loaded == jaxexp.deserialize(blob)


def test_no_buffer_is_held(tmp_path) -> None:
    """As with jax.export: one that is closed, or filled with something else, leaves the loaded function alone."""
    original = exported_case("perceptron")
    original.save(tmp_path / "f", vjp_order=1)
    with open(tmp_path / "f", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    loaded = jaxexp.deserialize(mapped)
    mapped.close()  # raises BufferError if anything still held the buffer
    blob = original.serialize(vjp_order=1)
    copied = jaxexp.deserialize(blob)
    blob[:] = b"\xff" * len(blob)
    blob.clear()
    for found in (loaded, copied):
        assert_same_chains(found, original, 1, as_written=True)


def test_bytes_are_held_as_long_as_needed() -> None:
    blob = bytes(exported_case("sin").serialize(vjp_order=1))
    before = sys.getrefcount(blob)
    vjp = jaxexp.deserialize(blob).vjp()
    gc.collect()
    assert sys.getrefcount(blob) > before
    assert "stablehlo.cos" in vjp.mlir_module()
    del vjp
    gc.collect()
    assert sys.getrefcount(blob) == before


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


def test_modules_are_views_into_the_buffer(large) -> None:
    for blob in (bytes(large.serialize()), bytes(exported_case("sin").serialize(vjp_order=2))):
        for link in chain(_native.Artifact(blob)):
            view = link.module()
            assert type(view) is memoryview
            assert view.readonly
            assert address(blob) < address(view) < address(blob) + len(blob)
    assert _native.Artifact(bytearray(blob)).module().readonly


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


def test_equal_subtables_are_written_once() -> None:
    for name in ("wide_tree", "fifty_arguments", "sharded_2d", "same_nodes_many_times", "perceptron", "mixed_nodes"):
        ours, theirs = (exported_case(name, library) for library in (jaxexp, jax_export))
        sizes = [len(exported.serialize()) - len(exported.mlir_module_serialized) for exported in (ours, theirs)]
        assert sizes[0] < sizes[1], name


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


def test_vjp_orders() -> None:
    exported, shorter = exported_case("sin"), b""
    for order in range(4):
        blob = exported.serialize(vjp_order=order)
        for library in (jaxexp, jax_export):
            link, found = library.deserialize(blob), 0
            while link.has_vjp():
                link, found = link.vjp(), found + 1
            assert found == order
        assert_same_chains(jaxexp.deserialize(blob), exported, order, as_written=True)
        if order:
            assert len(blob) > len(shorter)
            # A longer chain can be cut: what is left is the shorter artifact.
            assert jaxexp.deserialize(blob).serialize(vjp_order=order - 1) == shorter
        shorter = exported.serialize(order)
        assert shorter == blob
    assert jaxexp.deserialize(exported.serialize(vjp_order=-1)).has_vjp() is False
    assert jax_export.deserialize(exported_case("sin", jax_export).serialize(vjp_order=-1)).has_vjp() is False


def nest(leaf, depth: int):
    for i in range(depth):
        leaf = ((leaf,), [leaf], {"k": leaf, "n": None}, (leaf, leaf) if i < 12 else (leaf, None))[i % 4]
    return leaf


def test_deep_trees() -> None:
    for depth in (200, 600):
        tree = nest(arr(2), depth)
        ours = jaxexp.export(jax.jit(lambda t: {"sum": sum(jax.tree.leaves(t)), "tree": t}))(tree)
        blob = ours.serialize()
        loaded = jaxexp.deserialize(blob)
        assert_same_fields(loaded, ours)
        assert loaded.serialize() == blob
        if depth <= 200:  # deeper ones exceed Python's recursion limit in jax.export
            np.testing.assert_allclose(loaded.call(tree)["sum"], 8 * arr(2), rtol=1e-6)
            assert_same_fields(jax_export.deserialize(blob), ours)
            theirs = jax_export.export(jax.jit(lambda t: t))(tree).serialize()
            assert_same_fields(jaxexp.deserialize(theirs), jax_export.deserialize(theirs))


def test_too_deep_is_an_error_not_a_crash() -> None:
    """Shared subtables make a deep tree cheap to write down; writing or reading one must not exhaust the stack."""
    tree = jax.tree.structure([0])
    for _ in range(17):  # 131,072 lists, one inside the other
        tree = tree.compose(tree)
    with pytest.raises(jaxexp.ExportError):
        jaxexp.deserialize(dataclasses.replace(exported_case("sin"), out_tree=tree).serialize())


SMAPS = Path("/proc/self/smaps")
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def wants_large_pages(buffer: Any) -> bool:
    """Whether somebody asked for large pages where the middle of a buffer is."""
    array = np.frombuffer(buffer, np.uint8)
    middle = array.ctypes.data + array.size // 2
    is_here = False
    for line in SMAPS.read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            is_here = begin <= middle < end
        elif is_here and first == "VmFlags:":
            return "hg" in line.split()
    raise AssertionError(f"no mapping has the address {middle:x}")


@pytest.mark.skipif(not SMAPS.exists() or not LARGE_PAGES.exists(), reason="the system has no large pages")
def test_large_copies(tmp_path: Path) -> None:
    constant = np.random.default_rng(0).standard_normal(2**21, np.float32)  # 8 MiB
    exported = jaxexp.export(jax.jit(lambda x: x + constant))(np.float32(0))
    blob = exported.serialize()
    assert wants_large_pages(blob)
    loaded = jaxexp.deserialize(blob)  # a copy: the bytearray may change
    assert wants_large_pages(loaded.mlir_module_serialized)
    assert wants_large_pages(_native.join(_native.cut(blob), [loaded.mlir_module_serialized]))
    (path := tmp_path / "f.jaxexp").write_bytes(blob)
    assert wants_large_pages(_native.FileBytes(path).read(0, len(blob)))
    for how in ({}, {"at_once": True}):
        assert wants_large_pages(_native.FileBytes(path, **how))


AUTO, EXPLICIT = (AxisType.Auto, AxisType.Auto), (AxisType.Auto, AxisType.Explicit)


def a_mesh(sizes: Any = (4, 2), names: Any = ("x", "y"), types: Any = AUTO, **device: Any) -> AbstractMesh:
    cpu = AbstractDevice(**{"device_kind": "cpu", "num_cores": None, "platform": "cpu", **device})
    return AbstractMesh(sizes, names, types, abstract_device=cpu if device else None)


MESHES = [
    a_mesh((2, 4)), a_mesh(types=EXPLICIT), a_mesh((4, 2, 1), ("x", "y", "z"), (*AUTO, AxisType.Auto)), a_mesh((4, 1)),
    a_mesh(names=("x", "yy")), a_mesh(names=("x", "y" * 1023)), a_mesh(names=("x", "y" * 1024)), a_mesh(platform="cpu"),
    a_mesh(device_kind="cpu2"), a_mesh(num_cores=0), a_mesh(num_cores=1), a_mesh(platform="tpu"),
]  # fmt: skip
SPECS = [
    P("x"), P("x", None), P(None, "x"), P("x", "y"), P("y", "x"), P(("x", "y")), P(("y", "x")), P(), P(None, None),
    P(None, None, reduced={"x"}), P(None, None, unreduced={"x"}), P(None, None, unreduced={"y"}),
    P(None, None, reduced={"y"}, unreduced={"x"}),
]  # fmt: skip
SHARDINGS = [
    *(NamedSharding(mesh, P("x")) for mesh in MESHES),
    *(NamedSharding(a_mesh(types=(AxisType.Explicit,) * 2), spec) for spec in SPECS),
    *(NamedSharding(a_mesh(), P("x"), memory_kind=kind) for kind in ("pinned_host", "device", None)),
]


def artifact(sharding: NamedSharding) -> bytes:
    exported = jaxexp.export(jax.jit(jnp.sin))(spec((8, 8), f32))
    devices = sharding.mesh.size
    return bytes(dataclasses.replace(exported, nr_devices=devices, _in_named_shardings=(sharding,)).serialize())


def test_shardings_that_differ_in_one_thing() -> None:
    artifacts = list(map(artifact, SHARDINGS))
    found = [[jaxexp.deserialize(one)._in_named_shardings[0] for one in artifacts] for _ in range(2)]
    for made, known, sharding in zip(*found, SHARDINGS, strict=True):
        assert made == known
        assert made is known or any(len(name) >= 1023 for name in made.mesh.axis_names)
        assert made == sharding
        assert (repr(made), made.memory_kind) == (repr(sharding), sharding.memory_kind)
        assert made.mesh.abstract_device == sharding.mesh.abstract_device
        assert (made.spec.reduced, made.spec.unreduced) == (sharding.spec.reduced, sharding.spec.unreduced)
