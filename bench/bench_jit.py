"""How long does `jax.jit(exported.call)` take, once it is compiled?"""

from __future__ import annotations

from types import ModuleType

import jax

from bench.agree import result_differences
from bench.cases import Case, Program
from bench.measure import Rival
from bench.question import Question, Trial, runnable


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    live, artifact = program.fresh(), program.artifact(oracle)
    ours, theirs = (jax.jit(library.deserialize(artifact).call) for library in (subject, oracle))

    def wrong() -> list[str]:
        return result_differences(ours(*program.args), live(*program.args))

    return Trial(
        subject=Rival(lambda: ours(*program.args), jax.block_until_ready),
        oracle=Rival(lambda: theirs(*program.args), jax.block_until_ready),
        wrong=wrong,
        beside={"jit": Rival(lambda: live(*program.args), jax.block_until_ready)},
    )


QUESTION = Question(
    "jit call",
    "`jax.jit(exported.call)` of a loaded function, compiled before, until its results are ready.",
    _trial,
    beside={"jit": "the live function under `jax.jit`"},
    applies=runnable,
)
