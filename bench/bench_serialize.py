"""How long does `Exported.serialize(vjp_order=k)` take? Both libraries hold the same artifact, VJPs included."""

from __future__ import annotations

from types import ModuleType

from bench.agree import exported_differences
from bench.cases import Case, Program
from bench.measure import Rival
from bench.question import Question, Trial


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    artifact = oracle.export(program.fresh())(*program.specs).serialize(vjp_order=case.vjp_order)
    ours, theirs = subject.deserialize(artifact), oracle.deserialize(artifact)
    module = memoryview(bytes(theirs.mlir_module_serialized))

    def wrong() -> list[str]:
        rewritten = oracle.deserialize(bytearray(ours.serialize(vjp_order=case.vjp_order)))
        return exported_differences(rewritten, theirs, module=True, vjp_order=case.vjp_order)

    return Trial(
        subject=Rival(lambda: ours.serialize(vjp_order=case.vjp_order)),
        oracle=Rival(lambda: theirs.serialize(vjp_order=case.vjp_order)),
        floor=Rival(lambda: bytearray(module)),
        wrong=wrong,
    )


QUESTION = Question("serialize", "one memcpy of the module", _trial)
