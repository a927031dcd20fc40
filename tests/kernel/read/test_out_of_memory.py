"""Reading while memory runs out, in the caller's thread or in another one: a MemoryError, and the process goes on."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from jaxexp import Archive
from kit.any_modules import with_modules
from kit.archives import blob
from kit.places import GOLDEN, WORKERS

pytestmark = [
    pytest.mark.once(reason="memory is the same everywhere"),
    pytest.mark.skipif(sys.platform != "linux", reason="limits address space, and reads /proc"),
]
instrumented = pytest.mark.slow(reason="builds what lets allocations fail, and reads some thousand times")


def make(folder: Path, files: int, members: int) -> dict[str, Path]:
    """What the workers read, by how they read it."""
    for i in range(files):
        (folder / f"{i:02}").write_bytes(blob(version=i))
    with_modules(1, 3 << 20).save(folder / "large", vjp_order=1)
    archive = folder.with_suffix(".zip")
    with Archive.create(archive) as writer:
        for i in range(members):
            writer.add(f"m{i}", with_modules(i, 200_000) if i % 10 == 0 else blob(version=i))
    return {
        "load": folder,
        "load_many": folder,
        "verify_files": folder,
        "verify": archive,
        "load_all": archive,
        "describe": folder,
    }


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make(tmp_path_factory.mktemp("many"), files=40, members=100)


@pytest.fixture(scope="module")
def few_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make(tmp_path_factory.mktemp("few"), files=5, members=12)


def outcomes(how: str, path: Path, ladder: range, environment: dict[str, str]) -> set[str]:
    said = set()
    for spare in ladder:
        command = [sys.executable, WORKERS / "out_of_memory.py", how, path, str(spare)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"with {spare} kB: {done.returncode} {done.stderr[-2000:]}"
        said.add(done.stdout.strip())
    return said


@pytest.mark.sampled(one_in=3, reason="many cases go the same way")
@pytest.mark.parametrize("how", ["load", "load_many", "verify"])
def test_a_few_steps(how: str, paths: dict[str, Path], subprocess_env) -> None:
    found = outcomes(how, paths[how], range(0, 400_000, 100_000), subprocess_env())
    assert "done" in found
    assert found <= {"done", "MemoryError"}


@pytest.mark.slow(reason="a process for each of twenty amounts of memory")
@pytest.mark.parametrize("how", ["load", "load_many", "verify"])
def test_a_ladder(how: str, paths: dict[str, Path], subprocess_env) -> None:
    found = outcomes(how, paths[how], range(0, 20_000, 1000), subprocess_env())
    assert found == {"done", "MemoryError"}


@instrumented
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="takes the place of glibc's allocator")
@pytest.mark.parametrize("failures", [1, sys.maxsize])
@pytest.mark.parametrize("how", ["load", "load_many", "verify_files", "verify", "load_all", "describe"])
def test_every_allocation_of_the_native_module(
    how: str, failures: int, few_paths: dict[str, Path], programs: Path, subprocess_env
) -> None:
    """One after the other fails, or it and all that follow."""
    environment = subprocess_env(LD_PRELOAD=str(programs / "libfailing_malloc.so"), PYTHONMALLOC="malloc")
    command = [sys.executable, WORKERS / "failing_malloc.py", how, few_paths[how], str(failures)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode} {done.stderr[-2000:]}"
    tries, *found = done.stdout.splitlines()
    assert found == ["MemoryError", "done"]
    assert int(tries) > 30


@instrumented
def test_every_allocation_of_the_library(programs: Path, tmp_path: Path) -> None:
    """The same for C++, under AddressSanitizer: nothing is lost or used again on the way."""
    files = sorted(file for folder in GOLDEN.glob("*_jaxexp-*") for file in folder.glob("*.bin"))[:12]
    done = subprocess.run([programs / "out_of_memory", tmp_path, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("allocations fail") == 6
