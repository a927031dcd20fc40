"""How long does a call of a loaded function take once it is compiled: eagerly, and under `jax.jit`?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import jax

from bench.agree import result_differences
from bench.cases import Case
from bench.measure import Rival
from bench.program import Program
from bench.question import Question, Trial, runnable

_BESIDE = {"jit": "the live function under `jax.jit`"}


def _trial(
    case: Case,
    program: Program,
    subject: ModuleType,
    oracle: ModuleType,
    *,
    prepared: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Trial:
    live, artifact = program.fresh(), program.artifact(oracle)
    ours, theirs = (prepared(library.deserialize(artifact).call) for library in (subject, oracle))

    def wrong() -> list[str]:
        return result_differences(ours(*program.args), live(*program.args))

    return Trial(
        subject=Rival(lambda: ours(*program.args), jax.block_until_ready),
        oracle=Rival(lambda: theirs(*program.args), jax.block_until_ready),
        wrong=wrong,
        beside={"jit": Rival(lambda: live(*program.args), jax.block_until_ready)},
    )


QUESTIONS = (
    Question(
        "call",
        "An eager `Exported.call` of a loaded function, until the results are ready, without the first call.",
        partial(_trial, prepared=lambda call: call),
        beside=_BESIDE,
        applies=runnable,
    ),
    Question(
        "jit call",
        "`jax.jit(exported.call)` of a loaded function, compiled before, until the results are ready.",
        partial(_trial, prepared=jax.jit),
        beside=_BESIDE,
        applies=runnable,
    ),
)
