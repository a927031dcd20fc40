"""A function exported for eight devices, called by two processes that have four devices each.

One process with eight devices exports, two others make up the eight devices of a global mesh and call what it saved;
see kit/workers/two_processes.py for what each of them does. The processes meet at a port of the loopback interface.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kit.places import WORKERS
from kit.workers.two_processes import COMPARED

WORKER = WORKERS / "two_processes.py"
SECONDS = 120
ATTEMPTS = 3
PORT_TAKEN = ("address already in use", "address in use", "failed to bind", "no address added")


@pytest.fixture
def environment(subprocess_env: Any) -> Any:
    """Of a child process with so many CPU devices, and none of the JAX settings of this one."""

    def make(devices: int) -> dict[str, str]:
        inherited = {k: v for k, v in subprocess_env().items() if not k.startswith(("JAX_", "XLA_"))}
        return {
            **inherited,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        }

    return make


def run_together(commands: list[list[str]], env: dict[str, str], folder: Path) -> list[tuple[int | None, str, str]]:
    """Exit status (None where it had to be killed), stdout and stderr of processes that need each other."""
    files = [(folder / f"{i}.out", folder / f"{i}.err") for i in range(len(commands))]
    with contextlib.ExitStack() as stack:
        processes = [
            subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                # Not pipes, which would have to be emptied all the time.
                stdout=stack.enter_context(out.open("w")),
                stderr=stack.enter_context(err.open("w")),
            )
            for command, (out, err) in zip(commands, files, strict=True)
        ]
        end = time.monotonic() + SECONDS
        try:
            while any(p.poll() is None for p in processes) and time.monotonic() < end:
                if any(p.poll() for p in processes):  # one failed: the others would wait for it until the end
                    end = min(end, time.monotonic() + 10)
                time.sleep(0.05)
            statuses = [p.poll() for p in processes]
        finally:
            for p in processes:
                p.kill()
                p.wait()
    return [
        (status, *(path.read_text(errors="replace") for path in paths))
        for status, paths in zip(statuses, files, strict=True)
    ]


def outcome(status: int | None, out: str, err: str) -> Any:
    """What a worker says on its last line; or a failure that shows all that it said."""
    what = f"did not end in {SECONDS} s or waited for the other" if status is None else f"exited with {status}"
    assert status == 0, f"a process {what}:\n{out[-2000:]}\n{err[-6000:]}"
    return json.loads(out.splitlines()[-1])


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def run_two(command: list[str], env: dict[str, str], folder: Path) -> list[tuple[int | None, str, str]]:
    """Runs a worker's command in two processes that meet at a port."""
    for _ in range(ATTEMPTS):
        port = str(free_port())  # free now, and taken by somebody else in a moment if we are unlucky
        callers = run_together([[*command, os.fspath(folder), port, str(i)] for i in range(2)], env, folder)
        if not any(status and any(sign in err.lower() for sign in PORT_TAKEN) for status, _, err in callers):
            break
    return callers


def test_two_processes_call_what_one_exported(tmp_path: Path, environment: Any) -> None:
    worker = [sys.executable, os.fspath(WORKER)]
    (exporter,) = run_together([[*worker, "export", os.fspath(tmp_path)]], environment(8), tmp_path)
    assert outcome(*exporter) == {"exported": ["auto", "explicit"]}
    callers = run_two([*worker, "call"], environment(4), tmp_path)
    expected = [f"{reader}, {kind}, {how}" for reader, kind, ways in COMPARED for how in ways]
    assert [outcome(*caller) for caller in callers] == [{"process": i, "compared": expected} for i in range(2)]


@pytest.mark.slow(reason="starts five processes, which import JAX")
def test_two_processes_use_what_two_others_compiled(tmp_path: Path, environment: Any) -> None:
    """Each of the two has code of its own."""
    worker = [sys.executable, os.fspath(WORKER)]
    (exporter,) = run_together([[*worker, "export", os.fspath(tmp_path)]], environment(8), tmp_path)
    outcome(*exporter)
    for compiled in (1, 0):
        found = [outcome(*one) for one in run_two([*worker, "cached"], environment(4), tmp_path)]
        assert found == [{"process": i, "compiled": compiled, "used": [True]} for i in range(2)]
        assert len(list((tmp_path / "cache").glob("*.exe"))) == 2


@pytest.mark.sampled(one_in=0, reason="the other test starts two processes, too")
@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="only Linux tells which pages were read")
def test_each_process_reads_its_part_of_the_weights(tmp_path: Path, environment: Any) -> None:
    worker = [sys.executable, os.fspath(WORKER)]
    (saver,) = run_together([[*worker, "save", os.fspath(tmp_path)]], environment(8), tmp_path)
    assert outcome(*saver)["saved"] > 1 << 26
    for number, reader in enumerate(run_two([*worker, "read"], environment(4), tmp_path)):
        found = outcome(*reader)
        assert found["process"] == number
        assert 0.45 < found["part"] < 0.6
