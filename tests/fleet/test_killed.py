"""A process that is killed while it writes leaves what was there or what it writes, whole; and it can be repeated.

Each writer of the package, and each way to die: kit/workers/killed.py has them, and looks at what is left.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import jaxexp
from kit.archives import blob
from kit.workers import killed as worker

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the processes that it kills")

WRITERS = [*worker.WRITERS]


class Died(NamedTuple):
    times: int
    complete: int  # so often, all that it writes was there


@pytest.fixture
def killed(tmp_path: Path, subprocess_env: Callable[..., dict[str, str]]) -> Callable[..., dict[str, Died]]:
    def run(way: str, count: int, *writers: str, **environment: str) -> dict[str, Died]:
        command = [sys.executable, "-W", "ignore", worker.__file__, tmp_path, way, str(count), "0", *writers]
        done = subprocess.run(command, env=subprocess_env(**environment), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = (line.split("\t") for line in done.stdout.splitlines())
        return {name: Died(int(times), int(complete)) for name, times, complete in lines}

    return run


@pytest.mark.processes(reason="one kills those that it forks")
def test_at_any_byte(killed: Callable[..., dict[str, Died]]) -> None:
    """At the first byte and at the last one; more at night."""
    assert killed("bytes", 2, *WRITERS) == dict.fromkeys(WRITERS, Died(2, 0))


@pytest.mark.processes(reason="one kills those that it forks")
def test_in_front_of_each_step(killed: Callable[..., dict[str, Died]]) -> None:
    """Up to some step there is what was there before, and from then on what is written."""
    found = killed("steps", 0, "save", "save weights")
    assert found["save"].times >= 5
    assert found["save"].complete == 1
    assert found["save weights"].times >= 25
    assert 1 <= found["save weights"].complete < found["save weights"].times / 2  # later ones clean up


@pytest.mark.long(promise="what is left of a killed process is whole", sibling="test_killed.py::test_at_any_byte")
@pytest.mark.parametrize("way", ["bytes", "steps"])
@pytest.mark.parametrize("writer", WRITERS)
def test_again_and_again(writer: str, way: str, killed: Callable[..., dict[str, Died]]) -> None:
    """Much is written."""
    found = killed(way, 30, writer, JAXEXP_KILLED_LARGE="100000")[writer]
    if way == "bytes":
        assert found == Died(30, 0)
    else:
        assert found.complete >= 1


@pytest.mark.cpp
def test_what_cpp_adds(killed: Callable[..., dict[str, Died]], programs: Path) -> None:
    """To a file of executables."""
    assert killed("bytes", 30, str(programs / "append")) == {str(programs / "append"): Died(30, 0)}


def test_leftovers_are_in_nobodys_way(tmp_path: Path) -> None:
    """What a killed process leaves is hidden, and neither read nor touched by the next one that saves there."""
    leftover = tmp_path / f".{'0' * 16}.tmp"
    leftover.write_bytes(b"half of an artifact")
    (tmp_path / "artifact").write_bytes(blob())
    jaxexp.load(tmp_path / "artifact").save(tmp_path / "artifact")
    assert jaxexp.load(tmp_path / "artifact") == jaxexp.deserialize(blob())
    assert leftover.read_bytes() == b"half of an artifact"
