"""How many bytes does an artifact have besides its module?"""

from __future__ import annotations

from types import ModuleType

from bench.agree import exported_differences
from bench.cases import Case
from bench.measure import Reading
from bench.program import Program
from bench.question import Question, Trial, single


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    artifact = program.artifact(oracle)
    theirs = oracle.deserialize(artifact)
    module = len(theirs.mlir_module_serialized)
    rewritten = bytes(subject.deserialize(artifact).serialize())

    def wrong() -> list[str]:
        return exported_differences(oracle.deserialize(rewritten), theirs, module=True)

    return Trial(
        subject=Reading(lambda: len(rewritten) - module),
        oracle=Reading(lambda: len(artifact) - module),
        wrong=wrong,
    )


QUESTION = Question(
    "metadata size",
    "The length of the serialized bytes, without the module inside.",
    _trial,
    applies=single,
    unit="byte",
)
