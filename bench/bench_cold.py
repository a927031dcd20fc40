"""How long does a new process take from its start to its first result?"""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

import jaxexp
from bench import disk, without_python
from bench.agree import result_differences
from bench.cases import Case
from bench.measure import Reading
from bench.processes import compilation_cache, until_first_line
from bench.program import Program
from bench.question import Question, Trial

CACHED_ORACLE = "jax.export, warm cache"
JAXS_CODE = "JAX's compiled code"

# What a new process runs. It prints a line when it has the results.
_CHILD = """
import json, pickle, sys
import jax
how, where, arguments, results = json.loads(sys.argv[1])
with open(arguments, "rb") as file:
    args = pickle.load(file)
if how == "live":
    from bench.models import MODELS
    found = jax.jit(MODELS[where][0])(*args)
elif how == "nothing":
    found = jax.device_put(args)
elif how == "executables":
    import jaxexp
    found = jaxexp.load(where, executables=where + ".exe").call(*args)
elif how == "code":
    from jax.experimental.serialize_executable import deserialize_and_load
    with open(where + ".code", "rb") as file:
        found = deserialize_and_load(*pickle.load(file))(*args)
else:
    import importlib
    from bench.reader import reader
    found = reader(importlib.import_module(how))(where).call(*args)
jax.block_until_ready(found)
print(flush=True)
if results:
    with open(results, "wb") as file:
        pickle.dump(jax.device_get(found), file)
"""


class _Process:
    """Runs a program in a new process: `how` is "live", "nothing" for the arguments only, "executables" for jaxexp with
    compiled code in a file, or a library with the API of jax.export.
    """

    def __init__(self, how: str, where: str, arguments: Path, **environment: str) -> None:
        self.parameters = how, where, str(arguments)
        # One device, as most programs have, and no cache but the one that is asked for.
        self.environment = {**os.environ, "XLA_FLAGS": "", "JAX_ENABLE_COMPILATION_CACHE": "false", **environment}

    def run(self, results: str = "") -> float:
        """Seconds from the start of the process to the first result."""
        command = [sys.executable, "-c", _CHILD, json.dumps([*self.parameters, results])]
        took, _ = until_first_line(command, self.environment)
        return took

    def results(self) -> Any:
        path = disk.new_path()
        self.run(str(path))
        return pickle.loads(path.read_bytes())


_READER = "jax-0.8.1"  # of xla-cpu-pjrt 0.0.1, the plugin that PyPI has


class _Native:
    """Runs a program with jaxexp-run, which writes its first line when it has the results."""

    def __init__(self, program: Program) -> None:
        self.artifact, self.arguments = disk.new_path(), disk.new_path().with_suffix(".npz")
        exported = jaxexp.export(program.fresh())(*program.specs)
        self.artifact.write_bytes(exported.serialize(compatibility=_READER))
        np.savez(self.arguments, *map(np.asarray, jax.tree.leaves(program.args)))
        self.more: tuple[str, ...] = ()

    def precompiled(self) -> _Native:
        """The same with its code in a file."""
        other = copy.copy(self)
        file = str(disk.new_path())
        subprocess.run([*self._command(), "--save-executable", file], check=True, env=self._environment())
        other.more = ("--executables", file)
        return other

    def run(self) -> float:
        took, _ = until_first_line(self._command(), self._environment())
        return took

    def _command(self) -> list[str]:
        return [*without_python.COMMAND, str(self.artifact), str(self.arguments), *self.more]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "XLA_FLAGS": ""}


def _native_contenders(program: Program) -> dict[str, Reading]:
    if not without_python.IS_THERE:
        return {}
    compiling = _Native(program)
    return {"C++": Reading(compiling.run), "C++, executables": Reading(compiling.precompiled().run)}


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    arguments, artifact, cache = disk.new_path(), disk.new_path(), disk.new_path()
    arguments.write_bytes(pickle.dumps(jax.tree.map(np.asarray, program.args)))
    artifact.write_bytes(program.artifact(oracle))
    ours = _Process(subject.__name__, str(artifact), arguments)
    warm, theirs_warm = (
        _Process(library.__name__, str(artifact), arguments, **compilation_cache(cache))
        for library in (subject, oracle)
    )
    for process in (warm, theirs_warm):
        process.run()
    precompiled = _Process("executables", str(artifact), arguments)
    _precompile(artifact, arguments, precompiled.environment)
    code = _Process("code", str(artifact), arguments)

    def wrong() -> list[str]:
        expected = jax.device_get(program.fresh()(*program.args))
        checked = {"": ours, "executables": precompiled, CACHED_ORACLE: theirs_warm, JAXS_CODE: code}
        return [
            f"{name} {difference}"
            for name, process in checked.items()
            for difference in result_differences(process.results(), expected)
        ]

    def reading(process: _Process) -> Reading:
        return Reading(process.run)

    return Trial(
        subject=reading(ours),
        oracle=reading(_Process(oracle.__name__, str(artifact), arguments)),
        wrong=wrong,
        beside={
            "live": reading(_Process("live", program.function.__name__, arguments)),
            "warm cache": reading(warm),
            CACHED_ORACLE: reading(theirs_warm),
            "executables": reading(precompiled),
            JAXS_CODE: reading(code),
            "no function": reading(_Process("nothing", "", arguments)),
            **_native_contenders(program),
        },
    )


# Code is compiled in a process like those that use it: flags and devices are among its conditions.
_PRECOMPILE = """
import pickle, sys
import jaxexp
with open(sys.argv[2], "rb") as file:
    args = pickle.load(file)
jaxexp.load(sys.argv[1]).precompile(args, into=sys.argv[1] + ".exe")
import jax, jax.export
from jax.experimental.serialize_executable import serialize
with open(sys.argv[1], "rb") as file:
    compiled = jax.jit(jax.export.deserialize(file.read()).call).lower(*args).compile()
with open(sys.argv[1] + ".code", "wb") as file:
    pickle.dump(serialize(compiled), file)
"""


def _precompile(artifact: Path, arguments: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", _PRECOMPILE, str(artifact), str(arguments)]
    subprocess.run(command, check=True, cwd=disk.ROOT, env=environment, capture_output=True)


QUESTION = Question(
    "cold start",
    "From the start of a process to the first result: Python, `import jax`, reading the artifact, compiling, running. "
    "A new process for each sample; its files are in the page cache.",
    _trial,
    beside={
        "live": "the same with the function's own code, under `jax.jit`",
        "warm cache": "the subject with JAX's persistent compilation cache, already filled",
        CACHED_ORACLE: "`jax.export` with the same cache",
        "executables": "the subject with the compiled function in a file (`load(..., executables=)`)",
        JAXS_CODE: "code that `jax.experimental.serialize_executable` wrote, without the function: it fits one version "
        "of JAX and one kind of machine",
        "no function": "JAX puts the arguments on the device; every library waits for this",
        "C++": "`jaxexp-run`, which compiles; only if `$JAXEXP_RUN` names it and `$JAXEXP_PJRT_PLUGIN` names a plugin",
        "C++, executables": "`jaxexp-run` with the compiled function in a file",
    },
    applies=lambda case: case.family == "model",
    patience=8,
    quick=False,
)
