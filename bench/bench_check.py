"""How long does a check of recorded calls take, beside the calls themselves?"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import jax
import numpy as np

from bench import disk
from bench.cases import Case
from bench.measure import Rival
from bench.program import Program
from bench.question import Question, Trial


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    arguments = jax.tree.map(np.asarray, program.args)
    path = disk.new_path().with_suffix(".jaxexp")
    subject.export(program.fresh())(*program.specs).save(path, cases=[arguments])
    recorded = subject.load(path)
    call = oracle.deserialize(program.artifact(oracle)).call

    def by_hand() -> Any:
        return jax.tree.map(np.asarray, call(*arguments))

    kept = disk.new_path().with_suffix(".npz")
    leaves, tree = jax.tree.flatten((arguments, by_hand()))
    np.savez(kept, *leaves)

    def with_numpy() -> None:
        with np.load(kept) as file:
            given, expected = tree.unflatten([file[name] for name in file.files])
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), jax.tree.map(np.asarray, call(*given)), expected)

    def wrong() -> list[str]:
        return [] if recorded.check().ok else ["verdict"]

    return Trial(
        subject=Rival(recorded.check),
        oracle=Rival(by_hand),
        wrong=wrong,
        beside={"with NumPy": Rival(with_numpy)},
    )


QUESTION = Question(
    "check",
    "`check()` of a loaded function with one recorded call, whose large arrays are in a file. `jax.export` makes "
    "the same call with arrays of NumPy, reads its results, and compares nothing.",
    _trial,
    beside={
        "with NumPy": "a check by hand with `jax.export`: arguments and results are read from an `.npz` file, and "
        "compared by `np.testing.assert_allclose`",
    },
    applies=lambda case: case.name == "tiny" or case.family == "model",
)
