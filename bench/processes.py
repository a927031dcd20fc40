"""Processes that are measured from outside."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import disk
from bench.measure import Reading


def compilation_cache(folder: Path) -> dict[str, str]:
    """Variables of a process that uses JAX's persistent compilation cache for everything."""
    return {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


# Starts a command, and adds a line with the peak of its resident memory in KiB to a file. It is small itself: the
# kernel counts the memory of whoever starts a process as memory of the process.
_WATCH = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "a") as file:
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=file)
sys.exit(status)
"""
_watched: Path | None = None


@contextlib.contextmanager
def watched() -> Iterator[list[int]]:
    """Fills a list with the peaks of the processes that are started meanwhile, in bytes."""
    global _watched
    peaks: list[int] = []
    with tempfile.NamedTemporaryFile() as file:
        _watched = Path(file.name)
        try:
            yield peaks
        finally:
            peaks += [1024 * int(line) for line in _watched.read_text().split()]
            _watched = None


def seen(command: Sequence[str]) -> list[str]:
    """A command that says how much memory it takes, if somebody wants to know."""
    if _watched is None:
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _WATCH, str(_watched), *command]


def json_of(program: str, parameters: Sequence[object], **environment: str) -> Any:
    """What a new process says in its last line, given parameters; both are JSON."""
    child = subprocess.run(
        seen([sys.executable, "-c", program, json.dumps(parameters)]),
        cwd=disk.ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode != 0:
        raise RuntimeError(f"a new process failed, given {parameters}: {child.stderr.strip().splitlines()[-1:]}")
    return json.loads(child.stdout.splitlines()[-1])


_ALONE = """
import importlib, json, sys
file, way, parameters = json.loads(sys.argv[1])
getattr(importlib.import_module(file), way)(*parameters)
print(0)
"""


def alone(way: Callable[..., object], *parameters: str) -> Reading:
    """A function of a file of benchmarks, called with texts in a new process, for its memory."""
    return Reading(lambda: float(json_of(_ALONE, [way.__module__, way.__name__, parameters])))


def until_first_line(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, str]:
    """Seconds from the start of a process to the first line that it writes, and the line."""
    start = time.perf_counter()
    with subprocess.Popen(
        seen(command),
        cwd=disk.ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        line = child.stdout.readline()
        took = time.perf_counter() - start
        errors = child.stderr.read()
    if child.returncode or not line:
        raise RuntimeError(f"{command[0]}: {errors.strip().splitlines()[-1:]}")
    return took, line
