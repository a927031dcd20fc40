"""Files that change under functions that were loaded from them: the old function or one clear error, never a signal."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import jaxexp
from jaxexp import Archive, DeserializationError
from kit.any_modules import with_modules
from kit.archives import plain
from kit.places import WORKERS

pytestmark = pytest.mark.once(reason="files, whoever wrote what is in them")
MEGABYTE = 1 << 20


def rewrite(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def cut(path: Path, data: bytes) -> None:
    os.truncate(path, 1000)


def empty(path: Path, data: bytes) -> None:
    os.truncate(path, 0)


def same_size(path: Path, data: bytes) -> None:
    size = path.stat().st_size
    path.write_bytes(data.ljust(size, b"\1")[:size])


def same_size_and_time(path: Path, data: bytes) -> None:
    status = path.stat()
    same_size(path, data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES = [rewrite, cut, empty, same_size, same_size_and_time]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("how", ["load", "load_many"])
def test_a_large_file(how: str, change: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    path, function = tmp_path / "f", with_modules(1, 3 * MEGABYTE)
    function.save(path, vjp_order=1)
    other = bytes(with_modules(2, 3 * MEGABYTE).serialize(vjp_order=1))
    loaded = jaxexp.load(path) if how == "load" else jaxexp.load_many([path])[0]
    used = jaxexp.load(path)
    assert used.mlir_module_serialized == function.mlir_module_serialized
    change(path, other)
    assert loaded.fun_name == "model"
    assert loaded.vjp().in_avals == function.vjp().in_avals, "what was read stays"
    for _ in range(2):
        for late in (loaded, loaded.vjp(), used.vjp()):
            with pytest.raises(DeserializationError, match=r"has been changed since|of the module as they were"):
                _ = late.mlir_module_serialized
        with pytest.raises(DeserializationError):
            loaded.serialize()
    assert used.mlir_module_serialized == function.mlir_module_serialized


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("trailer", [True, False])
def test_a_small_file_was_read(trailer: bool, change: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    path, function = tmp_path / "f", with_modules(1, 10_000)
    path.write_bytes(function.serialize(vjp_order=1, trailer=trailer))
    loaded, [many] = jaxexp.load(path), jaxexp.load_many([path])
    change(path, b"something else")
    for one in (loaded, many):
        assert one.mlir_module_serialized == function.mlir_module_serialized
        assert one.vjp().mlir_module_serialized == function.vjp().mlir_module_serialized


def test_a_large_file_without_a_trailer_was_read(tmp_path: Path) -> None:
    path, function = tmp_path / "f", with_modules(1, 3 * MEGABYTE)
    path.write_bytes(function.serialize(trailer=False))
    loaded = jaxexp.load(path)
    path.write_bytes(b"something else")
    assert loaded.mlir_module_serialized == function.mlir_module_serialized


def test_a_new_name_or_a_successor_is_no_change(tmp_path: Path) -> None:
    path, function = tmp_path / "f", with_modules(1, 3 * MEGABYTE)
    function.save(path)
    loaded = [jaxexp.load(path) for _ in range(4)]
    with_modules(2, 3 * MEGABYTE).save(path)
    assert loaded[0].mlir_module_serialized == function.mlir_module_serialized
    path.unlink()
    assert loaded[1].mlir_module_serialized == function.mlir_module_serialized
    function.save(path)
    moved = jaxexp.load(path)
    path.rename(tmp_path / "g")
    (tmp_path / "g").chmod(0o400)
    assert moved.mlir_module_serialized == function.mlir_module_serialized


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which files are open")
def test_a_function_keeps_the_file_of_an_archive_as_long_as_it_reads_from_it(tmp_path: Path) -> None:
    path, functions = tmp_path / "fleet.zip", [with_modules(1, 3_000), with_modules(2, 3 * MEGABYTE)]
    with Archive.create(path) as writer:
        for name, function in zip(("small", "large"), functions, strict=True):
            writer.add(name, function)

    def is_open() -> bool:
        return path in {Path("/proc/self/fd", name).resolve() for name in os.listdir("/proc/self/fd")}

    archive = Archive.open(path)
    small, large = archive.load_all(["small", "large"])
    del archive
    gc.collect()
    assert is_open()
    assert large.mlir_module_serialized == functions[1].mlir_module_serialized
    del large
    gc.collect()
    assert not is_open()
    assert small.mlir_module_serialized == functions[0].mlir_module_serialized


@pytest.mark.parametrize("change", CHANGES)
def test_a_member_of_an_archive(change: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    path, functions = tmp_path / "fleet.zip", [with_modules(seed, 300_000) for seed in range(3)]
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
    with contextlib.suppress(DeserializationError):
        assert vanished.read() == plain(1.0)


def test_an_archive_that_grows_is_the_same(tmp_path: Path) -> None:
    path, functions = tmp_path / "fleet.zip", [with_modules(seed, 300_000) for seed in range(3)]
    with Archive.create(path) as writer:
        writer.add("m0", functions[0])
        writer.add("plain", plain())
    archive = Archive.open(path)
    loaded = archive["m0"].load()
    with Archive.append(path) as writer:
        writer.add("m1", functions[1])
    assert loaded.mlir_module_serialized == functions[0].mlir_module_serialized
    assert bytes(archive["plain"].read()) == plain()
    assert archive["plain"].load() == jaxexp.deserialize(plain())
    assert archive.verify() == {}
    Archive.compact(path)
    assert archive.verify() == {}


class TestVerify:
    """`verify=True` reads all modules at once."""

    def test_a_damaged_module(self, tmp_path: Path) -> None:
        function = with_modules(1, 3 * MEGABYTE)
        blob = bytearray(function.serialize(vjp_order=1))
        for module, where in ((function, ""), (function.vjp(), "vjp.")):
            damaged = bytearray(blob)
            damaged[blob.index(module.mlir_module_serialized) + 5000] ^= 1
            path = tmp_path / "f"
            path.write_bytes(damaged)
            jaxexp.load(path)
            with pytest.raises(DeserializationError, match=rf"{path}.*at {where}mlir_module_serialized"):
                jaxexp.load(path, verify=True)
            with Archive.create(tmp_path / "fleet.zip") as writer:
                writer.add("m", blob)
            data = (tmp_path / "fleet.zip").read_bytes()
            (tmp_path / "fleet.zip").write_bytes(data.replace(bytes(blob), bytes(damaged)))
            handle = Archive.open(tmp_path / "fleet.zip")["m"]
            handle.load()
            with pytest.raises(DeserializationError, match=rf"fleet.zip::m.*at {where}mlir_module_serialized"):
                handle.load(verify=True)

    def test_then_the_file_may_change(self, tmp_path: Path) -> None:
        function = with_modules(1, 3 * MEGABYTE)
        function.save(tmp_path / "f", vjp_order=1)
        loaded = jaxexp.load(tmp_path / "f", verify=True)
        (tmp_path / "f").write_bytes(b"")
        assert loaded.mlir_module_serialized == function.mlir_module_serialized
        assert loaded.vjp().mlir_module_serialized == function.vjp().mlir_module_serialized


@pytest.mark.skipif(sys.platform == "win32", reason="files that are open cannot be changed there")
class TestAtRandom:
    def trials(self, how: str, count: int, folder: Path, environment: dict[str, str]) -> dict[str, int]:
        for i in range(3):
            if how == "archive":
                with Archive.create(folder / f"a-{i}") as writer:
                    for seed in range(4):
                        writer.add(f"m{seed}", with_modules(10 * i + seed, 200_000), vjp_order=1)
            else:
                with_modules(i, 2 * MEGABYTE).save(folder / f"a-{i}", vjp_order=1)
        command = [sys.executable, WORKERS / "changing_files.py", folder, how, str(count), "0"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return {outcome: int(times) for outcome, times in map(str.split, done.stdout.splitlines())}

    @pytest.mark.sampled(one_in=3, reason="many cases go the same way")
    @pytest.mark.parametrize("how", ["load", "load_many", "archive"])
    def test_a_few(self, how: str, tmp_path: Path, subprocess_env) -> None:
        found = self.trials(how, 60, tmp_path, subprocess_env())
        assert sum(found.values()) == 60

    @pytest.mark.slow(reason="1,000 files of some megabytes each, which are written and changed")
    @pytest.mark.parametrize("how", ["load", "load_many", "archive"])
    def test_a_thousand(self, how: str, tmp_path: Path, subprocess_env) -> None:
        found = self.trials(how, 1000, tmp_path, subprocess_env())
        assert found["loaded"] > 100
        assert found["refused"] > 100
