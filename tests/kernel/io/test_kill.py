"""A process that is killed while it saves leaves the old file or the new one, and never a third thing."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit.corpus import arr
from kit.places import WORKERS

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the processes that it kills"),
    pytest.mark.once(reason="files, whoever wrote what is in them"),
]

WORKER = WORKERS / "kill.py"


@pytest.fixture
def run_worker(tmp_path: Path, subprocess_env) -> Callable[..., list[str]]:
    def run(*arguments: str, module_size: int) -> list[str]:
        function = jaxexp.export(jax.jit(jnp.sin))(arr(2))
        for name, seed in (("old", 1), ("new", 2)):
            module = np.random.default_rng(seed).bytes(module_size + seed * 100)
            dataclasses.replace(function, mlir_module_serialized=module).save(tmp_path / name)
        folder = tmp_path / "saved"
        folder.mkdir()
        python = [sys.executable, "-W", "ignore::DeprecationWarning"]
        command = [*python, WORKER, folder, tmp_path / "old", tmp_path / "new", *arguments]
        done = subprocess.run(command, env=subprocess_env(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_killed_at_any_byte(run_worker) -> None:
    """Of the new file: up to the last one it is the old file that is there."""
    lines = run_worker("bytes", "100", "0", module_size=100_000)
    found = Counter({name: int(count) for name, count in map(str.split, lines)})
    assert found["old"] + found["new"] == found["partial"] == 100
    assert found["old"] > 25
    assert found["new"] > 25


@pytest.mark.slow(reason="300 processes; which of them die while they write is up to the disk")
def test_killed_at_random_moments(run_worker) -> None:
    """From outside, wherever the process is then: the modules are large, so mostly while it writes."""
    lines = run_worker("moments", "300", "0", module_size=1_500_000)
    found = Counter({name: int(count) for name, count in map(str.split, lines)})
    assert found["old"] + found["new"] == 300


def test_killed_in_front_of_each_step(run_worker) -> None:
    """As the audit events of Python name them: up to the renaming it is the old file."""
    lines = run_worker("steps", module_size=1000)
    steps = [line.split()[1] for line in lines if line.startswith("step ")]
    assert "open" in steps
    assert steps[-1] == "os.rename", steps
    assert f"old {len(steps)}" in lines
    assert not any(line.startswith("new ") for line in lines)


def test_leftovers_are_in_nobodys_way(tmp_path: Path) -> None:
    """What a killed process leaves is hidden, and neither read nor touched by the next one that saves there."""
    leftover = tmp_path / f".{'0' * 16}.tmp"
    leftover.write_bytes(b"half of an artifact")
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(2))
    exported.save(tmp_path / "artifact")
    assert jaxexp.load(tmp_path / "artifact") == jaxexp.deserialize(exported.serialize())
    assert leftover.read_bytes() == b"half of an artifact"
