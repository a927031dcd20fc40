"""How long does `Exported.serialize(vjp_order=k)` take? Both libraries hold the same artifact, VJPs included."""

from __future__ import annotations

from types import ModuleType

from bench import floors
from bench.agree import exported_differences
from bench.cases import Case
from bench.measure import Rival, in_a_row
from bench.program import Program
from bench.question import Question, Trial


def trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    order = case.vjp_order
    artifacts = [part.artifact(oracle, order) for part in program.parts]
    ours, theirs = [subject.deserialize(a) for a in artifacts], [oracle.deserialize(a) for a in artifacts]
    modules = [bytes(exported.mlir_module_serialized) for exported in theirs]

    def wrong() -> list[str]:
        found = []
        for our, their in zip(ours, theirs, strict=True):
            rewritten = oracle.deserialize(bytearray(our.serialize(vjp_order=order)))
            found += exported_differences(rewritten, their, module=True, vjp_order=order)
        return found

    return Trial(
        subject=Rival(in_a_row([lambda e=e: e.serialize(vjp_order=order) for e in ours])),
        oracle=Rival(in_a_row([lambda e=e: e.serialize(vjp_order=order) for e in theirs])),
        wrong=wrong,
        beside={"memcpy": Rival(floors.memcpy(modules))},
    )


QUESTION = Question(
    "serialize again",
    "`Exported.serialize` of a loaded function, again and again, so jaxexp has kept the bytes of its trees.",
    trial,
    beside={"memcpy": "one copy of the module into new memory"},
    peak=True,
)
