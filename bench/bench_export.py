"""How long does `export` take, of a function that has not been traced before?"""

from __future__ import annotations

import importlib
from types import ModuleType

from bench import floors
from bench.agree import exported_differences, result_differences
from bench.cases import Case, built
from bench.measure import Rival
from bench.processes import alone
from bench.program import Program
from bench.question import Question, Trial, single
from bench.results import ORACLE, SUBJECT


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    def wrong() -> list[str]:
        live = program.fresh()
        ours, theirs = subject.export(live)(*program.specs), oracle.export(live)(*program.specs)
        wrong = exported_differences(ours, theirs, module=False)
        if wrong or not case.runnable:
            return wrong
        return result_differences(ours.call(*program.args), live(*program.args))

    return Trial(
        subject=Rival(lambda: subject.export(program.fresh())(*program.specs)),
        oracle=Rival(lambda: oracle.export(program.fresh())(*program.specs)),
        wrong=wrong,
        beside={"jit": Rival(floors.lowering(program))},
        alone={
            rival: alone(export, library.__name__, case.name)
            for rival, library in ((SUBJECT, subject), (ORACLE, oracle))
        },
    )


def export(library: str, case: str) -> None:
    program = built(case)
    importlib.import_module(library).export(program.fresh())(*program.specs)


QUESTION = Question(
    "export",
    "`export` of a function that JAX has never traced.",
    _trial,
    beside={"jit": "tracing and lowering the function with `jax.jit`, without an export"},
    # 20,000 sharded parameters would add minutes, and little to what 20,000 unsharded ones say.
    applies=single,
    peak=True,
)
