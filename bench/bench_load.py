"""How long does it take from a file to the signature, and how much new memory?"""

from __future__ import annotations

import mmap
from pathlib import Path
from types import ModuleType
from typing import Any

from bench import disk
from bench.agree import exported_differences
from bench.cases import CASES, Case
from bench.measure import Reading, Rival
from bench.processes import json_of
from bench.program import Program
from bench.question import Question, Trial, single
from bench.reader import reader


def signature(exported: Any) -> tuple[Any, ...]:
    return exported.in_tree, exported.in_avals, exported.out_tree, exported.out_avals


def _map(path: Path) -> None:
    with open(path, "rb") as file:
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _file(program: Program, subject: ModuleType, oracle: ModuleType) -> Path:
    path = disk.new_path()
    path.write_bytes(subject.deserialize(program.artifact(oracle)).serialize())
    return path


def _wrong(path: Path, program: Program, subject: ModuleType, oracle: ModuleType) -> list[str]:
    return exported_differences(reader(subject)(path), oracle.deserialize(program.artifact(oracle)), module=True)


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    path = _file(program, subject, oracle)
    ours, theirs = reader(subject), reader(oracle)
    return Trial(
        subject=Rival(lambda: signature(ours(path))),
        oracle=Rival(lambda: signature(theirs(path))),
        wrong=lambda: _wrong(path, program, subject, oracle),
        beside={"mmap": Rival(lambda: _map(path))},
    )


# What a new process runs. It loads a tiny artifact first, so that code that is loaded late is not counted.
_CHILD = """
import importlib, json, pathlib, sys
from bench.bench_load import signature
from bench.memory import peak_of
from bench.reader import reader
name, tiny, path = json.loads(sys.argv[1])
load = reader(importlib.import_module(name))
signature(load(pathlib.Path(tiny)))
def run():
    exported = load(pathlib.Path(path))
    return exported, signature(exported)
print(json.dumps(peak_of(run)))
"""


def _new_memory(library: ModuleType, tiny: Path, path: Path) -> float:
    peak = json_of(_CHILD, [library.__name__, str(tiny), str(path)])
    if peak is None:
        raise RuntimeError("new memory cannot be measured here")
    return float(peak)


def _memory_trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    path, tiny = _file(program, subject, oracle), _file(CASES[0].build(), subject, oracle)
    return Trial(
        subject=Reading(lambda: _new_memory(subject, tiny, path)),
        oracle=Reading(lambda: _new_memory(oracle, tiny, path)),
        wrong=lambda: _wrong(path, program, subject, oracle),
    )


QUESTIONS = (
    Question(
        "load",
        "From a path to the signature: `load`, against reading the file and `deserialize`. The file is "
        "the subject's, and in the page cache.",
        _trial,
        beside={"mmap": "open, mmap and close"},
        applies=single,
    ),
    Question(
        "load, new memory",
        "The peak memory of `load`, mapped pages included, in a new process for each sample.",
        _memory_trial,
        applies=lambda case: case.family == "constant",
        unit="byte",
        quick=False,
    ),
)
