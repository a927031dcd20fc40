"""How long does `deserialize` take? Both libraries read the same bytes, those that jax.export wrote."""

from __future__ import annotations

from types import ModuleType

from bench.agree import exported_differences
from bench.cases import Case, Program
from bench.measure import Rival
from bench.question import Question, Trial


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    artifact = oracle.export(program.fresh())(*program.specs).serialize(vjp_order=case.vjp_order)
    module = memoryview(bytes(oracle.deserialize(artifact).mlir_module_serialized))

    def wrong() -> list[str]:
        ours, theirs = subject.deserialize(artifact), oracle.deserialize(artifact)
        return exported_differences(ours, theirs, module=True, vjp_order=case.vjp_order)

    return Trial(
        subject=Rival(lambda: subject.deserialize(artifact)),
        oracle=Rival(lambda: oracle.deserialize(artifact)),
        floor=Rival(lambda: bytearray(module)),
        wrong=wrong,
    )


QUESTION = Question("deserialize", "one memcpy of the module", _trial)
