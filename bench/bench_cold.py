"""How long does a new process take from its start to its first result?"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from bench import disk
from bench.agree import result_differences
from bench.cases import Case
from bench.measure import Reading
from bench.program import Program
from bench.question import Question, Trial

# What a new process runs. `timed` makes the results; it begins where JAX is there, and prints how long it took.
_CHILD = """
import json, pickle, sys, time
import jax
how, where, arguments, results = json.loads(sys.argv[1])
with open(arguments, "rb") as file:
    args = pickle.load(file)
start = time.perf_counter()
if how == "live":
    from bench.models import MODELS
    found = jax.jit(MODELS[where][0])(*args)
else:
    import importlib
    from bench.reader import reader
    found = reader(importlib.import_module(how))(where).call(*args)
jax.block_until_ready(found)
print(time.perf_counter() - start, flush=True)
if results:
    with open(results, "wb") as file:
        pickle.dump(jax.device_get(found), file)
"""


class _Process:
    """Runs a program in a new process: `how` is "live", or a library with the API of jax.export."""

    def __init__(self, how: str, where: str, arguments: Path, **environment: str) -> None:
        self.parameters = how, where, str(arguments)
        # One device, as most programs have, and no cache but the one that is asked for.
        self.environment = {**os.environ, "XLA_FLAGS": "", "JAX_ENABLE_COMPILATION_CACHE": "false", **environment}

    def run(self, results: str = "") -> tuple[float, float]:
        """Seconds from the start of the process to the first result, and from the imported JAX to it."""
        start = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD, json.dumps([*self.parameters, results])],
            cwd=disk.ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None and child.stderr is not None
            line = child.stdout.readline()
            took = time.perf_counter() - start
            errors = child.stderr.read()
        if child.returncode:
            raise RuntimeError(f"{self.parameters}: {errors.strip().splitlines()[-1:]}")
        return took, float(line)

    def results(self) -> Any:
        path = disk.new_path()
        self.run(str(path))
        return pickle.loads(path.read_bytes())


def _trial(
    case: Case,
    program: Program,
    subject: ModuleType,
    oracle: ModuleType,
    *,
    part: Callable[[tuple[float, float]], float],
) -> Trial:
    arguments, artifact, cache = disk.new_path(), disk.new_path(), disk.new_path()
    arguments.write_bytes(pickle.dumps(jax.tree.map(np.asarray, program.args)))
    artifact.write_bytes(program.artifact(oracle))
    ours = _Process(subject.__name__, str(artifact), arguments)
    warm = _Process(
        subject.__name__,
        str(artifact),
        arguments,
        JAX_ENABLE_COMPILATION_CACHE="true",
        JAX_COMPILATION_CACHE_DIR=str(cache),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )
    warm.run()

    def reading(process: _Process) -> Reading:
        return Reading(lambda: part(process.run()))

    return Trial(
        subject=reading(ours),
        oracle=reading(_Process(oracle.__name__, str(artifact), arguments)),
        wrong=lambda: result_differences(ours.results(), jax.device_get(program.fresh()(*program.args))),
        beside={
            "live": reading(_Process("live", program.function.__name__, arguments)),
            "warm cache": reading(warm),
        },
    )


def _is_model(case: Case) -> bool:
    return case.family == "model"


_BESIDE = {
    "live": "the same with the function's own code, under `jax.jit`",
    "warm cache": "the subject with JAX's persistent compilation cache, which has the compiled function",
}

QUESTIONS = (
    Question(
        "cold start",
        "From the start of a process to the first result: Python, `import jax`, reading the artifact, compiling, "
        "running. A new process for each sample; its files are in the page cache.",
        partial(_trial, part=lambda seconds: seconds[0]),
        beside=_BESIDE,
        applies=_is_model,
        patience=8,
        quick=False,
    ),
    Question(
        "cold first call",
        "The same without Python and `import jax`: importing the library, reading the artifact and the first call.",
        partial(_trial, part=lambda seconds: seconds[1]),
        beside=_BESIDE,
        applies=_is_model,
        patience=8,
        quick=False,
    ),
)
