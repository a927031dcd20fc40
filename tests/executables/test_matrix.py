"""Code in a file is used where it fits, and refused with a reason where it does not: other releases, other processors,
other flags, other numbers of devices, damage. Each reader is a process of its own, because what goes wrong ends it.
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

from kit.places import TESTS

WORKER = TESTS / "kit" / "workers" / "executables.py"
Environment = Callable[..., dict[str, str]]


def flags(devices: int, *more: str) -> dict[str, str]:
    found = [f"--xla_force_host_platform_device_count={devices}", *more]
    return {"XLA_FLAGS": " ".join(found), "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}


def work(
    *arguments: object, env: dict[str, str], python: str = sys.executable, before: Sequence[str] = ()
) -> dict[str, Any]:
    done = subprocess.run(
        [*before, python, str(WORKER), *map(str, arguments)], env=env, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("executables")
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    work("write", folder, env={**os.environ, "PYTHONPATH": path, **flags(2)})
    return folder


def reasons(states: dict[str, list[Any]]) -> set[str]:
    """What the first words are of why code was not used; an empty text where it was."""
    return {"" if why is None else why.split(":")[0] for whys in states.values() for why in whys}


@pytest.mark.processes(reason="another process is what code is kept for")
def test_code_of_the_same_machine_is_used(written: Path, subprocess_env: Environment) -> None:
    states = work("check", written, env=subprocess_env(**flags(2)))
    assert reasons(states) == {""}
    assert {name: len(whys) for name, whys in states.items()} == {
        "plain": 2,
        "lapack": 1,
        "symbolic": 3,
        "donated": 1,
        "sharded": 1,
        "random": 1,
    }


@pytest.mark.slow(reason="each starts a process or more, which import JAX")
@pytest.mark.processes(reason="another process is what code is kept for")
@pytest.mark.parametrize("devices", [1, 8])
def test_other_numbers_of_devices(written: Path, devices: int, subprocess_env: Environment) -> None:
    states = work("check", written, env=subprocess_env(**flags(devices)))
    assert reasons(states) == {"XLA_FLAGS"}


@pytest.mark.slow(reason="each starts a process or more, which import JAX")
@pytest.mark.processes(reason="another process is what code is kept for")
@pytest.mark.parametrize("flag", ["--xla_cpu_max_isa=SSE4_2", "--xla_cpu_enable_fast_math=true"])
def test_other_flags(written: Path, flag: str, subprocess_env: Environment) -> None:
    states = work("check", written, env=subprocess_env(**flags(2, flag)))
    assert reasons(states) == {"XLA_FLAGS"}


@pytest.mark.processes(reason="another process is what code is kept for")
def test_other_options_of_the_compiler(written: Path, subprocess_env: Environment) -> None:
    states = work("check", written, env=subprocess_env(**flags(2), JAX_DISABLE_MOST_OPTIMIZATIONS="true"))
    assert reasons(states) == {"compile options"}


def other_pythons() -> list[str]:
    """Interpreters with other releases of JAX, and a jaxexp beside them or in PYTHONPATH: $JAXEXP_PYTHONS."""
    return [python for python in os.environ.get("JAXEXP_PYTHONS", "").split(os.pathsep) if python]


@pytest.mark.slow(reason="each starts a process or more, which import JAX")
@pytest.mark.processes(reason="another process is what code is kept for")
def test_other_releases_of_jax(written: Path, tmp_path: Path, subprocess_env: Environment) -> None:
    if not other_pythons():
        pytest.skip("no other Python is named: JAXEXP_PYTHONS=/path/to/python3.11:/path/to/python3.12")
    written = shutil.copytree(written, tmp_path / "written")
    for python in other_pythons():
        env = subprocess_env(**flags(2))
        states = work("check", written, env=env, python=python)
        assert reasons(states) <= {"jax", "signature"}
        work("write", written, env=env, python=python)  # into the same files
        assert "" in reasons(work("check", written, env=env, python=python))
    states = work("check", written, env=subprocess_env(**flags(2)))
    assert "" in reasons(states)


@pytest.mark.slow(reason="each starts a process or more, which import JAX")
@pytest.mark.processes(reason="another process is what code is kept for")
@pytest.mark.parametrize("processor", ["Haswell", "max"])
def test_other_processors(written: Path, processor: str, subprocess_env: Environment) -> None:
    qemu = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64") or os.environ.get("JAXEXP_QEMU")
    if qemu is None:
        pytest.skip("there is no qemu-x86_64: install qemu-user")
    env = subprocess_env(**flags(2), OPENBLAS_CORETYPE="Haswell")
    states = work("check", written, env=env, before=[qemu, "-cpu", processor])
    assert reasons(states) == {"processor"}


@pytest.mark.processes(reason="another process is what code is kept for")
def test_damaged_files(written: Path, subprocess_env: Environment) -> None:
    outcomes = work("damage", written, 1, 60, env=subprocess_env(**flags(2)))
    assert sum(outcomes.values()) == 60
    assert outcomes["refused"] > 0 and outcomes["not used"] > 0


@pytest.mark.slow(reason="each starts a process or more, which import JAX")
@pytest.mark.processes(reason="another process is what code is kept for")
def test_many_damaged_files(written: Path, subprocess_env: Environment) -> None:
    outcomes = work("damage", written, 2, 3000, env=subprocess_env(**flags(2)))
    assert sum(outcomes.values()) == 3000
