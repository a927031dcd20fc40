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

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the processes that it kills")

WORKER = WORKERS / "archive_kill.py"


@pytest.mark.parametrize(("how", "sign"), [("create", "partial"), ("append", "unfinished"), ("compact", "partial")])
def test_killed_at_random_moments(how: str, sign: str, tmp_path: Path, subprocess_env) -> None:
    artifacts, archives = tmp_path / "artifacts", tmp_path / "archives"
    artifacts.mkdir()
    archives.mkdir()
    for i in range(20):
        noise = np.random.default_rng(i).bytes(150_000).hex()  # most of the time is spent while files are written
        (artifacts / f"{i}").write_bytes(exported(factor=1.0 + i % 3).serialize(metadata={"noise": noise}))
    python = [sys.executable, "-W", "ignore::DeprecationWarning"]
    done = subprocess.run(
        [*python, WORKER, archives / "fleet.zip", artifacts, how, "100", "0"],
        env=subprocess_env(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {name: int(times) for name, times in map(str.split, done.stdout.splitlines())}
    assert found[sign] > 5, "some are killed while they write"
