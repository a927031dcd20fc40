"""What a question is: for a case and two libraries, the calls to time, a floor beside them, a check of the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from bench.cases import Case, Program
from bench.measure import Rival


@dataclass(frozen=True)
class Trial:
    """The two rivals, and `wrong`: the names of what differs between their results, empty if they are right."""

    subject: Rival
    oracle: Rival
    floor: Rival
    wrong: Callable[[], list[str]]


@dataclass(frozen=True)
class Question:
    """`trial(case, program, subject, oracle)`: both libraries have the API of jax.export; the oracle is jax.export."""

    name: str
    floor: str
    trial: Callable[[Case, Program, ModuleType, ModuleType], Trial]
