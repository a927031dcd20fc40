"""How long does `export` take, of a function that has not been traced before?"""

from __future__ import annotations

from types import ModuleType

from bench.agree import exported_differences, result_differences
from bench.cases import Case, Program
from bench.measure import Rival
from bench.question import Question, Trial


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    def wrong() -> list[str]:
        live = program.fresh()
        ours, theirs = subject.export(live)(*program.specs), oracle.export(live)(*program.specs)
        return exported_differences(ours, theirs, module=False) or result_differences(
            ours.call(*program.args), live(*program.args)
        )

    return Trial(
        subject=Rival(lambda: subject.export(program.fresh())(*program.specs)),
        oracle=Rival(lambda: oracle.export(program.fresh())(*program.specs)),
        floor=Rival(lambda: program.fresh().lower(*program.specs)),
        wrong=wrong,
    )


QUESTION = Question("export", "tracing and lowering by jit", _trial)
