"""How long does it take to check 200 artifacts, as after an upgrade? Each sample is a new process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

from bench.cases import Case
from bench.measure import Reading
from bench.processes import json_of
from bench.program import Program
from bench.question import Question, Trial
from bench.recorded import Recorded

_RELATIVE, _ABSOLUTE = 1e-5, 1e-6  # what the loop compares with

# Ways to check a folder of artifacts. Each returns how many results agree.


def by_check(folder: Path) -> int:
    import jaxexp

    agree = 0
    for path in sorted(folder.glob("*.jaxexp")):
        report = jaxexp.check(path)
        agree += sum(result.verdict in ("equal", "close") for case in report.cases for result in case.results)
    return agree


def by_hand(folder: Path) -> int:
    """What a user of jax.export writes."""
    agree = 0
    for path in sorted(folder.glob("*.jax")):
        exported = jax.export.deserialize(bytearray(path.read_bytes()))
        with np.load(path.with_suffix(".npz")) as file:
            arrays = [file[name] for name in file.files]
        args, kwargs = exported.in_tree.unflatten(arrays[: len(exported.in_avals)])
        results = jax.tree.leaves(exported.call(*args, **kwargs))
        for found, expected in zip(results, arrays[len(exported.in_avals) :], strict=True):
            agree += np.allclose(np.asarray(found), expected, _RELATIVE, _ABSOLUTE)
    return int(agree)


_CHILD = """
import json, sys
import jax.export
from bench import bench_upgrade
print(json.dumps(bench_upgrade.measured(*json.loads(sys.argv[1]))))
"""


def measured(way: str, folder: str) -> tuple[float, int]:
    """Seconds, and how many results agree."""
    start = time.perf_counter()
    agree = globals()[way](Path(folder))
    return time.perf_counter() - start, agree


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    assert isinstance(program, Recorded)
    folder = program.folder(subject, oracle)

    def run(way: Callable[[Path], int]) -> tuple[float, int]:
        # One device, as most programs have, and no cache: that of another release would not be used.
        environment = {"XLA_FLAGS": "", "JAX_ENABLE_COMPILATION_CACHE": "false"}
        seconds, agree = json_of(_CHILD, [way.__name__, str(folder)], **environment)
        return float(seconds), int(agree)

    def wrong() -> list[str]:
        results = program.count * len(jax.tree.leaves(jax.eval_shape(program.fresh(), *program.specs)))
        agree = {way.__name__: run(way)[1] for way in (by_check, by_hand)}
        return [f"{name}: {count} of {results} results agree" for name, count in agree.items() if count != results]

    return Trial(
        subject=Reading(lambda: run(by_check)[0]),
        oracle=Reading(lambda: run(by_hand)[0]),
        wrong=wrong,
    )


QUESTION = Question(
    "check after an upgrade",
    "Loading artifacts and checking a recorded call of each, with the first result of each compiled, in a new process "
    "for each sample: `jaxexp.check`, against a loop that reads each file with `jax.export.deserialize`, calls "
    "it with arguments from an `.npz` file, and compares the results by `numpy.allclose`. Imports come before, except "
    "those of jaxexp.",
    _trial,
    applies=lambda case: case.family == "recorded",
    patience=8,
)
