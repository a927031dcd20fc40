"""A process that is killed while it changes an archive leaves the old one or the new one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kit.archives import exported
from kit.places import WORKERS

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the processes that it kills"),
    pytest.mark.once(reason="files, whoever wrote what is in them"),
]

WORKER = WORKERS / "archive_kill.py"


def run_worker(folder: Path, environment: dict[str, str], size: int, *arguments: str) -> dict[str, int]:
    """What the worker counted; it has 20 artifacts of somewhat more than this size."""
    artifacts, archives = folder / "artifacts", folder / "archives"
    artifacts.mkdir()
    archives.mkdir()
    for i in range(20):
        noise = np.random.default_rng(i).bytes(size // 2).hex()
        (artifacts / f"{i}").write_bytes(exported(factor=1.0 + i % 3).serialize(metadata={"noise": noise}))
    python = [sys.executable, "-W", "ignore::DeprecationWarning"]
    done = subprocess.run(
        [*python, WORKER, archives / "fleet.zip", artifacts, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: int(times) for name, times in map(str.split, done.stdout.splitlines())}


@pytest.mark.sampled(one_in=3, reason="many cases go the same way")
@pytest.mark.parametrize("how", ["create", "append", "append-to-many", "compact"])
def test_killed_at_any_byte(how: str, tmp_path: Path, subprocess_env) -> None:
    """Of what it writes: up to the last one the old archive is there, whole."""
    found = run_worker(tmp_path, subprocess_env(), 10_000, how, "bytes", "50", "0")
    assert found["died"] == 50
    assert found["unfinished"] >= 48


@pytest.mark.slow(reason="100 processes each; which of them die while they write is up to the disk")
@pytest.mark.parametrize("how", ["create", "append", "append-to-many", "compact"])
def test_killed_at_random_moments(how: str, tmp_path: Path, subprocess_env) -> None:
    """From outside, wherever the process is then: the artifacts are large, so mostly while it writes."""
    assert run_worker(tmp_path, subprocess_env(), 300_000, how, "moments", "100", "0") == {"died": 100}
