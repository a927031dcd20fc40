"""How long does it take to open an archive of many members, and to load one? Each sample is a new process."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.export

from bench.agree import exported_differences
from bench.cases import Case
from bench.measure import Reading
from bench.members import Members, name_of
from bench.processes import json_of
from bench.program import Program
from bench.question import Question, Trial


def from_archive(path: Path, name: str) -> Any:
    import jaxexp

    with jaxexp.Archive.open(path) as archive:
        exported = archive[name].load()
        vars(exported)
        return exported


def from_zip(path: Path, name: str) -> Any:
    with zipfile.ZipFile(path) as archive:
        return jax.export.deserialize(archive.read(name))


_CHILD = """
import json, sys
from bench import bench_member
print(json.dumps(bench_member.seconds(*json.loads(sys.argv[1]))))
"""


def seconds(way: str, path: str, name: str) -> float:
    import jaxexp

    jaxexp.Archive, jaxexp.load  # noqa: B018  (jaxexp imports its own code when it is asked for a name)
    start = time.perf_counter()
    kept = globals()[way](Path(path), name)
    took = time.perf_counter() - start
    del kept
    return took


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    assert isinstance(program, Members)
    name = name_of(program.count // 2)
    archive, zipped = program.archive(subject), program.zipped(subject)

    def sample(way: Callable[..., Any], path: Path) -> Reading:
        return Reading(lambda: float(json_of(_CHILD, [way.__name__, str(path), name])))

    return Trial(
        subject=sample(from_archive, archive),
        oracle=sample(from_zip, zipped),
        wrong=lambda: exported_differences(from_archive(archive, name), from_zip(zipped, name), module=True),
    )


QUESTION = Question(
    "load one member",
    "From the path of an archive to one function, with all fields read, in a new process for each sample: opening it "
    "and `handle.load()`, against `zipfile.ZipFile` and `jax.export.deserialize`. Imports come before.",
    _trial,
    applies=lambda case: case.family == "archive",
    patience=4,
    quick=False,
)
