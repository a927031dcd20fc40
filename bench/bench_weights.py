"""What do large arrays cost, inside of the module and outside of it?"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from bench import disk
from bench.agree import result_differences
from bench.cases import Case
from bench.chain import Chain, chain, params_of
from bench.measure import Reading, Rival
from bench.program import Program
from bench.question import Question, Trial

_BY_HAND = "arguments"
_TINY = 64  # the width of a function that a new process calls first


def _exported(library: ModuleType, program: Program, order: int) -> Any:
    """Exported with its VJPs, as `save` needs them."""
    options = {} if library is jax.export else {"weights": params_of(program)}
    exported = found = library.export(program.fresh(), **options)(*program.specs)
    for _ in range(order):
        found = found.vjp()
    return exported


def _by_hand(program: Program, order: int) -> Any:
    """What a careful user of jax.export does: the weights are an argument."""
    jitted = jax.jit(lambda params, x: Chain.apply(params, x))
    exported = found = jax.export.export(jitted)(params_of(program), *program.specs)
    for _ in range(order):
        found = found.vjp()
    return exported


def _write(exported: Any, path: Path, order: int, params: dict[str, Any] | None = None) -> None:
    if hasattr(exported, "save"):
        exported.save(path, vjp_order=order)
        return
    path.write_bytes(exported.serialize(vjp_order=order))
    if params is not None:
        arrays = {name: np.asarray(array) for name, array in params.items()}
        safetensors.numpy.save_file(arrays, path.with_suffix(".safetensors"))


def _export(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    order = case.vjp_order

    def wrong() -> list[str]:
        found = _exported(subject, program, order).call(*program.args)
        return result_differences(found, program.function(*program.args))

    return Trial(
        subject=Rival(lambda: _exported(subject, program, order)),
        oracle=Rival(lambda: _exported(oracle, program, order)),
        wrong=wrong,
        beside={_BY_HAND: Rival(lambda: _by_hand(program, order))},
    )


@dataclasses.dataclass(frozen=True)
class _Files:
    """What each rival wrote, in a folder of its own."""

    ours: Path
    theirs: Path
    by_hand: Path

    @classmethod
    def written(cls, program: Program, subject: ModuleType, oracle: ModuleType, order: int) -> _Files:
        files = cls(*(disk.new_path().with_suffix(".jaxexp") for _ in range(3)))
        _write(_exported(subject, program, order), files.ours, order)
        _write(_exported(oracle, program, order), files.theirs, order)
        _write(_by_hand(program, order), files.by_hand, order, params_of(program))
        return files


def _save(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    order, params = case.vjp_order, params_of(program)
    ours, theirs = (_exported(library, program, order) for library in (subject, oracle))
    by_hand = _by_hand(program, order)

    def rival(exported: Any, arrays: Any = None) -> Rival:
        path = disk.new_path().with_suffix(".jaxexp")

        def prepare() -> Path:
            disk.sync(path)
            disk.sync(path.with_suffix(".safetensors"))
            return path

        return Rival(lambda path: _write(exported, path, order, arrays), prepare=prepare)

    return Trial(
        subject=rival(ours),
        oracle=rival(theirs),
        wrong=lambda: _differences(_Files.written(program, subject, oracle, order), program, subject),
        beside={_BY_HAND: rival(by_hand, params)},
    )


def _differences(files: _Files, program: Program, subject: ModuleType) -> list[str]:
    return result_differences(subject.load(files.ours).call(*program.args), program.function(*program.args))


# What a new process runs: who reads, the file, and the order of VJPs. It has called a small function before, so that
# code that is loaded late is not counted.
_CHILD = """
import json, sys, time
import jax, numpy as np
from pathlib import Path
reader, tiny, path, order = json.loads(sys.argv[1])
def anonymous():
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)
def function(path):
    path = Path(path)
    if reader == "arguments":
        import safetensors.flax
        exported = jax.export.deserialize(bytearray(path.read_bytes()))
        params = safetensors.flax.load_file(path.with_suffix(".safetensors"))
        return lambda x: exported.call(params, x)
    if reader == "jax.export":
        return jax.export.deserialize(bytearray(path.read_bytes())).call
    import jaxexp
    return jaxexp.load(path).call
def use(path, width):
    call, x = function(path), np.ones((8, width), np.float32)
    y = jax.block_until_ready(call(x))
    if order:
        jax.block_until_ready(jax.grad(lambda x: call(x).sum())(x))
    return y
import jax.export
use(tiny, %d)
before, start = anonymous(), time.perf_counter()
y = use(path, %d)
print(json.dumps([time.perf_counter() - start, anonymous() - before]))
"""


def _in_new_process(reader: str, tiny: Path, path: Path, order: int, width: int, number: int) -> float:
    arguments = json.dumps([reader, str(tiny), str(path), order])
    child = subprocess.run(
        [sys.executable, "-c", _CHILD % (_TINY, width), arguments],
        cwd=disk.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(f"{reader} cannot be measured: {child.stderr.strip().splitlines()[-1:]}")
    return float(json.loads(child.stdout.splitlines()[-1])[number])


def _load(case: Case, program: Program, subject: ModuleType, oracle: ModuleType, *, number: int) -> Trial:
    order = case.vjp_order
    files = _Files.written(program, subject, oracle, order)
    tiny = _Files.written(chain(2, _TINY), subject, oracle, order)
    width = program.specs[0].shape[1]

    def reading(reader: str, which: Callable[[_Files], Path]) -> Reading:
        return Reading(lambda: _in_new_process(reader, which(tiny), which(files), order, width, number))

    return Trial(
        subject=reading("jaxexp", lambda f: f.ours),
        oracle=reading("jax.export", lambda f: f.theirs),
        wrong=lambda: _differences(files, program, subject),
        beside={_BY_HAND: reading("arguments", lambda f: f.by_hand)},
    )


def _disk(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    files = _Files.written(program, subject, oracle, case.vjp_order)

    def size(path: Path) -> Reading:
        return Reading(lambda: float(sum(file.stat().st_size for file in path.parent.iterdir())))

    weights = float(sum(array.nbytes for array in params_of(program).values()))
    return Trial(
        subject=size(files.ours),
        oracle=size(files.theirs),
        wrong=lambda: _differences(files, program, subject),
        beside={_BY_HAND: size(files.by_hand), "weights": Reading(lambda: weights)},
    )


def _call(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    x = jnp.asarray(program.args[0])
    ours, embedded = (_exported(library, program, 0).call for library in (subject, oracle))
    inside = subject.export(program.fresh())(*program.specs).call
    live = program.fresh()
    dispatch = jax.jit(lambda x: x)

    def wrong() -> list[str]:
        return result_differences(ours(x), live(x))

    return Trial(
        subject=Rival(lambda: ours(x), jax.block_until_ready),
        oracle=Rival(lambda: embedded(x), jax.block_until_ready),
        wrong=wrong,
        beside={
            "embedded": Rival(lambda: inside(x), jax.block_until_ready),
            "dispatch": Rival(lambda: dispatch(x), jax.block_until_ready),
        },
    )


def _of_weights(case: Case) -> bool:
    return case.family == "weights"


_BESIDE = {_BY_HAND: "`jax.export`, with the weights as an argument, and safetensors for their file"}

QUESTIONS = (
    Question(
        "export weights",
        "`export` of a function that closes over weights, with its VJPs: `weights=params`, against `jax.export`, which "
        "has them in the module.",
        _export,
        beside=_BESIDE,
        applies=_of_weights,
        peak=True,
    ),
    Question(
        "save weights", "Writing what was exported to files.", _save, beside=_BESIDE, applies=_of_weights, peak=True
    ),
    Question(
        "load weights, first call",
        "From files to the result of a call, and with VJPs to a gradient by the input; each sample is a new process.",
        partial(_load, number=0),
        beside=_BESIDE,
        applies=_of_weights,
        quick=False,
    ),
    Question(
        "anonymous memory of that",
        "How much anonymous memory the process has more afterwards: pages of mapped files are not counted.",
        partial(_load, number=1),
        beside=_BESIDE,
        applies=_of_weights,
        unit="byte",
        quick=False,
    ),
    Question(
        "disk for weights",
        "The size of the files.",
        _disk,
        beside={**_BESIDE, "weights": "the bytes of the arrays"},
        applies=_of_weights,
        unit="byte",
    ),
    Question(
        "call with weights",
        "A call that is compiled already.",
        _call,
        beside={
            "embedded": "the same function, exported by the subject without `weights=`",
            "dispatch": "`jax.jit` of a function that returns its argument",
        },
        applies=lambda case: case.family == "calls with weights",
        quick=False,
    ),
)
