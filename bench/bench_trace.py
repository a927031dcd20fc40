"""How long does it take to trace a call of a loaded function, as part of a larger program?"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax

from bench import floors
from bench.cases import Case
from bench.measure import Rival
from bench.program import Program
from bench.question import Question, Trial, single


def _tracing(exported: Any, program: Program) -> Callable[[], Any]:
    return lambda: jax.jit(lambda *args: exported.call(*args)).trace(*program.specs)


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    artifact = program.artifact(oracle)
    ours, theirs = (_tracing(library.deserialize(artifact), program) for library in (subject, oracle))

    def wrong() -> list[str]:
        found, expected = ours(), theirs()
        types = [[str(aval) for aval in traced.jaxpr.out_avals] for traced in (found, expected)]
        differences = [name for name in ("in_tree", "out_tree") if _differ(found, expected, name)]
        return differences + (["types of the results"] if types[0] != types[1] else [])

    return Trial(
        subject=Rival(ours),
        oracle=Rival(theirs),
        wrong=wrong,
        beside={
            "one bind": Rival(floors.binding(program, subject.deserialize(artifact))),
            "live": Rival(floors.tracing(program)),
        },
    )


def _differ(found: Any, expected: Any, name: str) -> bool:
    return bool(getattr(found, name, None) != getattr(expected, name, None))


QUESTION = Question(
    "trace",
    "`jax.jit(lambda *args: exported.call(*args)).trace(...)`, with a new lambda each time and a loaded `exported`.",
    _trial,
    beside={
        "one bind": "tracing one primitive with the same arguments and results, whose result types are known. This is "
        "JAX's own part, with flattening and unflattening",
        "live": "tracing the live function, body included",
    },
    applies=single,
)
