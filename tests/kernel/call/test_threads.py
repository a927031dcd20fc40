"""Eight threads do at once what one does alone, with the same artifacts and with different ones."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import starving
from kit.command_line import started
from kit.compare import assert_same_values, describe
from kit.corpus import CASES, arr, export_with
from kit.derivatives import pull_back

THREADS = 8
NAMES = ["sin", "nested_containers", "custom_node", "symbolic_batch", "sharded_2d"]


def at_once(work: Callable[[int], Any]) -> list[Any]:
    """What eight threads return that begin together."""
    start = threading.Barrier(THREADS)

    def run(thread: int) -> Any:
        start.wait()
        return work(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


pytestmark = pytest.mark.jax


@pytest.fixture(scope="module")
def blobs() -> list[bytes]:
    return [
        bytes(export_with(jaxexp, CASES[name].build()).serialize(vjp_order=CASES[name].vjp_order)) for name in NAMES
    ]


def test_read_and_write(blobs: list[bytes], tmp_path: Path) -> None:
    """Each thread begins with another artifact, so they meet at the same ones and pass each other at others."""

    def work(thread: int) -> list[Any]:
        results: list[Any] = [None] * len(blobs)
        for round_ in range(5 * len(blobs)):
            which = (thread + round_) % len(blobs)
            order = CASES[NAMES[which]].vjp_order
            exported = jaxexp.deserialize(blobs[which])
            chain = [describe(exported), *([describe(exported.vjp())] if exported.has_vjp() else [])]
            found = chain, bytes(exported.serialize(vjp_order=order))
            (path := tmp_path / f"{thread} {which}").write_bytes(blobs[which])
            many = jaxexp.load_many([*blobs, path, b""], workers=1 + thread % 4, on_error="return")
            assert describe(many[which]) == describe(many[-2]) == chain[0]
            assert isinstance(many[-1], jaxexp.errors.DeserializationError)
            assert results[which] in (None, found)
            results[which] = found
        return results

    alone = work(0)
    assert [written for _, written in alone] == blobs
    assert at_once(work) == [alone] * THREADS


def test_one_function_in_all_threads(blobs: list[bytes]) -> None:
    """What comes into being on first use (a module's bytes, shardings, the VJP, what a call compiles) is made once."""
    for name, blob in zip(NAMES, blobs, strict=True):
        program = CASES[name].build()

        def computed(exported: Any, program: Any = program) -> Any:
            args, kwargs = program.args, program.kwargs
            results = exported.call(*args, **kwargs), jax.jit(exported.call)(*args, **kwargs)
            return results, pull_back(exported.call, args, kwargs) if exported.has_vjp() else None

        exported = jaxexp.deserialize(blob)

        def work(thread: int, exported: Any = exported) -> Any:
            results = computed(exported)
            derived = (exported.in_shardings_hlo, hash(exported), exported.vjp() if exported.has_vjp() else None)
            return results, derived, bytes(exported.serialize())

        found = at_once(work)
        jax.clear_caches()
        expected = computed(jaxexp.deserialize(blob))
        for results, derived, written in found:
            assert_same_values(results, expected)
            assert derived[:2] == found[0][1][:2]
            assert derived[2] is found[0][1][2]
            assert written == found[0][2]


def test_a_buffer_whose_owner_lets_go(blobs: list[bytes]) -> None:
    """All threads read from one buffer, drop some of what they read, and the last reference goes."""
    keep = [memoryview(bytes(blobs[1]))]

    def work(thread: int) -> bool:
        kept = []
        for _ in range(50):
            exported = jaxexp.deserialize(keep[0])
            kept.append(exported.vjp() if thread % 2 else exported)
            del exported
            gc.collect(0)
        return all(one.mlir_module_serialized for one in kept)

    expected = describe(jaxexp.deserialize(blobs[1]))
    assert all(at_once(work))
    survivor = jaxexp.deserialize(keep[0])
    keep.clear()
    gc.collect()
    assert describe(survivor) == expected


def test_refusals_and_exports_in_all_threads(blobs: list[bytes]) -> None:
    """Errors carry what the thread's own artifact has, not another's."""

    def work(thread: int) -> list[Any]:
        found: list[Any] = []
        for end in range(8, 400, 8):
            with pytest.raises(jaxexp.errors.DeserializationError) as error:
                jaxexp.deserialize(blobs[thread % len(blobs)][:end])
            found.append(str(error.value))
        written = jaxexp.export(jax.jit(lambda x: jnp.cos(x) + 1))(arr(4)).serialize(vjp_order=1)
        np.testing.assert_allclose(jaxexp.deserialize(written).call(arr(4)), np.cos(arr(4)) + 1, rtol=1e-6)
        return found

    alone = [work(thread) for thread in range(THREADS)]
    assert at_once(work) == alone


def test_large_artifacts_let_other_threads_run(tmp_path: Path) -> None:
    large = np.random.default_rng(0).integers(0, 255, 64 << 20, np.uint8)
    path, archive = tmp_path / "f.jaxexp", tmp_path / "a.zip"
    function = jaxexp.export(jax.jit(lambda i: jnp.asarray(large)[i]))(np.int32(3))
    function.save(path)
    blob, scratch = path.read_bytes(), bytearray(path.read_bytes())
    with jaxexp.Archive.create(archive) as writer:
        writer.add("f", blob)

    def archived() -> None:
        with jaxexp.Archive.create(tmp_path / "b.zip") as writer:
            writer.add("f", blob)

    for call in (
        lambda: jaxexp.deserialize(blob),
        lambda: jaxexp.deserialize(scratch),
        lambda: jaxexp.deserialize(scratch).mlir_module_serialized,
        lambda: jaxexp.load(path).mlir_module_serialized,
        lambda: jaxexp.load_many([path, scratch]),
        lambda: function.serialize(),
        lambda: jaxexp.load(path).serialize(),
        lambda: function.save(tmp_path / "g.jaxexp"),
        lambda: jaxexp.load(path) == function,
        lambda: jaxexp.verify(path),
        lambda: jaxexp.verify(scratch),
        lambda: jaxexp.inspect(scratch),
        archived,
        lambda: jaxexp.Archive.open(archive)["f"].load().mlir_module_serialized,
        lambda: jaxexp.Archive.open(archive).load_all(),
        lambda: jaxexp.Archive.open(archive).verify(),
    ):
        assert not starving.starves(call)


# --- threads that are in C++ when the interpreter ends ---------------------------------------------------------------

# Of what the argument lists, each has a thread. Whoever reads the artifact comes to stand in `read`: C++ then has the
# tree of the arguments, and nobody else has it. The process aborts if that tree is freed.
ENDS = """
import ctypes, itertools, os, pickle, sys, threading, weakref
os.environ["JAX_PLATFORMS"] = "cpu"
os.chdir(sys.argv[1])
import jax, jaxexp, numpy as np
class Node:
    def __init__(self, child, name):
        self.child, self.name = child, name
class Name(str):
    pass
def read(data):
    name = Name(data.decode())
    if threading.current_thread() is not threading.main_thread():
        kept.append(weakref.ref(name, freed))
        if name == "out":
            ready.release()
            while True:
                pass
    return name
kept, ready, numbers = [], threading.Semaphore(0), itertools.count()
freed = ctypes.PyDLL(None).abort
freed.argtypes = [ctypes.py_object]
jax.tree_util.register_pytree_node(Node, lambda n: ((n.child,), n.name), lambda name, children: Node(*children, name))
jaxexp.register_pytree_node_serialization(
    Node, serialized_name="Node", serialize_auxdata=str.encode, deserialize_auxdata=read)
double = jax.jit(lambda node: Node(node.child * 2, Name("out")))
function = jaxexp.export(double)(Node(np.ones(4, np.float32), Name("in")))
blob = bytes(function.serialize(vjp_order=1))
open("f.jaxexp", "wb").write(blob)
with jaxexp.Archive.create("a.zip") as archive:
    archive.add("f", blob)
archive, loaded = jaxexp.Archive.open("a.zip"), jaxexp.load("f.jaxexp")
pickled = pickle.dumps(loaded)
def archived():
    with jaxexp.Archive.create(f"{next(numbers)}.zip") as new:
        new.add("f", blob)
def again(run):
    run()
    ready.release()
    while True:
        run()
work = eval(sys.argv[2])
for run in work:
    threading.Thread(target=again, args=(run,), daemon=True).start()
for _ in work:
    ready.acquire()
"""
WAYS = {
    "read": """[
        lambda: jaxexp.deserialize(blob), lambda: jaxexp.deserialize(bytearray(blob)), lambda: jaxexp.load("f.jaxexp"),
        lambda: jaxexp.load_many([blob, "f.jaxexp"]), lambda: archive["f"].load(), lambda: archive.load_all(),
        lambda: pickle.loads(pickled), lambda: jaxexp.load(open("f.jaxexp", "rb"))]""",
    "write": """[
        lambda: function.serialize(), lambda: loaded.serialize(vjp_order=1), lambda: pickle.dumps(loaded), archived,
        lambda: function.save(f"{next(numbers)}.jaxexp")]""",
    "look": """[
        lambda: jaxexp.verify(blob), lambda: jaxexp.verify("f.jaxexp"), lambda: jaxexp.inspect(blob),
        lambda: archive.verify(), lambda: list(jaxexp.Archive.open("a.zip")), lambda: jaxexp.compatibility(blob)]""",
}  # fmt: skip


@pytest.mark.processes(reason="each ends while its threads are in C++")
@pytest.mark.parametrize("way", WAYS)
def test_the_end_of_the_interpreter(way: str, tmp_path: Path, subprocess_env: Any) -> None:
    """Before 3.14, Python ends threads by unwinding their stacks: C++ must not free objects of Python then."""
    done = started(ENDS, tmp_path, WAYS[way], env=subprocess_env())
    assert done.returncode == 0, (done.returncode, done.stderr)
