"""What artifacts that are loaded together share and do not share: metadata, scopes, memory, threads, signals."""

from __future__ import annotations

import concurrent.futures
import gc
import struct
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xxhash

import jaxexp
from jaxexp._api.many import Manner, load_slices
from kit.compare import assert_same_fields
from kit.corpus import CASES, arr
from kit.many import alone, assert_alike, versions


def test_versions_share_what_was_decoded_and_keep_what_is_theirs() -> None:
    made = versions(lambda c, x: {"y": x * c}, arr(3), count=20, vjp_order=1)
    assert len({len(blob) for blob in made}) == 1
    found = jaxexp.load_many(made, workers=2)
    assert len({id(e.in_tree) for e in found}) == len({id(e.in_avals) for e in found}) == 1
    for i, (one, blob) in enumerate(zip(found, made, strict=True)):
        assert_same_fields(one, jaxexp.deserialize(blob))
        np.testing.assert_array_equal(one.call(arr(3))["y"], arr(3) * (i + 2))
        gradient = jax.grad(lambda x, e=one: e.call(x)["y"].sum())(arr(3))
        np.testing.assert_array_equal(gradient, np.full(3, i + 2))
        assert one.serialize(vjp_order=1) == blob
    assert len({id(vars(e)) for e in found}) == 20
    vars(found[0])["fun_name"] = "changed"
    assert found[1].fun_name != "changed"


def test_metadata_is_each_artifacts_own() -> None:
    function = jaxexp.export(jax.jit(jnp.sin))(arr(3))
    given = [{"v": 1}, None, {"v": [2, {"w": None}]}, {}, {"v": [2, {"w": None}]}, {"other": "text"}]
    found = jaxexp.load_many([bytes(function.serialize(metadata=m)) for m in given], workers=2)
    assert [dict(e.metadata) for e in found] == [m or {} for m in given]
    assert found[2].metadata["v"] is not found[4].metadata["v"]


def test_weak_types_and_constraints_are_each_artifacts_own() -> None:
    weak = [
        bytes(jaxexp.export(jax.jit(lambda x, y: x + y))(*args).serialize())
        for args in [(1.0, 2.0), (np.float32(1), 2.0), (np.float32(1), np.float32(2))]
    ]
    found = jaxexp.load_many([*weak, *weak[::-1]], workers=2)
    for one, blob in zip(found, [*weak, *weak[::-1]], strict=True):
        assert one.weak_arguments == jaxexp.deserialize(blob).weak_arguments
    assert [one.weak_arguments for one in found] == [(0, 1), (1,), (), (), (1,), (0, 1)]

    made = []
    for constraints in ((), ("b >= 3",), ("mod(b, 2) == 0",)):
        spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b", constraints=constraints), np.float32)
        made.append(bytes(jaxexp.export(jax.jit(lambda x: 2 * x))(spec).serialize()))
    found = jaxexp.load_many(made + made, workers=2)
    bounds = [jaxexp.symbolic_dim_bounds(e.in_avals[0].shape[0])[0] for e in found]
    assert bounds == [1, 3, 2] * 2 or bounds == [1, 3, 1] * 2
    assert bounds == [jaxexp.symbolic_dim_bounds(jaxexp.deserialize(b).in_avals[0].shape[0])[0] for b in made + made]


def test_every_function_has_a_scope_of_its_own() -> None:
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 2*b"), np.float32)
    blob = bytes(jaxexp.export(jax.jit(lambda x: 2 * x))(spec).serialize())
    found = jaxexp.load_many([blob] * 10, workers=2)
    assert len({id(e.in_avals[0].shape[0].scope) for e in found}) == 10
    for one in found:
        assert one.in_avals[0].shape[0].scope is one.out_avals[0].shape[0].scope
        assert one.call(arr(2, 4)).shape == (2, 4)


def test_custom_nodes_are_built_for_every_function(blobs: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """What registered functions return may be anyone's, so nobody shares it."""
    from jaxexp._kernel.codec import binding, nodes

    blob = blobs[list(CASES).index("custom_node")]
    jaxexp.deserialize(blob)
    built = []

    def build(*args: Any) -> Any:
        built.append(args)
        return nodes.build_custom_node(*args)

    jax_refs = []
    monkeypatch.setattr(binding._native, "bind", jax_refs.append)
    binding.bind.__wrapped__()
    monkeypatch.undo()
    (jax_refs[0]).build_custom_node = build
    binding._native.bind(jax_refs[0])
    try:
        jaxexp.deserialize(blob)
        once = len(built)
        jaxexp.load_many([blob] * 5, workers=2)
        assert once > 0
        assert len(built) == 6 * once
    finally:
        binding.bind.__wrapped__()


def sealed(blob: bytearray) -> bytes:
    """A changed artifact with the digest that its metadata have now."""
    size = struct.unpack_from("<I", blob, 12)[0]
    metadata_size, content_size = struct.unpack_from("<II", blob, size - 32)
    blob[size - 48 : size - 32] = xxhash.xxh3_128(blob[:metadata_size]).digest()
    content = size - 48 - content_size
    blob[size - 24 : size - 8] = xxhash.xxh3_128(blob[content : size - 24]).digest()
    return bytes(blob)


def test_metadata_of_equal_size_and_other_bytes() -> None:
    """Each byte of the metadata is changed in turn, under a digest that is right: known metadata help none of these."""
    blob = versions(lambda c, x: (x * c,), arr(2, 3), count=1)[0]
    metadata_size = struct.unpack_from("<I", blob, len(blob) - 32)[0]
    changed = []
    for at in [*range(4), *range(16, metadata_size)]:
        for flip in (1, 128):
            copy = bytearray(blob)
            copy[at] ^= flip
            changed.append(sealed(copy))
    given = [item for one in changed for item in (blob, one)]
    found = jaxexp.load_many(given, workers=2, on_error="return")
    for i, (item, one) in enumerate(zip(given, found, strict=True)):
        if item is not blob or i == 0:
            assert_alike(one, alone(jaxexp.deserialize, item), f"item {i}")
        else:
            assert one.in_avals is found[0].in_avals


def test_known_metadata_do_not_hide_where_modules_are() -> None:
    """Equal tables, and a module that is longer, shorter, or elsewhere than they say."""
    blob = versions(lambda c, x: x * c, arr(3), count=1, vjp_order=1)[0]
    size = len(blob)
    metadata_size, content_size = struct.unpack_from("<II", blob, size - 32)
    module = struct.unpack_from("<I", blob, metadata_size)[0]
    hostile = []
    for length in (0, 1, module - 1, module + 1, module + 4, size, 2**31 - 1, 2**32 - 1):
        copy = bytearray(blob)
        struct.pack_into("<I", copy, metadata_size, length)
        hostile.append(sealed(copy))
    for cut in (4, 8, 64, module, module + 4, size - 48 - content_size - metadata_size):
        # Bytes are missing behind the metadata, and the head says so.
        copy = bytearray(blob[:metadata_size] + blob[metadata_size + cut // 4 * 4 :])
        struct.pack_into("<I", copy, 12, len(copy))
        hostile.append(sealed(copy))
    given = [item for one in hostile for item in (blob, one)]
    found = jaxexp.load_many(given, workers=1, on_error="return")
    for i, (item, one) in enumerate(zip(given, found, strict=True)):
        assert_alike(one, alone(jaxexp.deserialize, item), f"item {i}")
    assert all(isinstance(one, jaxexp.DeserializationError) for one in found[1::2])


def test_parts_of_one_buffer(blobs: list[bytes]) -> None:
    parts, extents = [b""], []
    for i, blob in enumerate(blobs):
        start = sum(map(len, parts))
        padding = -start % (64 if i % 5 else 1)  # some are not aligned
        parts += [bytes(padding), blob]
        extents.append((start + padding, len(blob), ()))
    owner = b"".join(parts)
    names = [f"fleet.zip: {name}" for name in CASES]
    found = load_slices(owner, extents, names.__getitem__, Manner(workers=2))
    for case, one, blob in zip(CASES.values(), found, blobs, strict=True):
        with case.context():
            assert_same_fields(one, jaxexp.deserialize(blob))
            assert bytes(one.serialize(vjp_order=case.vjp_order)) == blob
    short = [(start, size - 1, ()) for start, size, _ in extents]
    errors = load_slices(owner, short, names.__getitem__, Manner(on_error="return"))
    assert {error.file for error in errors if isinstance(error, jaxexp.DeserializationError)} == set(names)
    for wrong in [(0, len(owner) + 1, ()), (len(owner) + 1, 0, ()), (2**63, 2**63, ())]:
        with pytest.raises(ValueError, match="inside the buffer"):
            load_slices(owner, [wrong], str, Manner())


def test_results_keep_what_they_need_and_no_more(blobs: list[bytes]) -> None:
    owner = bytes(bytearray(blobs[0]))  # which nobody else has
    before = sys.getrefcount(owner)
    found = jaxexp.load_many([owner, blobs[1]])
    assert len(found[0].mlir_module_serialized) > 0
    assert sys.getrefcount(owner) > before
    del found
    gc.collect()
    assert sys.getrefcount(owner) == before
    scratch = np.frombuffer(blobs[0], np.uint8).copy()
    reference = weakref.ref(scratch)
    found = jaxexp.load_many([scratch])
    del scratch
    assert len(found) == 1
    assert reference() is None, "it was copied"


def test_collections_go_on_afterwards(blobs: list[bytes]) -> None:
    assert gc.isenabled()
    jaxexp.load_many(blobs[:3])
    assert gc.isenabled()
    with pytest.raises(jaxexp.DeserializationError):
        jaxexp.load_many([b""])
    assert gc.isenabled()
    gc.disable()
    try:
        jaxexp.load_many(blobs[:3])
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_many_callers_at_once(blobs: list[bytes], tmp_path: Path) -> None:
    paths = [tmp_path / str(i) for i in range(len(blobs))]
    for path, blob in zip(paths, blobs, strict=True):
        path.write_bytes(blob)
    expected = [jaxexp.deserialize(blob).mlir_module_serialized for blob in blobs]

    def work(number: int) -> None:
        for round_ in range(3):
            given = blobs if (number + round_) % 2 else paths
            found = jaxexp.load_many(given, workers=1 + number % 4)
            assert [e.mlir_module_serialized for e in found] == expected
            broken = jaxexp.load_many([*given, b""], workers=2, on_error="return")
            assert isinstance(broken[-1], jaxexp.DeserializationError)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert gc.isenabled()


INTERRUPTED = """
import gc, os, signal, sys, threading, traceback
import jaxexp

class Path:
    "The first of many: by the time that it is asked for its name, the call has begun."
    def __fspath__(self):
        begun.set()
        return sys.argv[1]

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores Ctrl-C
begun = threading.Event()
jaxexp.load_many([sys.argv[1]])  # whatever is loaded on first use
before = len(os.listdir("/proc/self/task"))
number, interrupted = 100_000, False
while not interrupted:  # until the signal comes while the call runs, however quick or busy the machine is
    begun.clear()
    thread = threading.Thread(target=lambda: (begun.wait(), os.kill(os.getpid(), signal.SIGINT)))
    thread.start()
    try:
        jaxexp.load_many([Path()] + [sys.argv[1]] * number, workers=4)
        thread.join()
        number = min(2 * number, 400_000)  # more would not fit into the memory of a small machine
    except KeyboardInterrupt as error:
        interrupted = "load_many" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
thread.join()
assert gc.isenabled()
assert len(os.listdir("/proc/self/task")) == before
assert len(jaxexp.load_many([sys.argv[1]] * 100, workers=4)) == 100
print("interrupted")
"""

FORKED = """
import os, sys, threading, warnings
import jaxexp

warnings.simplefilter("ignore")  # Python and JAX say that it is a risk
stop, begun = threading.Event(), threading.Event()

def load():
    while not stop.is_set():
        jaxexp.load_many([sys.argv[1]] * 500, workers=4)
        begun.set()

thread = threading.Thread(target=load)
thread.start()
begun.wait()
for _ in range(20):
    if (child := os.fork()) == 0:
        threads = len(os.listdir("/proc/self/task"))
        os._exit(0 if threads == 1 and len(jaxexp.load_many([sys.argv[1]] * 100, workers=3)) == 100 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.set()
thread.join()
print("forked")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize(("program", "says"), [(INTERRUPTED, "interrupted"), (FORKED, "forked")])
def test_signals_and_forks(program: str, says: str, tmp_path: Path, subprocess_env) -> None:
    """Ctrl-C ends a call and all of its threads; a process that is forked in the middle of one can begin another."""
    jaxexp.export(jax.jit(jnp.sin))(arr(3)).save(tmp_path / "one")
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "one"],
        env=subprocess_env(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == f"{says}\n", done.stderr


PROGRAM = """
import gc, os, sys
import jaxexp

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

paths = [os.path.join(sys.argv[1], name) for name in sorted(os.listdir(sys.argv[1]))]
blobs = [open(path, "rb").read() for path in paths]

def a_round():
    found = jaxexp.load_many([*paths, *blobs, blobs[0][:-8], "missing", 3] * 10, workers=3, on_error="return")
    assert sum(isinstance(one, Exception) for one in found) == 30
    found[0].vjp().in_avals, found[0].mlir_module_serialized

for _ in range(100):
    a_round()
before = resident()
for _ in range(500):
    a_round()
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
def test_resident_memory_is_flat(tmp_path: Path, subprocess_env) -> None:
    for i, blob in enumerate(versions(lambda c, x: {"y": x * c}, arr(3), count=8, vjp_order=1)):
        (tmp_path / str(i)).write_bytes(blob)
    metadata = jaxexp.export(jax.jit(jnp.sin))(arr(3)).serialize(metadata={"v": [1, "two"]})
    (tmp_path / "metadata").write_bytes(metadata)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path], env=subprocess_env(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    # 100,000 artifacts: 30 bytes for each would be three million.
    assert int(done.stdout) < 1 << 20, done.stdout
