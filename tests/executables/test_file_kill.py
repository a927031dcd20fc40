"""Processes that are killed while they add to a file of executables leave the records that were there, or one more;
others wait for their turn, and lose nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.places import WORKERS

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the processes that it kills"),
    pytest.mark.once(reason="files, whoever wrote what is in them"),
]

Worker = Callable[..., dict[str, int]]


@pytest.fixture
def run_worker(tmp_path: Path, subprocess_env: Callable[..., dict[str, str]]) -> Worker:
    def run(*arguments: object) -> dict[str, int]:
        command = [sys.executable, WORKERS / "executables_kill.py", tmp_path / "model.exe", *map(str, arguments)]
        done = subprocess.run(command, env=subprocess_env(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return {name: int(times) for name, times in map(str.split, done.stdout.splitlines())}

    return run


def check_killed_at_any_byte(run_worker: Worker, *program: Path) -> None:
    found = run_worker("bytes", 30, 0, *program)
    assert found["died"] == 30
    assert found["unfinished"] >= 20


def test_killed_at_any_byte(run_worker: Worker) -> None:
    check_killed_at_any_byte(run_worker)


def test_many_at_once(run_worker: Worker) -> None:
    found = run_worker("together", 4, 0)
    assert found["records"] == 40
    assert found["looks"] > 0


@pytest.mark.slow(reason="100 processes; which of them die while they write is up to the disk")
def test_killed_at_random_moments(run_worker: Worker) -> None:
    assert run_worker("moments", 50, 0) == {"died": 100}


@pytest.mark.slow(reason="builds the C++ tests with sanitizers, which takes minutes")
def test_what_cpp_adds(run_worker: Worker, programs: Path, tmp_path: Path) -> None:
    check_killed_at_any_byte(run_worker, programs / "append")
    (tmp_path / "model.exe").unlink()
    assert run_worker("together", 4, 0, programs / "append")["records"] == 40
    (tmp_path / "model.exe").unlink()
    assert run_worker("moments", 20, 0, programs / "append") == {"died": 40}
