"""How long does it take to write a function to a file?"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from bench import disk, floors
from bench.agree import exported_differences
from bench.cases import Case
from bench.measure import Rival
from bench.program import Program
from bench.question import Question, Trial, single


def _write(exported: Any, path: Path) -> None:
    with open(path, "wb") as file:
        file.write(exported.serialize())


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    artifact = program.artifact(oracle)
    ours, theirs = subject.deserialize(artifact), oracle.deserialize(artifact)
    saved = bytes(ours.serialize())
    path = disk.new_path()

    def prepare() -> Path:
        disk.sync(path)
        return path

    def save(path: Path) -> None:
        if hasattr(ours, "save"):
            ours.save(path)
        else:
            _write(ours, path)

    def wrong() -> list[str]:
        save(prepare())
        return exported_differences(oracle.deserialize(path.read_bytes()), theirs, module=True)

    return Trial(
        subject=Rival(save, prepare=prepare),
        oracle=Rival(lambda path: _write(theirs, path), prepare=prepare),
        wrong=wrong,
        beside={"write(2)": Rival(lambda path: floors.write(path, saved), prepare=prepare)},
    )


QUESTION = Question(
    "save",
    "`Exported.save`, against `serialize` of `jax.export` and writing the result. Both write a new file and leave it "
    "in the page cache.",
    _trial,
    beside={"write(2)": "open, write the subject's bytes, and close"},
    applies=single,
    peak=True,
)
