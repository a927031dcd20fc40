"""How long do `serialize` and `deserialize` take the first time? Each sample is one run in a new process."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from bench import bench_deserialize, disk, floors
from bench.agree import exported_differences
from bench.cases import CASES, Case
from bench.measure import Reading, put_together
from bench.processes import json_of
from bench.program import Program
from bench.question import OWN_QUESTIONS, Question, Trial


def _is_asked(case: Case) -> bool:
    return case.family not in ("many", *OWN_QUESTIONS)


# Ways to make what is timed. Each takes a library, a case and its artifact, so that a new process can run it by name.


def writing(library: Any, case: Case, artifact: bytes) -> Callable[[], object]:
    return partial(_exported(library, case).serialize, vjp_order=case.vjp_order)


def _exported(library: Any, case: Case) -> Any:
    program = case.build()
    return _with_vjps(library, library.export(program.fresh())(*program.specs), case.vjp_order)


def _with_vjps(library: Any, exported: Any, order: int) -> Any:
    """The function with its VJPs made, so that `serialize` lowers none."""
    if order == 0:
        return exported
    vjp = _with_vjps(library, exported.vjp(), order - 1)
    return dataclasses.replace(exported, _get_vjp=lambda _: vjp) if library is jax.export else exported


def reading(library: Any, case: Case, artifact: bytes) -> Callable[[], object]:
    return partial(bench_deserialize.looked_at, library.deserialize, artifact)


def opening(library: Any, case: Case, artifact: bytes) -> Callable[[], object]:
    return partial(library.deserialize, artifact)


def flattening(library: Any, case: Case, artifact: bytes) -> Callable[[], object]:
    exported = library.deserialize(artifact)
    return lambda: [tree.__getstate__() for tree in (exported.in_tree, exported.out_tree)]


def copying(library: Any, case: Case, artifact: bytes) -> Callable[[], object]:
    """With NumPy, which takes large pages where the system gives some, and beside the same memory as `writing`."""
    return np.frombuffer(_exported(library, case).mlir_module_serialized, np.uint8).copy


def building(library: Any, case: Case, artifact: bytes) -> Callable[[], object]:
    return floors.building(library.deserialize(artifact))


# In new processes.

_CHILD = """
import json, sys
from bench import bench_first
print(json.dumps(bench_first.seconds(*json.loads(sys.argv[1]))))
"""


def seconds(way: str, library_name: str, case_name: str, path: str) -> float:
    """One run, after one of a function with other types, shapes and trees, so that code which is loaded late does not
    count; nor does what `make` leaves to the allocator.
    """
    make, library = globals()[way], importlib.import_module(library_name)
    (case,) = (case for case in CASES if case.name == case_name)
    unlike = Case("unlike", _unlike, vjp_order=case.vjp_order)
    make(library, unlike, _unlike().artifact(jax.export, case.vjp_order))()
    run = make(library, case, Path(path).read_bytes())
    put_together()
    gc.disable()
    start = time.perf_counter()
    kept = run()
    took = time.perf_counter() - start
    del kept
    return took


def _unlike() -> Program:
    x = jnp.ones(7, np.float16)
    return Program(lambda pair: {"z": pair[0] * pair[1]}, ([jax.ShapeDtypeStruct(x.shape, x.dtype)] * 2,), ([x, x],))


def _fresh(case: Case, path: Path, way: Callable[..., object], library: ModuleType) -> Reading:
    parameters = [way.__name__, library.__name__, case.name, str(path)]
    return Reading(lambda: float(json_of(_CHILD, parameters)))


# Trials.


def _file(case: Case, program: Program, oracle: ModuleType) -> Path:
    path = disk.new_path()
    path.write_bytes(program.artifact(oracle, case.vjp_order))
    return path


def _write_trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    path, order = _file(case, program, oracle), case.vjp_order
    sample = partial(_fresh, case, path)

    def wrong() -> list[str]:
        artifact = path.read_bytes()
        rewritten = bytearray(subject.deserialize(artifact).serialize(vjp_order=order))
        return exported_differences(
            oracle.deserialize(rewritten), oracle.deserialize(artifact), module=True, vjp_order=order
        )

    return Trial(
        subject=sample(writing, subject),
        oracle=sample(writing, oracle),
        wrong=wrong,
        beside={"trees": sample(flattening, oracle), "memcpy": sample(copying, oracle)},
    )


def _read_trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    path = _file(case, program, oracle)
    sample = partial(_fresh, case, path)

    def wrong() -> list[str]:
        exported = oracle.deserialize(path.read_bytes())
        found = [] if floors.same_objects(floors.building(exported)(), exported) else ["the floor"]
        return found + bench_deserialize.trial(case, program, subject, oracle).wrong()

    return Trial(
        subject=sample(reading, subject),
        oracle=sample(reading, oracle),
        wrong=wrong,
        beside={"opened": sample(opening, subject), "objects": sample(building, oracle)},
    )


_NEW = (
    "Each sample is the only run in a new process, after a warm-up with one other function, whose types, shapes and "
    "trees occur in no case. An allocation of 64 KiB before the run makes the C library merge freed blocks."
)
QUESTIONS = (
    Question(
        "serialize, first time",
        f"`Exported.serialize` of a function that was just exported. The VJPs of the case were made before. {_NEW}",
        _write_trial,
        beside={
            "trees": "only JAX's own description of both trees, `PyTreeDef.__getstate__`",
            "memcpy": "one copy of the module into new memory, by NumPy",
        },
        applies=_is_asked,
        patience=2,
        quick=False,
    ),
    Question(
        "deserialize, first time",
        f"`deserialize` of `bytes` that `jax.export` wrote, and reading all fields of the result. {_NEW}",
        _read_trial,
        beside={
            "opened": "the subject, without reading the fields",
            "objects": "building the same Python objects, equal ones once, from parts in memory, without any parsing",
        },
        applies=_is_asked,
        patience=2,
        quick=False,
    ),
)
