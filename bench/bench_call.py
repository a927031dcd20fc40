"""How long does an eager `Exported.call` take, of an artifact that was loaded and has been called before?"""

from __future__ import annotations

from types import ModuleType

import jax

from bench.agree import result_differences
from bench.cases import Case, Program
from bench.measure import Rival
from bench.question import Question, Trial, runnable


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    live, artifact = program.fresh(), program.artifact(oracle)
    ours, theirs = subject.deserialize(artifact), oracle.deserialize(artifact)

    def wrong() -> list[str]:
        return result_differences(ours.call(*program.args), live(*program.args))

    return Trial(
        subject=Rival(lambda: ours.call(*program.args), jax.block_until_ready),
        oracle=Rival(lambda: theirs.call(*program.args), jax.block_until_ready),
        wrong=wrong,
        beside={"jit": Rival(lambda: live(*program.args), jax.block_until_ready)},
    )


QUESTION = Question(
    "call",
    "An eager `Exported.call` of a loaded function that has been called before, until its results are ready.",
    _trial,
    beside={"jit": "the live function under `jax.jit`"},
    applies=runnable,
)
