"""How long does an eager `Exported.call` take, of an artifact that was loaded and has been called before?"""

from __future__ import annotations

from types import ModuleType

import jax

from bench.agree import result_differences
from bench.cases import Case, Program
from bench.measure import Rival
from bench.question import Question, Trial


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    live = program.fresh()
    artifact = oracle.export(live)(*program.specs).serialize()
    ours, theirs = subject.deserialize(artifact), oracle.deserialize(artifact)

    def wrong() -> list[str]:
        return result_differences(ours.call(*program.args), live(*program.args))

    return Trial(
        subject=Rival(lambda: ours.call(*program.args), jax.block_until_ready),
        oracle=Rival(lambda: theirs.call(*program.args), jax.block_until_ready),
        floor=Rival(lambda: live(*program.args), jax.block_until_ready),
        wrong=wrong,
    )


QUESTION = Question("call", "the live function under jit", _trial)
