"""How long does the VJP take the second time?"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from bench.agree import exported_differences
from bench.cases import Case
from bench.measure import Rival
from bench.program import Program
from bench.question import Question, Trial


def _again(run: Callable[[Any], Any], program: Program, subject: ModuleType, oracle: ModuleType) -> dict[str, Rival]:
    def new(library: ModuleType) -> Any:
        return library.export(program.fresh())(*program.specs)

    ours, theirs = new(subject), new(oracle)
    run(ours)
    run(theirs)
    return {
        "subject": Rival(lambda: run(ours)),
        "oracle": Rival(lambda: run(theirs)),
        "first time": Rival(run, prepare=lambda: new(subject)),
    }


def _differences(order: int, program: Program, subject: ModuleType, oracle: ModuleType) -> list[str]:
    """Each library exports its own VJPs, so the modules may name different source lines."""
    ours, theirs = (library.export(program.fresh())(*program.specs) for library in (subject, oracle))
    rewritten = oracle.deserialize(bytes(ours.serialize(vjp_order=order)))
    return exported_differences(ours, theirs, module=False, vjp_order=order) or exported_differences(
        rewritten, theirs, module=False, vjp_order=order
    )


def _vjp_trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    rivals = _again(lambda exported: exported.vjp(), program, subject, oracle)
    return Trial(
        subject=rivals["subject"],
        oracle=rivals["oracle"],
        wrong=lambda: _differences(1, program, subject, oracle),
        beside={"first time": rivals["first time"]},
    )


def _serialize_trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    order = case.vjp_order
    rivals = _again(lambda exported: exported.serialize(vjp_order=order), program, subject, oracle)
    return Trial(
        subject=rivals["subject"],
        oracle=rivals["oracle"],
        wrong=lambda: _differences(order, program, subject, oracle),
        beside={"first time": rivals["first time"]},
    )


QUESTIONS = (
    Question(
        "vjp again",
        "The second call of `Exported.vjp()` of a function that was exported in this process.",
        _vjp_trial,
        beside={"first time": "the subject's first call. Each sample has a new export, which is not timed"},
        applies=lambda case: (
            (case.family == "VJP" and case.vjp_order == 1)
            or case.name == "tiny"
            or (case.family == "parameters" and case.size <= 2000)
        ),
    ),
    Question(
        "serialize VJPs again",
        "The second call of `serialize(vjp_order=k)` of a function that was exported in this process.",
        _serialize_trial,
        beside={"first time": "the subject's first call. Each sample has a new export, which is not timed"},
        applies=lambda case: case.family == "VJP" and case.vjp_order > 0,
    ),
)
