"""A question: for a case and two libraries, the calls to time, floors beside them, and a check of the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType

from bench.cases import Case
from bench.measure import Reading, Rival
from bench.program import Program


@dataclass(frozen=True)
class Trial:
    """Two rivals, others to show beside them, and `wrong`: the names of the parts in which their results differ.

    There is no oracle where jax.export cannot do it. Where rivals run in this process, `alone` has a run of each in a
    new process that does nothing else, for its memory.
    """

    subject: Rival | Reading
    oracle: Rival | Reading | None
    wrong: Callable[[], list[str]]
    beside: Mapping[str, Rival | Reading] = field(default_factory=dict)
    alone: Mapping[str, Reading] = field(default_factory=dict)


# Families of cases that have questions of their own. Batches and large modules are for functions that are read back.
READ_BACK = ("batch", "module")
GROWN = ("sizes", "leaves", "functions with VJPs")
OWN_QUESTIONS = (
    *("fleet", "archive", "recorded", "model", "served", "weights", "calls with weights", "limited weights"),
    *(*READ_BACK, *GROWN),
)


@dataclass(frozen=True)
class Question:
    """`trial(case, program, subject, oracle)`: both libraries have the API of jax.export; the oracle is jax.export.

    Attributes:
        name: a few words.
        asks: a sentence or two: what is measured, of what.
        beside: a sentence for each name in a trial's `beside`.
        applies: which cases it is asked of; by default all but those of families with questions of their own.
        unit: pyperf's name of the unit, "second" or "byte".
        patience: how much longer than others it may take.
        quick: whether it is part of `make bench QUICK=1`.
        peak: whether peak memory is measured where the case is large.
        title: its heading on the page; by default its name, which results keep.
    """

    name: str
    asks: str
    trial: Callable[[Case, Program, ModuleType, ModuleType], Trial]
    beside: Mapping[str, str] = field(default_factory=dict)
    applies: Callable[[Case], bool] = lambda case: case.family not in OWN_QUESTIONS
    unit: str = "second"
    patience: float = 1.0
    quick: bool = True
    peak: bool = False
    title: str = ""


def single(case: Case) -> bool:
    """One function, without its VJPs."""
    return case.family not in ("many", *OWN_QUESTIONS) and not case.vjp_order


def runnable(case: Case) -> bool:
    return single(case) and case.runnable
