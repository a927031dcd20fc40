"""How long does it take to read the program of an artifact back, into a function that JAX traces?"""

from __future__ import annotations

from types import ModuleType

import jax

from bench.agree import result_differences
from bench.cases import Case
from bench.measure import Rival
from bench.program import Program
from bench.question import Question, Trial


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    artifact = program.artifact(oracle)

    def ours() -> object:
        return jax.jit(subject.deserialize(artifact).raised()).trace(*program.specs)

    def theirs() -> object:
        exported = oracle.deserialize(artifact)
        return jax.jit(lambda *args: exported.call(*args)).lower(*program.specs)

    def wrong() -> list[str]:
        raised = jax.jit(subject.deserialize(artifact).raised())
        return result_differences(raised(*program.args), program.fresh()(*program.args))

    return Trial(
        subject=Rival(ours),
        oracle=Rival(theirs),
        wrong=wrong,
        beside={"live": Rival(lambda: program.fresh().trace(*program.specs))},
    )


QUESTION = Question(
    "read back",
    "`jax.jit(exported.raised()).trace(...)` of a function that was just read: the module is read back, and traced. "
    "jax.export does not read modules back: `jax.jit(exported.call).lower(...)` is measured instead.",
    _trial,
    beside={"live": "tracing the live function, without any module"},
    applies=lambda case: case.family == "module",
)
