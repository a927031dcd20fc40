"""Files and buffers that change under functions that were read from them: the old function or one clear error."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import Archive, _native
from jaxexp._api.exported import reader
from jaxexp._kernel.io import files
from jaxexp.errors import DeserializationError
from kit.any_modules import with_modules
from kit.archives import plain
from kit.compare import assert_same_fields, chain
from kit.corpus import arr
from kit.each import each
from kit.ways import parts_of

MEGABYTE = 1 << 20
model = functools.cache(with_modules)


def same_size(path: Path, data: bytes) -> None:
    size = path.stat().st_size
    path.write_bytes(data.ljust(size, b"\1")[:size])


def same_size_and_time(path: Path, data: bytes) -> None:
    status = path.stat()
    same_size(path, data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES: list[Callable[[Path, bytes], object]] = [
    Path.write_bytes, lambda path, _: os.truncate(path, 1000), lambda path, _: os.truncate(path, 0), same_size,
    same_size_and_time,
]  # fmt: skip


@each("change", CHANGES)
@each("how", ["load", "load_many"])
def test_a_large_file(how: str, change: Callable[[Path, bytes], object], tmp_path: Path) -> None:
    path, function = tmp_path / "f", model(1, 3 * MEGABYTE)
    function.save(path, vjp_order=1)
    other = bytes(model(2, 3 * MEGABYTE).serialize(vjp_order=1))
    loaded = jaxexp.load(path) if how == "load" else jaxexp.load_many([path])[0]
    used = jaxexp.load(path)
    assert used.mlir_module_serialized == function.mlir_module_serialized
    change(path, other)
    assert loaded.fun_name == "model"
    assert loaded.vjp().in_avals == function.vjp().in_avals, "what was read stays"
    for late in (loaded, loaded, loaded.vjp(), used.vjp()):
        with pytest.raises(DeserializationError, match=r"has been changed since|of the module as they were"):
            _ = late.mlir_module_serialized
    with pytest.raises(DeserializationError):
        loaded.serialize()
    assert used.mlir_module_serialized == function.mlir_module_serialized


@each("change", CHANGES)
@each("size, trailer", [(10_000, True), (10_000, False), (3 * MEGABYTE, False)])
def test_what_was_read_at_once(
    size: int, trailer: bool, change: Callable[[Path, bytes], object], tmp_path: Path
) -> None:
    path, function = tmp_path / "f", model(1, size)
    path.write_bytes(function.serialize(vjp_order=1, trailer=trailer))
    for one in (jaxexp.load(path), *jaxexp.load_many([path])):
        change(path, b"something else")
        assert one.mlir_module_serialized == function.mlir_module_serialized
        assert one.vjp().mlir_module_serialized == function.vjp().mlir_module_serialized
        path.write_bytes(function.serialize(vjp_order=1, trailer=trailer))


def test_a_new_name_or_a_successor_is_no_change(tmp_path: Path) -> None:
    path, function = tmp_path / "f", model(1, 3 * MEGABYTE)
    function.save(path)
    replaced, removed = jaxexp.load(path), jaxexp.load(path)
    model(2, 3 * MEGABYTE).save(path)
    assert replaced.mlir_module_serialized == function.mlir_module_serialized
    path.unlink()
    assert removed.mlir_module_serialized == function.mlir_module_serialized
    function.save(path)
    moved = jaxexp.load(path)
    path.rename(tmp_path / "g")
    (tmp_path / "g").chmod(0o400)
    assert moved.mlir_module_serialized == function.mlir_module_serialized
    # Nor is a member that is added to an archive.
    fleet = tmp_path / "fleet.zip"
    with Archive.create(fleet) as writer:
        writer.add("m0", function)
    archive = Archive.open(fleet)
    loaded = archive["m0"].load()
    with Archive.append(fleet) as writer:
        writer.add("m1", model(2, 300_000))
    assert loaded.mlir_module_serialized == function.mlir_module_serialized
    assert archive["m0"].load() == loaded
    Archive.compact(fleet)
    assert archive.verify() == {}


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which files are open")
@each("how", ["load_many", "archive"])
def test_a_function_keeps_its_file_as_long_as_it_reads_from_it(how: str, tmp_path: Path) -> None:
    """Large ones are read in parts, and small ones at once."""
    functions = {"small": model(1, 3_000), "large": model(2, 3 * MEGABYTE)}
    if how == "archive":
        with Archive.create(tmp_path / "large") as writer:
            for name, function in functions.items():
                writer.add(name, function)
        small, large = Archive.open(tmp_path / "large").load_all(["small", "large"])
    else:
        for name, function in functions.items():
            function.save(tmp_path / name)
        small, large = jaxexp.load_many([tmp_path / "small", tmp_path / "large"])

    def opened() -> set[str]:
        gc.collect()
        found = {Path("/proc/self/fd", fd).resolve() for fd in os.listdir("/proc/self/fd")}
        return {path.name for path in found if path.parent == tmp_path}

    assert opened() == {"large"}
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert large.mlir_module_serialized == functions["large"].mlir_module_serialized
    del large
    assert opened() == set()
    assert small.mlir_module_serialized == functions["small"].mlir_module_serialized


@each("change", CHANGES)
def test_a_member_of_an_archive(change: Callable[[Path, bytes], object], tmp_path: Path) -> None:
    path, functions = tmp_path / "fleet.zip", [model(seed, 300_000) for seed in range(3)]
    for place, shift in ((path, 0), (tmp_path / "other.zip", 1)):
        with Archive.create(place) as writer:
            for i in range(3):
                writer.add(f"m{i}", functions[(i + shift) % 3])
            writer.add("plain", plain(1.0 + shift))
    archive = Archive.open(path)
    late, used, vanished = archive["m0"].load(), archive["m1"].load(), archive["plain"]
    assert used.mlir_module_serialized == functions[1].mlir_module_serialized
    change(path, (tmp_path / "other.zip").read_bytes())
    assert used.mlir_module_serialized == functions[1].mlir_module_serialized
    for use in (lambda: late.mlir_module_serialized, lambda: archive["m2"].load(verify=True)):
        with pytest.raises(DeserializationError):
            use()
    with contextlib.suppress(DeserializationError):  # it may have been read together with what is next to it
        assert vanished.load() == jaxexp.deserialize(plain(1.0))
        assert vanished.read() == plain(1.0)


def test_verified_at_once(tmp_path: Path) -> None:
    path, fleet, function = tmp_path / "f", tmp_path / "fleet.zip", model(1, 3 * MEGABYTE)
    blob = bytearray(function.serialize(vjp_order=1))
    for module, where in ((function, ""), (function.vjp(), "vjp.")):
        damaged = bytearray(blob)
        damaged[blob.index(module.mlir_module_serialized) + 5000] ^= 1
        path.write_bytes(damaged)
        with Archive.create(fleet) as writer:
            writer.add("m", blob)
        fleet.write_bytes(fleet.read_bytes().replace(bytes(blob), bytes(damaged)))
        for load, name in (
            (functools.partial(jaxexp.load, path), path),
            (Archive.open(fleet)["m"].load, f"{fleet}::m"),
        ):
            load()
            with pytest.raises(DeserializationError, match=rf"{name}.*at {where}mlir_module_serialized"):
                load(verify=True)
    path.write_bytes(blob)
    loaded = jaxexp.load(path, verify=True)
    path.write_bytes(b"")
    assert loaded.mlir_module_serialized == function.mlir_module_serialized
    assert loaded.vjp().mlir_module_serialized == function.vjp().mlir_module_serialized


def cut_and_grow(path: Path, _: bytes) -> None:
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)


def replace(path: Path, data: bytes) -> None:
    path.with_name("next").write_bytes(data)
    os.replace(path.with_name("next"), path)


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


LOADS: dict[str, Callable[[Path], list[jaxexp.Exported]]] = {
    "load": lambda path: [jaxexp.load(path), jaxexp.load(path, verify=True)],
    "load_many": lambda path: jaxexp.load_many([path] * 2, workers=2),
    "archive": lambda path: [*Archive.open(path).load_all(), Archive.open(path)["m1"].load()],
}


def modules_of(functions: list[jaxexp.Exported]) -> list[tuple[bytes, bytes]]:
    return [(bytes(f.mlir_module_serialized), bytes(f.vjp().mlir_module_serialized)) for f in functions]


def outcomes(how: str, count: int, folder: Path) -> collections.Counter[str]:
    files, path, source = {}, folder / "now", random.Random(0)
    for i in range(2):
        if how == "archive":
            with Archive.create(path) as writer:
                for seed in range(4):
                    writer.add(f"m{seed}", model(10 * i + seed, 200_000), vjp_order=1)
        else:
            model(i, 2 * MEGABYTE).save(path, vjp_order=1)
        files[path.read_bytes()] = modules_of(LOADS[how](path))
        path.unlink()
    found: collections.Counter[str] = collections.Counter()
    for _ in range(count):
        (old, seen), (new, others) = source.sample(list(files.items()), 2)
        path.unlink(missing_ok=True)
        path.write_bytes(old)
        change, delay = source.choice([*CHANGES, cut_and_grow, replace, append]), source.expovariate(1000)
        other = threading.Thread(target=lambda: (time.sleep(delay), change(path, new)))  # noqa: B023
        other.start()
        try:
            assert all(modules in seen + others for modules in modules_of(LOADS[how](path))), "another function"
            found["loaded"] += 1
        except (DeserializationError, OSError):
            found["refused"] += 1
        other.join()
    return found


THOUSANDS = pytest.mark.long(
    promise="whatever happens to a file while it is read, a function is the one that was there, or refused",
    sibling="test_changing_files.py::test_at_random",
)


@pytest.mark.parametrize(("count", "least"), [(30, 0), pytest.param(1000, 101, marks=THOUSANDS)])
@each("how", LOADS)
def test_at_random(how: str, count: int, least: int, tmp_path: Path) -> None:
    found = outcomes(how, count, tmp_path)
    assert found.total() == count
    assert min(found["loaded"], found["refused"]) >= least


Change = Callable[[bytes], None]


def view_of_a_bytearray(data: bytes, _: Path) -> tuple[Any, Change]:
    memory = bytearray(data)
    return memoryview(memory).toreadonly(), lambda other: memory.__setitem__(slice(None), other)


def view_of_ctypes(data: bytes, _: Path) -> tuple[Any, Change]:
    memory = (ctypes.c_ubyte * len(data)).from_buffer_copy(data)
    return memoryview(memory).toreadonly(), lambda other: ctypes.memmove(memory, other, len(other))


def mapped_file(data: bytes, folder: Path) -> tuple[Any, Change]:
    (folder / "f").write_bytes(data)

    def change(other: bytes) -> None:
        with open(folder / "f", "r+b") as file:
            file.write(other)

    return np.memmap(folder / "f", np.uint8, mode="r"), change


MEMORIES = [view_of_a_bytearray, view_of_ctypes, mapped_file]

READINGS: dict[str, Callable[[Any], Any]] = {
    "deserialize": jaxexp.deserialize,
    "with a policy": lambda buffer: jaxexp.deserialize(buffer, policy=jaxexp.Policy()),
    "load": jaxexp.load,
    "load_many": lambda buffer: jaxexp.load_many([buffer])[0],
    "many with a policy": lambda buffer: jaxexp.load_many([buffer], policy=jaxexp.Policy())[0],
}

CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda data: bytes(len(data)),
    "another function": lambda data: data.replace(b"scaled", b"halved").replace(b"cpu", b"tpu"),
}


@pytest.fixture(scope="module")
def blob() -> bytes:
    def scaled(tree: Any, n: Any) -> Any:
        return {"y": tree["a"] * n, "z": [tree["b"]]}

    return bytes(jaxexp.export(jax.jit(scaled))({"a": arr(3), "b": arr(2, 2)}, np.float32(2)).serialize(vjp_order=2))


@each("memory", MEMORIES)
@each("reading", READINGS)
def test_a_function_stays_what_it_was(memory: Any, reading: str, blob: bytes, tmp_path: Path) -> None:
    for change in CONTENTS.values():
        assert change(blob) != blob
        buffer, write = memory(blob, tmp_path)
        found = READINGS[reading](buffer)
        write(change(blob))
        assert (found.fun_name, found.platforms, found.nr_devices) == ("scaled", ("cpu",), 1)
        for link, expected in zip(chain(found, 2), chain(jaxexp.deserialize(blob), 2), strict=True):
            assert_same_fields(link, expected)
            assert link.serialize() == expected.serialize()


VIEWS: dict[str, Callable[[bytes], memoryview]] = {
    "of bytes": memoryview,
    "of a part": lambda blob: memoryview(bytes(8) + blob + bytes(8))[8:],
    "of characters": lambda blob: memoryview(blob).cast("c"),
    "of a bytearray": lambda blob: memoryview(bytearray(blob)),
    "that is not aligned": lambda blob: memoryview(b"?" + blob)[1:],
}


@each("kind, reading", [(kind, "deserialize") for kind in VIEWS] + [("of bytes", reading) for reading in READINGS])
def test_a_view_is_released_while_its_function_lives(kind: str, reading: str, blob: bytes) -> None:
    with VIEWS[kind](blob) as view:
        exported = READINGS[reading](view)
    with pytest.raises(ValueError, match="released"):
        len(view)
    for link, expected in zip(chain(exported, 2), chain(jaxexp.deserialize(blob), 2), strict=True):
        assert_same_fields(link, expected)


@each("memory", MEMORIES)
def test_images_and_modules_stay_what_they_were(memory: Any, blob: bytes, tmp_path: Path) -> None:
    image, modules = parts_of(blob)
    made = []
    for i, data in enumerate([image, *modules]):
        (tmp_path / str(i)).mkdir()
        made.append(memory(data, tmp_path / str(i)))
    found = reader.read(made[0][0], [buffer for buffer, _ in made[1:]])
    for (_, write), data in zip(made, [image, *modules], strict=True):
        write(bytes(len(data)))
    assert found == jaxexp.deserialize(blob)
    assert [link.mlir_module_serialized for link in chain(found, 2)] == modules
    # An archive has what was verified.
    buffer, _ = memory(blob, tmp_path)
    with jaxexp.Archive.create(tmp_path / "a.zip") as archive:
        archive.add("f", buffer)
    assert jaxexp.Archive.open(tmp_path / "a.zip")["f"].read() == blob


def test_bytes_and_files_are_not_copied(blob: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(blob)
    for buffer in (blob, memoryview(blob), memoryview(blob)[:], files.opened(tmp_path / "f")):
        for read in (jaxexp.deserialize, lambda buffer: jaxexp.load_many([buffer])[0]):
            module = np.frombuffer(read(buffer)._artifact.module(), np.uint8)
            assert np.shares_memory(module, np.frombuffer(buffer, np.uint8))
    memory = bytearray(blob)
    view = memoryview(memory).toreadonly()
    for buffer, in_place, is_shared in ((view, True, True), (view, False, False), (memory, True, False)):
        artifact = _native.Artifact(buffer, in_place=in_place)
        module = np.frombuffer(artifact.module(), np.uint8)
        assert np.shares_memory(module, np.frombuffer(memory, np.uint8)) == is_shared
        assert reader.decode(artifact)._artifact.is_decoded == is_shared, "nobody knows for how long"
