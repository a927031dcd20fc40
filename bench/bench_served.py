"""How long do whole processes take to serve a model, with jaxexp and with other runtimes?"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

from bench import disk, without_python
from bench.bench_cold import CACHED_ORACLE
from bench.cases import Case
from bench.measure import Reading
from bench.processes import compilation_cache, seen, until_first_line
from bench.program import Program
from bench.question import Question, Trial
from bench.rivals import RIVALS

_SESSIONS = ("session", "session, executables")
_SECONDS = 0.3  # for a sample of calls


def _can_run_sessions() -> bool:
    from jaxexp.errors import RunError
    from jaxexp.runtime import find_plugin

    try:
        find_plugin("cpu")
    except RunError:
        return bool(without_python.PLUGIN)
    return True


def _environment() -> dict[str, str]:
    """One device, as most programs have, and no cache."""
    plugin = {"JAXEXP_PLUGIN": without_python.PLUGIN} if without_python.PLUGIN else {}
    quiet = {"XLA_FLAGS": "", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    return {**os.environ, **quiet, **plugin}


class _Server:
    """Serves a model in processes of its own: one that stays for calls, and a new one for each start."""

    def __init__(self, how: str, model: Path, cache: Path | None = None) -> None:
        self.how, self.model = how, model
        self.environment = _environment() | (compilation_cache(cache) if cache else {})
        self.child: subprocess.Popen[str] | None = None

    def command(self, task: str) -> list[str]:
        return [sys.executable, "-m", "bench.served", json.dumps([self.how, str(self.model), task])]

    def start(self) -> float:
        took, _ = until_first_line(self.command("result"), self.environment)
        return took

    def result(self) -> np.ndarray:
        self.start()
        return np.load(f"{self.model}.result.npy")

    def call(self, threads: int) -> float:
        if self.child is None:
            self.child = subprocess.Popen(
                seen(self.command("serve")),
                cwd=disk.ROOT,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self.child.stdout is not None
            self.child.stdout.readline()
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(json.dumps([threads, _SECONDS]) + "\n")
        self.child.stdin.flush()
        return float(self.child.stdout.readline())

    def stop(self) -> None:
        """Ends the process that stays, if there is one."""
        if self.child is not None:
            self.child.communicate()
            self.child = None

    __del__ = stop


class _Native:
    """The same with jaxexp-run, whose first line tells of results."""

    def __init__(self, model: Path, *more: str) -> None:
        self.model = model
        self.command = [*without_python.COMMAND, str(model), f"{model}.npy", *more]

    def start(self) -> float:
        took, _ = until_first_line(self.command, _environment())
        return took

    def stop(self) -> None:
        """Nothing stays."""

    def result(self) -> np.ndarray:
        file = f"{self.model}.result.npy"
        subprocess.run([*self.command, "--out", file], check=True, capture_output=True, env=_environment())
        return np.load(file)


def _prepare(how: str, model: Path) -> None:
    subprocess.run(_Server(how, model).command("prepare"), check=True, cwd=disk.ROOT, env=_environment())


def _served(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> dict[str, _Server | _Native]:
    """What can serve the model here, each with its files."""
    model = disk.new_path()
    model.write_bytes(program.artifact(oracle))
    np.save(f"{model}.npy", np.asarray(program.args[0]))
    servers: dict[str, _Server | _Native] = {
        name: _Server(name, model) for name in (subject.__name__, oracle.__name__, "executables")
    }
    servers[CACHED_ORACLE] = warm = _Server(oracle.__name__, model, disk.new_path())
    warm.start()  # fills the cache
    _prepare("executables", model)
    if _can_run_sessions():
        servers |= {name: _Server(name, model) for name in _SESSIONS}
        _prepare(_SESSIONS[-1], model)
    if without_python.IS_THERE:
        code = ("--save-executable", f"{model}.cpp")
        subprocess.run([*_Native(model).command, *code], check=True, capture_output=True, env=_environment())
        servers |= {"C++": _Native(model), "C++, executables": _Native(model, "--executables", f"{model}.cpp")}
        if importlib.util.find_spec("pypjrt"):
            servers["pypjrt"] = _Server("pypjrt", model)
            _prepare("pypjrt", model)
    for name, (suffix, write) in RIVALS.items():
        write(case.name.removeprefix("served "), Path(f"{model}{suffix}"))
        servers[name] = _Server(name, model)
    return servers


def _differences(servers: dict[str, _Server | _Native], program: Program) -> list[str]:
    """Those that do not compute what the function does, up to what other kernels round."""
    expected = np.asarray(jax.device_get(program.fresh()(*program.args)))
    return [
        f"result of {name}"
        for name, server in servers.items()
        if not np.allclose(server.result().reshape(expected.shape), expected, rtol=1e-3, atol=1e-4)
    ]


def _trial(
    case: Case,
    program: Program,
    subject: ModuleType,
    oracle: ModuleType,
    *,
    names: tuple[str, ...],
    reading: Callable[[_Server | _Native], float],
    hand_written: int = 0,
) -> Trial:
    """With the reading of each server that there is; with calls by hand, from that many threads."""
    servers = _served(case, program, subject, oracle)
    readings = {name: Reading(partial(reading, server), server.stop) for name, server in servers.items()}
    if hand_written and without_python.IS_THERE:
        model = servers["C++"].model
        for name, who in (("C++", "runtime"), ("PJRT by hand", "raw")):
            readings[name] = Reading(partial(without_python.seconds_of_a_call, who, model, hand_written))
    return Trial(
        subject=readings[subject.__name__],
        oracle=readings[oracle.__name__],
        wrong=lambda: _differences(servers, program),
        beside={name: readings[name] for name in names if name in readings},
    )


_OTHERS = {
    "ONNX Runtime": "an equal model written by hand; only if `onnx` and `onnxruntime` are installed",
    "AOTInductor": "an equal model, as PyTorch's `aoti_compile_and_package` compiles it; only if `torch` is installed",
    "pypjrt": "the same plugin with code that was compiled before, by pypjrt; only if it is installed, beside C++",
}
_COLD = {
    CACHED_ORACLE: "`jax.export` with JAX's persistent compilation cache, already filled",
    "executables": "the subject with the compiled function in a file (`load(..., executables=)`)",
    "session": "`jaxexp.runtime.Session`, without JAX; only if there is a plugin for it, such as that of `jaxexp[cpu]`",
    "session, executables": "the same with the compiled function in a file",
    "C++": "`jaxexp-run`; only if `$JAXEXP_RUN` names it and `$JAXEXP_PJRT_PLUGIN` names a plugin",
    "C++, executables": "the same with the compiled function in a file",
    **_OTHERS,
}
_CALLS = {
    "session": _COLD["session"],
    "C++": "`jaxexp::Function`, with the argument on the device; only where `jaxexp-run` is measured",
    "PJRT by hand": "the fewest calls of PJRT's C API that do the same",
    **_OTHERS,
}


def _question(threads: int) -> Question:
    caller = "one thread" if threads == 1 else f"{threads} threads at once"
    return Question(
        f"served, {threads} thread" + "s" * (threads > 1),
        f"A call by {caller} in a serving process, and reading its result: the time of all calls, divided by their "
        "number. Each runtime is in a process of its own, and uses as many threads inside as it likes.",
        partial(_trial, names=tuple(_CALLS), reading=lambda server: server.call(threads), hand_written=threads),
        beside=_CALLS,
        applies=_is_served,
        patience=4,
        quick=False,
    )


def _is_served(case: Case) -> bool:
    return case.family == "served"


QUESTIONS = (
    Question(
        "served, cold start",
        "From the start of a process to the first result of a served model with its weights. A new process for each "
        "sample; its files are in the page cache.",
        partial(_trial, names=tuple(_COLD), reading=lambda server: server.start()),
        beside=_COLD,
        applies=_is_served,
        patience=8,
        quick=False,
    ),
    *map(_question, (1, 2)),
)
