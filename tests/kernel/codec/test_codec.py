"""The bytes themselves: determinism, buffers, views instead of copies, sizes, depth, and stability."""

from __future__ import annotations

import array
import dataclasses
import gc
import json
import re
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
from kit import costs, wire
from kit.command_line import started
from kit.compare import assert_same_chains, assert_same_fields
from kit.corpus import arr, f32, spec
from kit.models import exported_case

pytestmark = pytest.mark.jax
MEGABYTE = 2**20


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
    names = ["mixed_nodes", "several_effects", "reduced_argument", "unicode_keys"]
    outputs = set()
    for seed in ("1", "4242"):
        done = started(_CHILD, tmp_path / "f", *names, env=subprocess_env(PYTHONHASHSEED=seed))
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert set(json.loads(outputs.pop())) == {*names, "loaded"}


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
    # Bytes are held as long as they are needed; other buffers are not (see test_first_use.py).
    before = sys.getrefcount(blob)
    vjp = jaxexp.deserialize(blob).vjp()
    gc.collect()
    assert sys.getrefcount(blob) > before
    assert vjp.mlir_module()
    del vjp
    gc.collect()
    assert sys.getrefcount(blob) == before


@pytest.fixture(scope="module")
def large():
    """An Exported whose module is 16 MB; nothing here needs it to be a real one."""
    return dataclasses.replace(exported_case("wide_tree"), mlir_module_serialized=bytes(16 * MEGABYTE))


def peak_of(work) -> tuple[int, object]:
    gc.collect()
    tracemalloc.start()
    try:
        result = work()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def test_no_module_is_copied(large, tmp_path) -> None:
    blob = bytes(large.serialize())
    assert len(blob) > 16 * MEGABYTE
    arguments = [large], jax.__version__, _native.Form(), _native.Notes(f"jaxexp {jaxexp.__version__}", {})
    peak, parts = peak_of(lambda: list(_native.EncodedParts(*arguments)))
    assert peak < MEGABYTE
    assert b"".join(map(bytes, parts)) == blob
    del parts
    for work in (
        lambda: jaxexp.deserialize(blob), lambda: large.save(tmp_path / "f"), lambda: jaxexp.load(tmp_path / "f"),
        lambda: _native.Artifact(blob).module(),
    ):  # fmt: skip
        peak, loaded = peak_of(work)
        assert peak < MEGABYTE
    assert loaded == large.mlir_module_serialized
    loaded = jaxexp.load(tmp_path / "f")
    assert loaded == dataclasses.replace(large, _get_vjp=None)
    peak, _ = peak_of(lambda: (loaded.in_avals, loaded.in_tree, hash(loaded), loaded.in_shardings_hlo))
    assert peak < MEGABYTE
    loaded = jaxexp.deserialize(blob)
    peak, again = peak_of(loaded.serialize)
    assert 16 * MEGABYTE < peak < 18 * MEGABYTE, "the module is copied once, into the result"
    assert again == blob
    peak, module = peak_of(lambda: loaded.mlir_module_serialized)
    assert 16 * MEGABYTE < peak < 18 * MEGABYTE
    assert loaded.mlir_module_serialized is module


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_reading_a_signature_reads_no_module(large, tmp_path) -> None:
    path = tmp_path / "f"
    large.save(path)
    before = costs.kilobytes("VmRSS")
    loaded = jaxexp.load(path)
    assert loaded.in_avals == large.in_avals
    assert hash(loaded) == hash(dataclasses.replace(large, _get_vjp=None))
    assert costs.kilobytes("VmRSS") - before < 1024 * 4
    assert len(loaded.mlir_module_serialized) == 16 * MEGABYTE
    assert costs.kilobytes("VmRSS") - before > 1024 * 12


def test_equal_subtables_are_written_once() -> None:
    for name in ("wide_tree", "fifty_arguments", "sharded_2d", "same_nodes_many_times", "mixed_nodes"):
        ours, theirs = (exported_case(name, library) for library in (jaxexp, jax_export))
        sizes = [len(exported.serialize()) - len(exported.mlir_module_serialized) for exported in (ours, theirs)]
        assert sizes[0] < sizes[1], name
    params = {f"layer{i:03}": {"kernel": arr(2), "bias": arr(2), "scale": arr(2)} for i in range(700)}
    blob = jaxexp.export(jax.jit(lambda p: p["layer000"]["bias"]))(params).serialize()
    assert wire.length(blob, "unique_avals") == 1
    assert len({wire.locate(blob, f"in_avals.{i}")[0] for i in range(2100)}) == 1
    assert len({wire.locate(blob, f"in_tree.children.0.children.0.children.{i}")[0] for i in range(700)}) == 1


def test_vjp_orders() -> None:
    exported, shorter = exported_case("sin"), b""
    for order in range(4):
        blob = exported.serialize(vjp_order=order)
        assert type(blob) is bytearray
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


def test_deep_trees() -> None:
    for depth in (200, 600):
        tree = arr(2)
        for i in range(depth):
            tree = ((tree,), [tree], {"k": tree, "n": None}, (tree, tree) if i < 12 else (tree, None))[i % 4]
        ours = jaxexp.export(jax.jit(lambda t: {"sum": sum(jax.tree.leaves(t)), "tree": t}))(tree)
        blob = ours.serialize()
        loaded = jaxexp.deserialize(blob)
        assert_same_fields(loaded, ours)
        assert loaded.serialize() == blob
        if depth == 200:  # deeper ones exceed Python's recursion limit in jax.export
            np.testing.assert_allclose(loaded.call(tree)["sum"], 8 * arr(2), rtol=1e-6)
            assert_same_fields(jax_export.deserialize(blob), ours)


def wants_large_pages(buffer: Any) -> bool:
    """Whether somebody asked for large pages where the middle of a buffer is."""
    array = np.frombuffer(buffer, np.uint8)
    middle = array.ctypes.data + array.size // 2
    for mapping in re.findall(r"^(\w+)-(\w+) (?:.*\n)+?VmFlags:(.*)$", SMAPS.read_text(), re.MULTILINE):
        if int(mapping[0], 16) <= middle < int(mapping[1], 16):
            return "hg" in mapping[2].split()
    raise AssertionError(f"no mapping has the address {middle:x}")


SMAPS = Path("/proc/self/smaps")
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not SMAPS.exists() or not LARGE_PAGES.exists(), reason="the system has no large pages")
def test_large_copies(tmp_path: Path) -> None:
    blob = dataclasses.replace(exported_case("sin"), mlir_module_serialized=bytes(8 * MEGABYTE)).serialize()
    module = jaxexp.deserialize(blob).mlir_module_serialized  # a copy: the bytearray may change
    (path := tmp_path / "f.jaxexp").write_bytes(blob)
    joined, at_once = _native.join(_native.cut(blob), [module]), _native.FileBytes(path, at_once=True)
    for copied in (blob, module, joined, at_once, _native.FileBytes(path), _native.FileBytes(path).read(0, len(blob))):
        assert wants_large_pages(copied)


AUTO, EXPLICIT = (AxisType.Auto, AxisType.Auto), (AxisType.Auto, AxisType.Explicit)


def a_mesh(sizes: Any = (4, 2), names: Any = ("x", "y"), types: Any = AUTO, **device: Any) -> AbstractMesh:
    cpu = AbstractDevice(**{"device_kind": "cpu", "num_cores": None, "platform": "cpu", **device})
    return AbstractMesh(sizes, names, types, abstract_device=cpu if device else None)


MESHES = [
    a_mesh((2, 4)), a_mesh(types=EXPLICIT), a_mesh((4, 2, 1), ("x", "y", "z"), (*AUTO, AxisType.Auto)),
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
