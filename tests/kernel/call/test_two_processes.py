"""A function exported for eight devices, called by two processes that have four devices each.

This process exports. Two others make up the eight devices of a global mesh and call what it saved: see
kit/workers/two_processes.py for what each of them does. They meet at a port of the loopback interface.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.places import WORKERS
from kit.workers import two_processes

pytestmark = [pytest.mark.jax, pytest.mark.processes(reason="the devices of one mesh are in two of them")]

SECONDS = 120
PORT_TAKEN = ("address already in use", "address in use", "failed to bind", "no address added")


@pytest.fixture
def run_two(subprocess_env: Any) -> Any:
    """Runs what the worker calls so in two processes; returns what each of them says on its last line."""
    inherited = {k: v for k, v in subprocess_env().items() if not k.startswith(("JAX_", "XLA_"))}
    env = {**inherited, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}

    def run(what: str, folder: Path, attempts: int = 3) -> list[Any]:
        with socket.socket() as s:  # free now, and taken by somebody else in a moment if we are unlucky
            s.bind(("127.0.0.1", 0))
            port = str(s.getsockname()[1])
        command = [sys.executable, os.fspath(WORKERS / "two_processes.py"), what, os.fspath(folder), port]
        streams = [[(folder / f"{i}.{kind}").open("w+") for kind in ("out", "err")] for i in range(2)]
        processes = [
            subprocess.Popen([*command, str(i)], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            for i, (out, err) in enumerate(streams)
        ]
        try:
            for process in processes:
                # If one fails, the other waits for it until the end.
                process.wait(SECONDS if not any(p.poll() for p in processes) else 10)
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in processes:
                process.kill()
                process.wait()
        said = [[stream.seek(0) or stream.read() for stream in pair] for pair in streams]
        for stream in (stream for pair in streams for stream in pair):
            stream.close()
        if attempts > 1 and any(sign in err.lower() for _, err in said for sign in PORT_TAKEN):
            return run(what, folder, attempts - 1)
        for process, (out, err) in zip(processes, said, strict=True):
            assert process.returncode == 0, f"exited with {process.returncode}:\n{out[-2000:]}\n{err[-6000:]}"
        return [json.loads(out.splitlines()[-1]) for out, _ in said]

    return run


def test_two_processes_call_what_one_exported(tmp_path: Path, run_two: Any) -> None:
    """Each reads its part of the weights."""
    two_processes.export(tmp_path)
    expected = [f"{reader}, {kind}, {how}" for reader, kind, ways in two_processes.COMPARED for how in ways]
    for number, found in enumerate(run_two("use", tmp_path)):
        part = found.pop("part")
        assert found == {"process": number, "compared": expected}
        assert part is None or 0.45 < part < 0.6


@pytest.mark.long(
    promise="two processes use what two others compiled, each its own code",
    sibling="test_two_processes.py::test_two_processes_call_what_one_exported",
)
def test_two_processes_use_what_two_others_compiled(tmp_path: Path, run_two: Any) -> None:
    two_processes.export(tmp_path)
    for compiled in (1, 0):
        assert run_two("cached", tmp_path) == [{"process": i, "compiled": compiled, "used": [True]} for i in range(2)]
        assert len(list((tmp_path / "cache").glob("*.exe"))) == 2
