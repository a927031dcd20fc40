"""How does time grow with size? Each sample is the first run in a new process; `bench/growth.py` fits the slopes."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from bench import disk
from bench.agree import exported_differences, result_differences
from bench.bench_deserialize import looked_at
from bench.cases import Case, built
from bench.measure import Reading
from bench.processes import json_of
from bench.program import Program
from bench.question import GROWN, Question, Trial

# Ways to make what is timed. Each takes a library, artifacts and the case, so that a new process can run it by name.


def writing(library: Any, artifacts: list[bytes], case: str, order: int) -> Callable[[], object]:
    loaded = [library.deserialize(artifact) for artifact in artifacts]
    for exported in loaded:
        looked_at(lambda exported: exported, exported)
    if library is not jax.export:
        from jaxexp._kernel.codec import binding

        binding.bind.cache_clear()  # with trees and avals that it read
        binding.bind()
    return lambda: [exported.serialize(vjp_order=order) for exported in loaded]


def reading(library: Any, artifacts: list[bytes], case: str, order: int) -> Callable[[], object]:
    return lambda: [looked_at(library.deserialize, artifact) for artifact in artifacts]


def calling(library: Any, artifacts: list[bytes], case: str, order: int) -> Callable[[], object]:
    (artifact,), args = artifacts, built(case).args
    exported = library.deserialize(artifact)
    return lambda: jax.block_until_ready(exported.call(*args))


_CHILD = """
import json, sys
from bench import bench_growth
print(json.dumps(bench_growth.seconds(*json.loads(sys.argv[1]))))
"""


def seconds(way: str, library_name: str, folder: str, case: str, order: int) -> float:
    library = importlib.import_module(library_name)
    library.deserialize  # noqa: B018  (jaxexp imports its own code when it is asked for a name)
    artifacts = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    run = globals()[way](library, artifacts, case, order)
    start = time.perf_counter()
    kept = run()
    took = time.perf_counter() - start
    del kept
    return took


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType, *, way: Any) -> Trial:
    folder = disk.new_path().parent
    for index, part in enumerate(program.parts):
        (folder / f"{index:05}").write_bytes(part.artifact(oracle, case.vjp_order))

    def sample(library: ModuleType) -> Reading:
        parameters = [way.__name__, library.__name__, str(folder), case.name, case.vjp_order]
        return Reading(lambda: float(json_of(_CHILD, parameters)))

    def wrong() -> list[str]:
        """Of the first function, which is the only one of most cases."""
        artifact = program.parts[0].artifact(oracle, case.vjp_order)
        ours, theirs = subject.deserialize(artifact), oracle.deserialize(artifact)
        if way is calling:
            return result_differences(ours.call(*program.args), theirs.call(*program.args))
        if way is writing:
            ours = oracle.deserialize(bytearray(ours.serialize(vjp_order=case.vjp_order)))
        return exported_differences(ours, theirs, module=True, vjp_order=case.vjp_order)

    return Trial(subject=sample(subject), oracle=sample(oracle), wrong=wrong)


def _question(name: str, asks: str, way: Callable[..., object], *families: str) -> Question:
    asks = f"{asks} Each sample is the first run in a new process."
    return Question(
        name, asks, partial(_trial, way=way), applies=lambda case: case.family in families, patience=2, quick=False
    )


QUESTIONS = (
    _question("grown, serialize", "`serialize` of functions that were read.", writing, *GROWN),
    _question("grown, deserialize", "`deserialize`, and reading all fields.", reading, *GROWN),
    _question("grown, first call", "The first call of a function that was read.", calling, "sizes"),
)
