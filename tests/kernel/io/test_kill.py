"""A process that is killed while it saves leaves the old file or the new one, and never a third thing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import jaxexp
from kit.any_modules import with_modules
from kit.places import WORKERS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the processes that it kills")


@pytest.fixture
def run_worker(tmp_path: Path, subprocess_env) -> Callable[..., list[str]]:
    def run(*arguments: str, module_size: int) -> list[str]:
        for name, seed in (("old", 1), ("new", 2)):
            with_modules(seed, module_size + seed * 100).save(tmp_path / name)
        (tmp_path / "saved").mkdir(exist_ok=True)
        python = [sys.executable, "-W", "ignore::DeprecationWarning"]
        command = [*python, WORKERS / "kill.py", tmp_path / "saved", tmp_path / "old", tmp_path / "new", *arguments]
        done = subprocess.run(command, env=subprocess_env(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def counts(lines: list[str]) -> dict[str, int]:
    return {"old": 0, "new": 0, **{name: int(count) for name, count in map(str.split, lines) if name != "step"}}


@pytest.mark.processes(reason="the processes that are killed are forks of one that does nothing else")
def test_killed_in_front_of_each_step(run_worker) -> None:
    """As the audit events of Python name them: up to the renaming it is the old file."""
    lines = run_worker("steps", module_size=1000)
    steps = [line.split()[1] for line in lines if line.startswith("step ")]
    assert "open" in steps
    assert steps[-1] == "os.rename", steps
    assert counts(lines) == {"old": len(steps), "new": 0}


@pytest.mark.long(
    promise="whenever a process is killed while it saves, the old file is there or the new one",
    sibling="test_kill.py::test_killed_in_front_of_each_step",
)
def test_killed_at_random_moments(run_worker) -> None:
    """From outside, wherever the process is then: the modules are large, so mostly while it writes."""
    found = counts(run_worker("moments", "300", "0", module_size=1_500_000))
    assert found["old"] + found["new"] == 300
    found = counts(run_worker("bytes", "100", "0", module_size=100_000))
    assert found["old"] + found["new"] == found["partial"] == 100
    assert min(found["old"], found["new"]) > 25


def test_leftovers_are_in_nobodys_way(tmp_path: Path) -> None:
    """What a killed process leaves is hidden, and neither read nor touched by the next one that saves there."""
    leftover = tmp_path / f".{'0' * 16}.tmp"
    leftover.write_bytes(b"half of an artifact")
    exported = with_modules(1, 100)
    exported.save(tmp_path / "artifact")
    assert jaxexp.load(tmp_path / "artifact") == jaxexp.deserialize(exported.serialize())
    assert leftover.read_bytes() == b"half of an artifact"
