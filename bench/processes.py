"""Processes that are measured from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import disk


def compilation_cache(folder: Path) -> dict[str, str]:
    """Variables of a process that uses JAX's persistent compilation cache for everything."""
    return {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def json_of(program: str, parameters: Sequence[object], **environment: str) -> Any:
    """What a new process says in its last line, given parameters; both are JSON."""
    child = subprocess.run(
        [sys.executable, "-c", program, json.dumps(parameters)],
        cwd=disk.ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode != 0:
        raise RuntimeError(f"a new process failed, given {parameters}: {child.stderr.strip().splitlines()[-1:]}")
    return json.loads(child.stdout.splitlines()[-1])


def until_first_line(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, str]:
    """Seconds from the start of a process to the first line that it writes, and the line."""
    start = time.perf_counter()
    with subprocess.Popen(
        command,
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
