"""Reading while memory runs out, in the caller's thread or in another one: a MemoryError, and the process goes on."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxexp import Archive
from kit.any_modules import with_modules
from kit.archives import blob
from kit.places import GOLDEN, WORKERS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits address space, and reads /proc")
Worker = Callable[..., list[str]]


@pytest.fixture
def worker(tmp_path: Path, subprocess_env) -> Worker:
    def run(how: str, mode: str, amount: int, files: int, **environment: str) -> list[str]:
        folder, archive = tmp_path / "many", tmp_path / "many.zip"
        if not folder.exists():
            folder.mkdir()
            for i in range(files):
                (folder / f"{i:02}").write_bytes(blob(version=i))
            with_modules(1, 3 << 20).save(folder / "large", vjp_order=1)
            with Archive.create(archive) as writer:
                for i in range(2 * files):
                    writer.add(f"m{i}", with_modules(i, 200_000) if i % 10 == 0 else blob(version=i))
        path = archive if how in ("verify", "load_all") else folder
        done = subprocess.run(
            [sys.executable, WORKERS / "out_of_memory.py", how, path, mode, str(amount)],
            env=subprocess_env(**environment), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{amount}: {done.returncode} {done.stderr[-2000:]}"
        return done.stdout.splitlines()

    return run


@pytest.mark.processes(reason="limits the memory of a process")
def test_no_memory_at_all(worker: Worker) -> None:
    assert worker("load_many", "spare", 0, 12) == ["MemoryError"]


@pytest.mark.long(
    promise="however little memory there is, a read ends in a MemoryError or is done",
    sibling="test_out_of_memory.py::test_no_memory_at_all",
)
@pytest.mark.parametrize("how", ["load", "load_many", "verify"])
def test_a_ladder(how: str, worker: Worker) -> None:
    said = {line for spare in range(0, 20_000, 1000) for line in worker(how, "spare", spare, 50)}
    assert said == {"done", "MemoryError"}


@pytest.mark.cpp
@pytest.mark.long(
    promise="whichever allocation fails, a read ends in a MemoryError",
    sibling="test_out_of_memory.py::test_no_memory_at_all",
)
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="takes the place of glibc's allocator")
@pytest.mark.parametrize("failures", [1, sys.maxsize])
@pytest.mark.parametrize("how", ["load", "load_many", "verify_files", "verify", "load_all", "describe"])
def test_every_allocation_of_the_native_module(how: str, failures: int, worker: Worker, programs: Path) -> None:
    preload = {"LD_PRELOAD": str(programs / "libfailing_malloc.so"), "PYTHONMALLOC": "malloc"}
    tries, *found = worker(how, "fail", failures, 6, **preload)
    assert found == ["MemoryError", "done"]
    assert int(tries) > 30


@pytest.mark.cpp
@pytest.mark.long(
    promise="whichever allocation of the C++ library fails, nothing is lost or used again",
    sibling="test_out_of_memory.py::test_no_memory_at_all",
)
def test_every_allocation_of_the_library(sanitized: Path, tmp_path: Path) -> None:
    files = sorted(file for folder in GOLDEN.glob("*_jaxexp-*") for file in folder.glob("*.bin"))[:12]
    done = subprocess.run([sanitized / "out_of_memory", tmp_path, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("allocations fail") == 6
