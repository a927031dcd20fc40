"""`load_many` returns, for many artifacts at once, what `load` and `deserialize` return for each."""

from __future__ import annotations

import contextlib
import gc
import os
import struct
import sys
import unittest.mock
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._api.exported import reader
from jaxexp._api.load import Manner, load_slices
from jaxexp._fleet.archive.opened import OpenArchive
from jaxexp._kernel.codec import nodes
from jaxexp._kernel.io import sources
from kit import wire
from kit.any_modules import with_modules
from kit.command_line import started
from kit.compare import assert_same_fields
from kit.corpus import CASES, arr
from kit.each import each
from kit.places import ATTACKS, GOLDEN
from kit.ways import parts_of

LARGE = np.random.default_rng(0).normal(size=1 << 19).astype(np.float32)
FILES = sorted([*GOLDEN.glob("**/*.bin"), *ATTACKS.glob("*.bin")])


def alone(read: Any, item: Any) -> Any:
    try:
        return read(item)
    except Exception as error:
        return error


def assert_alike(found: Any, expected: Any, file: str | None) -> None:
    assert type(found) is type(expected), (found, expected)
    if not isinstance(expected, Exception):
        assert_same_fields(found, expected)
        assert found.metadata == expected.metadata
        assert found.has_vjp() == expected.has_vjp()
        # `load` keeps the name of the file.
        assert vars(found).keys() - {"_kept"} == vars(expected).keys() - {"_kept"}
        return
    if isinstance(expected, jaxexp.errors.DeserializationError):
        assert found.file == file
        expected.file = file
    assert str(found) == str(expected)


def versions(function: Any, *args: Any, count: int, **how: Any) -> list[bytes]:
    """Artifacts that differ in the constants of their modules alone."""
    exporteds = [jaxexp.export(jax.jit(lambda *a, c=i: function(np.float32(c + 2), *a)))(*args) for i in range(count)]
    return [bytes(e.serialize(**how)) for e in exporteds]


@pytest.mark.jax
@each("workers", [1, 8])
def test_golden_files_and_attacks(workers: int) -> None:
    """Twice, so that everything is also found among what is known already."""
    assert len(FILES) > 300
    found = jaxexp.load_many([*FILES, *FILES], workers=workers, on_error="return")
    for path, *both in zip(FILES, found[: len(FILES)], found[len(FILES) :], strict=True):
        expected = alone(jaxexp.load, path)
        for one in both:
            assert_alike(one, expected, str(path))


def test_kinds_in_any_mixture_and_order(tmp_path: Path, blobs: dict[str, bytes]) -> None:
    chosen = [*blobs.values()][:6]
    paths = [tmp_path / f"{i}.jaxexp" for i in range(6)]
    for path, blob in zip(paths, chosen, strict=True):
        path.write_bytes(blob)
    scratch, mapped = bytearray(chosen[2]), np.memmap(paths[4], np.uint8, mode="r")
    given = [str(paths[0]), paths[1], scratch, memoryview(chosen[3]), mapped, np.frombuffer(chosen[5], np.uint8)]
    found = jaxexp.load_many(iter(given), workers=2)
    scratch[:] = bytes(len(scratch))  # it was copied
    for one, blob in zip(found, chosen, strict=True):
        assert_same_fields(one, jaxexp.deserialize(blob))
    backwards = jaxexp.load_many(reversed(paths), workers=3)
    assert [e.fun_name for e in backwards] == [jaxexp.deserialize(b).fun_name for b in reversed(chosen)]
    assert jaxexp.load_many([]) == jaxexp.load_many(iter(()), workers=8) == []


def test_somebody_has_to_work(tmp_path: Path) -> None:
    with jaxexp.Archive.create(tmp_path / "a.zip") as writer:
        writer.add("f", with_modules(1, 100))
    with contextlib.closing(sources.open_source(str(tmp_path / "a.zip"), {})) as source:
        verification = _native.ArchiveVerification(OpenArchive(source).index)
        for none_work in (
            lambda: reader.many(0, True), lambda: _native.verify_files([str(tmp_path / "a.zip")], 0),
            lambda: verification.step([0], [(b"", [])], 0), lambda: verification.step_of_file(source.whole, [0], 0, 0),
        ):  # fmt: skip
            with pytest.raises(ValueError, match="workers has to be at least 1"):
                none_work()
        assert verification.step_of_file(source.whole, [0], 0, 1) == (1, [])


def test_an_item_that_is_no_artifact(tmp_path: Path, blobs: dict[str, bytes]) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("hello, this is text")
    os.mkfifo(tmp_path / "pipe")
    bad = [
        tmp_path / "missing", tmp_path, tmp_path / "empty", tmp_path / "text", tmp_path / "pipe", b"", b"abc", 3, None,
        "nul\0", np.zeros((2, 2))[:, 0], blobs["sin"][:100],
    ]  # fmt: skip
    given = [item for one in bad for item in (one, blobs["sin"])]
    found = jaxexp.load_many(given, workers=2, on_error="return")
    assert [isinstance(one, Exception) for one in found] == [True, False] * len(bad)
    types = [type(error) for error in found[::2]]
    assert types[:2] == [FileNotFoundError, IsADirectoryError]
    assert [error.filename for error in found[0:4:2]] == [str(tmp_path / "missing"), str(tmp_path)]
    assert f"load_many takes the files in it, as in sorted(pathlib.Path({str(tmp_path)!r}).glob('*.jaxexp'))" in str(
        found[2]
    )
    assert "expected a serialized Exported, found an empty file" in str(found[8])  # and nobody waits for a writer
    for place in (2, 3):
        assert_alike(found[2 * place], alone(jaxexp.load, bad[place]), str(bad[place]))
    assert_alike(found[10], alone(jaxexp.deserialize, b""), "item 10")
    assert "'item 12'" in str(found[12])
    assert isinstance(found[14], jaxexp.errors.ExportError) and isinstance(found[14], TypeError)
    assert "not <class 'int'>" in str(found[14])
    assert found[14].__notes__ == ["This is about item 14."]
    assert types[9] is ValueError
    assert str(found[22]).startswith("cannot read the artifact 'item 22': at trailer: ")


@each("workers", [1, 8])
def test_the_first_error_in_order_is_raised(workers: int, blobs: dict[str, bytes], tmp_path: Path) -> None:
    given: list[Any] = [blobs["sin"]] * 200
    given[150], given[61] = blobs["mixed_nodes"][:50], blobs["mixed_nodes"][:-1]
    with pytest.raises(jaxexp.errors.DeserializationError, match="'item 61'"):
        jaxexp.load_many(given, workers=workers)
    given[60] = tmp_path / "missing"
    with pytest.raises(FileNotFoundError, match="missing"):
        jaxexp.load_many(given, workers=workers)


@each(
    "items, how, error, message",
    [
        ("model.jaxexp", {}, TypeError, r"many artifacts.*use load or deserialize"),
        (bytearray(3), {}, TypeError, r"many artifacts.*use load or deserialize"),
        (Path("model.jaxexp"), {}, TypeError, r"many artifacts.*use load or deserialize"),
        ([], {"workers": 0}, jaxexp.errors.ExportError, "at least 1, found"),
        ([], {"workers": 1.5}, TypeError, "workers has to be a number"),
        ([], {"workers": True}, TypeError, "workers has to be a number"),
        ([], {"on_error": "ignore"}, jaxexp.errors.ExportError, "found 'ignore'"),
    ],
)
def test_arguments(items: Any, how: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        jaxexp.load_many(items, **how)


def test_policy(tmp_path: Path) -> None:
    kernel = jaxexp.DisabledSafetyCheck.custom_call("my_kernel")
    call = jax.jit(lambda x: jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct((3,), np.float32))(x))
    plain, calling = jaxexp.export(jax.jit(jnp.sin))(arr(3)), jaxexp.export(call, disabled_checks=[kernel])(arr(3))
    paths, blobs = [tmp_path / "calling", tmp_path / "plain"], [bytes(f.serialize()) for f in (plain, calling)]
    calling.save(paths[0])
    plain.save(paths[1])
    given: list[Any] = [blobs[0], *paths, blobs[1], b"damaged"]
    found = jaxexp.load_many(given, policy=jaxexp.Policy(), on_error="return", workers=2)
    assert [type(one) for one in found[1:4:2]] == [jaxexp.errors.PolicyError] * 2
    assert [found[1].file, found[3].file] == [str(paths[0]), "item 3"]
    assert isinstance(found[4], jaxexp.errors.DeserializationError)
    # The first in order: what is refused for its policy is known later than what is damaged.
    for items, file in ((given, str(paths[0])), ([*blobs, b"damaged"], "item 1")):
        with pytest.raises(jaxexp.errors.PolicyError, match="my_kernel") as raised:
            jaxexp.load_many(items, policy=jaxexp.Policy())
        assert raised.value.file == file
    sizes = jaxexp.load_many(given[:3], policy=jaxexp.Policy(max_artifact_bytes=100), on_error="return")
    assert [(one.field, one.file) for one in sizes] == [
        ("max_artifact_bytes", file) for file in ("item 0", *map(str, paths))
    ]
    # With a policy, files are read at once: what becomes of them then is all the same.
    jaxexp.export(jax.jit(lambda x: x + LARGE))(LARGE).save(paths[0])
    (kept,) = jaxexp.load_many(paths[:1], policy=jaxexp.Policy())
    os.truncate(paths[0], 0)
    assert len(kept.mlir_module_serialized) > LARGE.nbytes


def test_images_and_their_modules() -> None:
    made = versions(lambda c, x: x * c, arr(3), count=3, vjp_order=1)
    owner, extents = bytearray(), []
    for image, modules in map(parts_of, made):
        places = []
        for piece in (image, *modules):
            owner += bytes(-len(owner) % 8)
            places.append((len(owner), len(piece)))
            owner += piece
        extents.append((*places[0], tuple(places[1:])))
    found = load_slices(bytes(owner), extents, "abc".__getitem__, Manner(workers=2))
    assert len({id(e.in_avals) for e in found}) == 1
    for one, blob in zip(found, made, strict=True):
        assert_same_fields(one, jaxexp.deserialize(blob))
        assert one.serialize(vjp_order=1) == blob
    # One that has the modules of none, one with a module too few, and one with another's.
    position, size, modules = extents[1]
    wrong = [extents[0], (position, size, ()), (position, size, modules[:1]), (position, size, extents[2][2])]
    first, *errors = load_slices(bytes(owner), wrong, "abcd".__getitem__, Manner(on_error="return"))
    assert first.in_avals
    assert [type(e) for e in errors[:2]] == [jaxexp.errors.DeserializationError] * 2
    with pytest.raises(jaxexp.errors.DeserializationError, match="at mlir_module_serialized"):
        _ = errors[2].mlir_module_serialized


def test_versions_share_what_was_decoded_and_keep_what_is_theirs() -> None:
    made = versions(lambda c, x: {"y": x * c}, arr(3), count=4, vjp_order=1)
    assert len({len(blob) for blob in made}) == 1
    found = jaxexp.load_many(made, workers=2)
    assert len({id(e.in_tree) for e in found}) == len({id(e.in_avals) for e in found}) == 1
    for i, (one, blob) in enumerate(zip(found, made, strict=True)):
        assert_same_fields(one, jaxexp.deserialize(blob))
        np.testing.assert_array_equal(one.call(arr(3))["y"], arr(3) * (i + 2))
        assert one.serialize(vjp_order=1) == blob
    gradient = jax.grad(lambda x: found[2].call(x)["y"].sum())(arr(3))
    np.testing.assert_array_equal(gradient, np.full(3, 4))
    vars(found[0])["fun_name"] = "changed"
    assert found[1].fun_name != "changed"
    damaged = bytearray(made[1])
    damaged[wire.locate(made[1], "mlir_module_serialized")[0] + 40] ^= 1
    _, late = jaxexp.load_many([made[0], bytes(damaged)])
    with pytest.raises(jaxexp.errors.DeserializationError, match="at mlir_module_serialized: expected the bytes"):
        _ = late.mlir_module_serialized


def test_what_is_each_artifacts_own() -> None:
    function = jaxexp.export(jax.jit(jnp.sin))(arr(3))
    given = [{"v": 1}, None, {"v": [2, {"w": None}]}, {}, {"v": [2, {"w": None}]}, {"other": "text"}]
    found = jaxexp.load_many([bytes(function.serialize(metadata=m)) for m in given], workers=2)
    assert [dict(e.metadata) for e in found] == [m or {} for m in given]
    assert found[2].metadata["v"] is not found[4].metadata["v"]

    arguments = [(1.0, 2.0), (np.float32(1), 2.0), (np.float32(1), np.float32(2))]
    weak = [bytes(jaxexp.export(jax.jit(lambda x, y: x + y))(*args).serialize()) for args in arguments]
    found = jaxexp.load_many([*weak, *weak[::-1]], workers=2)
    assert [one.weak_arguments for one in found] == [(0, 1), (1,), (), (), (1,), (0, 1)]

    made = []
    for constraints in ((), ("b >= 3",), ("mod(b, 2) == 0",)):
        spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 2*b", constraints=constraints), np.float32)
        made.append(bytes(jaxexp.export(jax.jit(lambda x: 2 * x))(spec).serialize()))
    found = jaxexp.load_many(made * 2, workers=2)
    sizes = [e.in_avals[0].shape[0] for e in found]
    bounds = [jaxexp.symbolic_dim_bounds(size)[0] for size in sizes]
    assert bounds[:2] == [1, 3]
    assert bounds == [jaxexp.symbolic_dim_bounds(jaxexp.deserialize(b).in_avals[0].shape[0])[0] for b in made] * 2
    assert len({id(size.scope) for size in sizes}) == 6
    assert all(size.scope is one.out_avals[0].shape[0].scope for size, one in zip(sizes, found, strict=True))


def test_custom_nodes_are_built_for_every_function(blobs: dict[str, bytes], bound_with: Any) -> None:
    """What registered functions return may be anyone's, so nobody shares it."""
    build = unittest.mock.Mock(side_effect=nodes.build_custom_node)
    with bound_with(build_custom_node=build):
        jaxexp.deserialize(blobs["custom_node"])
        once = build.call_count
        jaxexp.load_many([blobs["custom_node"]] * 5, workers=2)
    assert build.call_count == 6 * once > 0


def test_metadata_of_equal_size_and_other_bytes() -> None:
    """Each byte of the metadata is changed in turn, under a digest that is right: known metadata help none of these."""
    blob = versions(lambda c, x: (x * c,), arr(2, 3), count=1)[0]
    changed = []
    for at in [*range(4), *range(16, wire.trailer_of(blob)[2])]:
        copy = bytearray(blob)
        copy[at] ^= 1 if at % 2 else 128
        changed.append(bytes(wire.seal(copy)))
    assert_no_help_from(blob, changed)


def assert_no_help_from(blob: bytes, changed: list[bytes]) -> list[Any]:
    """What comes of changed artifacts, between whole ones whose metadata are known by then."""
    given = [item for one in changed for item in (blob, one)]
    found = jaxexp.load_many(given, workers=2, on_error="return")
    for i, (item, one) in enumerate(zip(given, found, strict=True)):
        if item is not blob or i == 0:
            assert_alike(one, alone(jaxexp.deserialize, item), f"item {i}")
        else:
            assert one.in_avals is found[0].in_avals
    return found[1::2]


def test_known_metadata_do_not_hide_where_modules_are() -> None:
    blob = versions(lambda c, x: x * c, arr(3), count=1, vjp_order=1)[0]
    start, _, metadata_size = wire.trailer_of(blob)
    module, size = struct.unpack_from("<I", blob, metadata_size)[0], len(blob)
    hostile = []
    for length in (0, 1, module - 1, module + 1, module + 4, size, 2**31 - 1, 2**32 - 1):
        copy = bytearray(blob)
        struct.pack_into("<I", copy, metadata_size, length)
        hostile.append(bytes(wire.seal(copy)))
    for cut in (4, 8, 64, module // 4 * 4, module // 4 * 4 + 4, start - metadata_size):
        # Bytes are missing behind the metadata, and the head says so.
        copy = bytearray(blob[:metadata_size] + blob[metadata_size + cut :])
        struct.pack_into("<I", copy, 12, len(copy))
        hostile.append(bytes(wire.seal(copy)))
    assert all(isinstance(one, jaxexp.errors.DeserializationError) for one in assert_no_help_from(blob, hostile))


def test_parts_of_one_buffer(blobs: dict[str, bytes]) -> None:
    owner, extents = b"", []
    for i, blob in enumerate(blobs.values()):
        owner += bytes(-len(owner) % (64 if i % 5 else 1))  # some are not aligned
        extents.append((len(owner), len(blob), ()))
        owner += blob
    names = [f"fleet.zip: {name}" for name in blobs]
    found = load_slices(owner, extents, names.__getitem__, Manner(workers=2))
    for one, (name, blob) in zip(found, blobs.items(), strict=True):
        with CASES[name].context():
            assert_same_fields(one, jaxexp.deserialize(blob))
    short = [(start, size - 1, ()) for start, size, _ in extents]
    errors = load_slices(owner, short, names.__getitem__, Manner(on_error="return"))
    assert {error.file for error in errors if isinstance(error, jaxexp.errors.DeserializationError)} == set(names)
    for wrong in [(0, len(owner) + 1, ()), (len(owner) + 1, 0, ()), (2**63, 2**63, ())]:
        with pytest.raises(ValueError, match="inside the buffer"):
            load_slices(owner, [wrong], str, Manner())


def test_results_keep_what_they_need_and_no_more(blobs: dict[str, bytes]) -> None:
    owner = bytes(bytearray(blobs["sin"]))  # which nobody else has
    before = sys.getrefcount(owner)
    found = jaxexp.load_many([owner, blobs["mixed_nodes"]])
    assert found[0].mlir_module_serialized
    assert sys.getrefcount(owner) > before
    del found
    gc.collect()
    assert sys.getrefcount(owner) == before
    scratch = np.frombuffer(owner, np.uint8).copy()
    reference, found = weakref.ref(scratch), jaxexp.load_many([scratch])
    del scratch
    assert found and reference() is None, "it was copied"


def test_collections_of_garbage_go_on_or_do_not_as_before(blobs: dict[str, bytes]) -> None:
    assert gc.isenabled()
    for switch, is_on in ((gc.disable, False), (gc.enable, True)):
        switch()
        try:
            jaxexp.load_many([*blobs.values()][:3])
            assert gc.isenabled() == is_on
        finally:
            gc.enable()


PROGRAM = """
import gc, os, signal, sys, threading, traceback, warnings
import jaxexp

class Path:
    "The first of many: by the time that it is asked for its name, the call has begun."
    def __fspath__(self):
        begun.set()
        return path

def threads():
    return len(os.listdir("/proc/self/task"))

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores Ctrl-C
path, begun = sys.argv[1], threading.Event()
jaxexp.load_many([path])  # whatever is loaded on first use
before, number, interrupted = threads(), 20_000, False
while not interrupted:  # until the signal comes while the call runs, however quick or busy the machine is
    begun.clear()
    thread = threading.Thread(target=lambda: (begun.wait(), os.kill(os.getpid(), signal.SIGINT)))
    thread.start()
    try:
        jaxexp.load_many([Path()] + [path] * number, workers=4)
        thread.join()
        number = min(2 * number, 400_000)  # more would not fit into the memory of a small machine
    except KeyboardInterrupt as error:
        interrupted = "load_many" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
thread.join()
assert gc.isenabled()
assert threads() == before
assert len(jaxexp.load_many([path] * 100, workers=4)) == 100
print("interrupted", flush=True)

warnings.simplefilter("ignore")  # Python and JAX say that it is a risk
begun.clear()
forks = 20
thread = threading.Thread(target=lambda: [jaxexp.load_many([Path()] * 500, workers=4) for _ in iter(lambda: forks, 0)])
thread.start()
begun.wait()
while forks:
    if (child := os.fork()) == 0:
        os._exit(0 if threads() == 1 and len(jaxexp.load_many([path] * 100, workers=3)) == 100 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    forks -= 1
thread.join()
print("forked")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.processes(reason="Ctrl-C and forks are for whole processes")
def test_signals_and_forks(tmp_path: Path, subprocess_env) -> None:
    with_modules(1, 100).save(tmp_path / "one")
    done = started(PROGRAM, tmp_path / "one", env=subprocess_env(), timeout=120)
    assert done.stdout == "interrupted\nforked\n", done.stderr
