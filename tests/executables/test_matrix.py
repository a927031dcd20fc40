"""Code that one process wrote, used or refused by others: other processors, other flags, other numbers of devices,
damage. Each reader is a process of its own, because what goes wrong ends it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kit.places import TESTS, WORKERS

pytestmark = [pytest.mark.jax, pytest.mark.processes(reason="another process is what code is kept for")]

Environment = Callable[..., dict[str, str]]


def flags(devices: int = 2, *more: str) -> dict[str, str]:
    found = [f"--xla_force_host_platform_device_count={devices}", *more]
    return {"XLA_FLAGS": " ".join(found), "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}


def work(*arguments: object, env: dict[str, str], before: Sequence[str] = ()) -> dict[str, Any]:
    command = [*before, sys.executable, str(WORKERS / "executables.py"), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("executables")
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    work("write", folder, env={**os.environ, "PYTHONPATH": path, **flags()})
    return folder


def reasons(answer: dict[str, Any]) -> set[str]:
    """What the first words are of why code was not used; an empty text where it was."""
    return {"" if why is None else why.split(":")[0] for whys in answer["states"].values() for why in whys}


def test_code_of_the_same_machine_is_used(written: Path, subprocess_env: Environment) -> None:
    """And not where its file is damaged."""
    answer = work("check", written, 1, 40, env=subprocess_env(**flags()))
    assert reasons(answer) == {""}
    counts = {"plain": 2, "lapack": 1, "symbolic": 3, "donated": 1, "sharded": 1, "random": 1}
    assert {name: len(whys) for name, whys in answer["states"].items()} == counts
    outcomes = answer["outcomes"]
    assert sum(outcomes.values()) == 40
    assert outcomes["refused"] > 0 and outcomes["not used"] > 0


def qemu(processor: str) -> list[str]:
    found = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64") or os.environ.get("JAXEXP_QEMU")
    if found is None:
        pytest.skip("there is no qemu-x86_64: install qemu-user")
    return [found, "-cpu", processor]


# What is said of code for another environment.
OTHER: dict[str, tuple[str, dict[str, str]]] = {
    "1 device": ("XLA_FLAGS", flags(1)),
    "8 devices": ("XLA_FLAGS", flags(8)),
    "old instructions": ("XLA_FLAGS", flags(2, "--xla_cpu_max_isa=SSE4_2")),
    "fast math": ("XLA_FLAGS", flags(2, "--xla_cpu_enable_fast_math=true")),
    "few optimizations": ("compile options", {**flags(), "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}),
    "Haswell": ("processor", {**flags(), "OPENBLAS_CORETYPE": "Haswell"}),
    "max": ("processor", {**flags(), "OPENBLAS_CORETYPE": "Haswell"}),
}


@pytest.mark.long(
    promise="a process with other flags, devices or processors names what differs",
    sibling="test_executables.py::test_what_differs_is_named",
)
@pytest.mark.parametrize("other", OTHER)
def test_other_environments(written: Path, other: str, subprocess_env: Environment) -> None:
    reason, env = OTHER[other]
    before = qemu(other) if reason == "processor" else []
    assert reasons(work("check", written, env=subprocess_env(**env), before=before)) == {reason}


@pytest.mark.long(
    promise="whatever byte of a file of code is damaged, results are right",
    sibling="test_matrix.py::test_code_of_the_same_machine_is_used",
)
def test_many_damaged_files(written: Path, subprocess_env: Environment) -> None:
    assert sum(work("check", written, 2, 3000, env=subprocess_env(**flags()))["outcomes"].values()) == 3000
