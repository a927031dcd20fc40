"""What do large arrays cost, inside of the module and outside of it?"""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from bench import disk, little_memory
from bench.agree import result_differences
from bench.cases import CASES, Case
from bench.chain import Chain, chain, params_of
from bench.measure import Reading, Rival
from bench.processes import alone, compilation_cache, json_of
from bench.program import Program
from bench.question import Question, Trial
from bench.results import ORACLE, SUBJECT

_BY_HAND, _CACHED, MAPPED = "arguments", "arguments, warm cache", "mapped arguments, warm cache"
_MOST_IN_A_MODULE = 2048  # MiB; jax.export writes no more, and a VJP has the arrays a second time
_TINY = 64  # the width of a function that a new process calls first


def exported_with_weights(library: ModuleType, program: Program, order: int) -> Any:
    """Exported with its VJPs, as `save` needs them."""
    options = {} if library is jax.export else {"weights": params_of(program)}
    exported = found = library.export(program.fresh(), **options)(*program.specs)
    for _ in range(order):
        found = found.vjp()
    return exported


def hand_written(program: Program, order: int) -> Any:
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


def _is_possible_inside(case: Case) -> bool:
    """Whether `jax.export` can write the weights into modules."""
    return int(case.size) * (case.vjp_order + 1) < _MOST_IN_A_MODULE


def _export(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    order = case.vjp_order

    def wrong() -> list[str]:
        found = exported_with_weights(subject, program, order).call(*program.args)
        return result_differences(found, program.function(*program.args))

    return Trial(
        subject=Rival(lambda: exported_with_weights(subject, program, order)),
        oracle=Rival(lambda: exported_with_weights(oracle, program, order)) if _is_possible_inside(case) else None,
        wrong=wrong,
        beside={_BY_HAND: Rival(lambda: hand_written(program, order))},
    )


@dataclasses.dataclass(frozen=True)
class _Files:
    """What each rival wrote, in a folder of its own."""

    ours: Path
    theirs: Path | None  # None where it cannot
    by_hand: Path

    @classmethod
    def written(cls, program: Program, subject: ModuleType, oracle: ModuleType | None, order: int) -> _Files:
        ours, theirs, by_hand = (disk.new_path().with_suffix(".jaxexp") for _ in range(3))
        _write(exported_with_weights(subject, program, order), ours, order)
        if oracle is not None:
            _write(exported_with_weights(oracle, program, order), theirs, order)
        _write(hand_written(program, order), by_hand, order, params_of(program))
        folder = by_hand.with_suffix(".arrays")
        folder.mkdir()
        for name, array in params_of(program).items():
            np.save(folder / name, np.asarray(array))
        return cls(ours, theirs if oracle is not None else None, by_hand)

    @classmethod
    def of(cls, case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> _Files:
        """The same for several questions about one program: a disk may not have room for all of them."""
        global _last
        known, files = _last
        if known() is not program:
            files = cls.written(program, subject, oracle if _is_possible_inside(case) else None, case.vjp_order)
            _last = weakref.ref(program), files
        return files


_last: tuple[Callable[[], Program | None], _Files] = (lambda: None), _Files(Path(), None, Path())


def _save(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    order, params = case.vjp_order, params_of(program)
    ours, by_hand = exported_with_weights(subject, program, order), hand_written(program, order)
    theirs = exported_with_weights(oracle, program, order) if _is_possible_inside(case) else None

    def rival(exported: Any, arrays: Any = None) -> Rival:
        path = disk.new_path().with_suffix(".jaxexp")

        def prepare() -> Path:
            disk.sync(path)
            disk.sync(path.with_suffix(".safetensors"))
            return path

        return Rival(lambda path: _write(exported, path, order, arrays), prepare=prepare)

    return Trial(
        subject=rival(ours),
        oracle=None if theirs is None else rival(theirs),
        wrong=lambda: _differences(_Files.of(case, program, subject, oracle), program, subject),
        beside={_BY_HAND: rival(by_hand, params)},
        alone={name: alone(save_once, name, case.name, str(disk.new_path())) for name in (SUBJECT, ORACLE, _BY_HAND)},
    )


def save_once(rival: str, case_name: str, path: str) -> None:
    (case,) = (case for case in CASES if case.name == case_name)
    program, order = case.build(), case.vjp_order
    if rival == _BY_HAND:
        _write(hand_written(program, order), Path(path), order, params_of(program))
    else:
        library = jax.export if rival == ORACLE else importlib.import_module("jaxexp")
        _write(exported_with_weights(library, program, order), Path(path), order)


def _differences(files: _Files, program: Program, subject: ModuleType) -> list[str]:
    """In results, and in gradients where there are VJPs."""
    loaded = subject.load(files.ours)
    found = result_differences(loaded.call(*program.args), program.function(*program.args))
    if loaded.has_vjp():
        ours, live = (jax.grad(lambda x, f=f: f(x).sum())(*program.args) for f in (loaded.call, program.function))
        found += result_differences(ours, live)
    return found


# What a new process runs: who reads, the file, and the order of VJPs. It has called a small function before, so that
# code that is loaded late is not counted.
_CHILD = """
import json, sys, time
import jax, numpy as np
from pathlib import Path
reader, tiny, path, order = json.loads(sys.argv[1])
def function(path, x):
    path = Path(path)
    if reader == "jaxexp":
        import jaxexp
        return jaxexp.load(path).call
    if reader != "executables":
        exported = jax.export.deserialize(bytearray(path.read_bytes()))
        if reader == "jax.export":
            return exported.call
        if reader == "mapped":
            files = path.with_suffix(".arrays").iterdir()
            params = {file.stem: jax.device_put(np.load(file, mmap_mode="r")) for file in files}
        else:
            import safetensors.flax
            params = safetensors.flax.load_file(path.with_suffix(".safetensors"))
        return lambda x: exported.call(params, x)
    import jaxexp
    code = path.with_suffix(".exe")
    if not code.exists():  # in a run that is not timed
        jaxexp.load(path).precompile((x,), into=code)
    return jaxexp.load(path, executables=code).call
def use(path, width):
    x = np.ones((8, width), np.float32)
    call = function(path, x)
    y = jax.block_until_ready(call(x))
    if order:
        jax.block_until_ready(jax.jit(jax.grad(lambda x: call(x).sum()))(x))
    return y
import jax.export
use(tiny, %d)
start = time.perf_counter()
y = use(path, %d)
print(time.perf_counter() - start)
"""


def _in_new_process(reader: str, tiny: Path, path: Path, order: int, width: int, cache: Path | None = None) -> float:
    program, environment = _CHILD % (_TINY, width), compilation_cache(cache) if cache else {}
    return float(json_of(program, [reader, str(tiny), str(path), order], **environment))


def _load(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    order = case.vjp_order
    files = _Files.of(case, program, subject, oracle)
    tiny = _Files.written(chain(2, _TINY), subject, oracle, order)
    width = program.specs[0].shape[1]

    def reading(reader: str, small: Path, large: Path, cache: Path | None = None) -> Reading:
        return Reading(lambda: _in_new_process(reader, small, large, order, width, cache))

    inside = None
    if tiny.theirs is not None and files.theirs is not None:
        inside = reading("jax.export", tiny.theirs, files.theirs)
    return Trial(
        subject=reading("jaxexp", tiny.ours, files.ours),
        oracle=inside,
        wrong=lambda: _differences(files, program, subject),
        beside={
            _BY_HAND: reading("arguments", tiny.by_hand, files.by_hand),
            _CACHED: reading("arguments", tiny.by_hand, files.by_hand, disk.new_path()),
            MAPPED: reading("mapped", tiny.by_hand, files.by_hand, disk.new_path()),
            "executables": reading("executables", tiny.ours, files.ours),
        },
    )


def _call(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    x = jnp.asarray(program.args[0])
    ours, embedded = (exported_with_weights(library, program, 0).call for library in (subject, oracle))
    inside = subject.export(program.fresh())(*program.specs).call
    live = program.fresh()
    dispatch = jax.jit(lambda x: x)
    params = params_of(program)
    by_hand = jax.jit(lambda params, x: type(program.function).apply(params, x))

    def wrong() -> list[str]:
        return result_differences(ours(x), live(x))

    return Trial(
        subject=Rival(lambda: ours(x), jax.block_until_ready),
        oracle=Rival(lambda: embedded(x), jax.block_until_ready),
        wrong=wrong,
        beside={
            "embedded": Rival(lambda: inside(x), jax.block_until_ready),
            "dispatch": Rival(lambda: dispatch(x), jax.block_until_ready),
            "jit": Rival(lambda: by_hand(params, x), jax.block_until_ready),
        },
    )


def _limited(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    layers = max(1, int(case.size) // 256)

    def round_trip() -> float:
        path = disk.new_path().with_suffix(".jaxexp")
        start = time.perf_counter()
        for mode in little_memory.MODES:
            arguments = [mode, str(path), str(layers), str(little_memory.SIDE)]
            # Without devices and threads that other questions need, which would count.
            env = {**os.environ, "XLA_FLAGS": ""}
            child = subprocess.run(
                [sys.executable, "-c", little_memory.PROGRAM, *arguments],
                cwd=disk.ROOT, env=env, capture_output=True, text=True,
            )  # fmt: skip
            if child.returncode:
                raise RuntimeError(f"{mode}: {child.stderr.strip().splitlines()[-1:]}")
        took = time.perf_counter() - start
        disk.sync(path.with_suffix(".safetensors"))
        return took

    return Trial(subject=Reading(round_trip), oracle=None, wrong=list)


def _of_weights(case: Case) -> bool:
    return case.family == "weights"


_BESIDE = {_BY_HAND: "`jax.export`, with the weights as an argument, and safetensors for their file"}
_BESIDE_LOADED = {
    **_BESIDE,
    _CACHED: "the same with JAX's persistent compilation cache, already filled",
    MAPPED: "the same, and the weights are arrays of NumPy in files of their own, which are mapped",
    "executables": "the subject with the compiled function in a file (`load(..., executables=)`)",
}

QUESTIONS = (
    Question(
        "export weights",
        "`export` of a function that closes over weights, with its VJPs: `weights=params`. `jax.export` has them "
        "in the module, and can write at most 2 GiB.",
        _export,
        beside=_BESIDE,
        applies=_of_weights,
        peak=True,
    ),
    Question(
        "save weights",
        "Writing the exported functions of `export weights` to files.",
        _save,
        beside=_BESIDE,
        applies=_of_weights,
        peak=True,
    ),
    Question(
        "load weights, first call",
        "From files to the result of a call, and with VJPs to a gradient with respect to the input; each sample is a "
        "new process.",
        _load,
        beside=_BESIDE_LOADED,
        applies=_of_weights,
        quick=False,
    ),
    Question(
        "call with weights",
        "A call that is already compiled.",
        _call,
        beside={
            "embedded": "the same function, exported by the subject without `weights=`",
            "dispatch": "`jax.jit` of a function that returns its argument",
            "jit": "`jax.jit` of a function of weights and argument: JAX's own time for that many arrays",
        },
        applies=lambda case: case.family == "calls with weights",
        quick=False,
    ),
    Question(
        "round trip in little memory",
        "Two new processes, each with at most twice the memory of the weights: one makes, exports and saves them, the "
        "other one loads, calls and differentiates.",
        _limited,
        applies=lambda case: case.family == "limited weights",
        quick=False,
    ),
)
