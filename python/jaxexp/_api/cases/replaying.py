"""Makes the calls of cases again, by JAX or by whatever else runs functions, and compares the results. Without JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxexp._errors import ExportError
from jaxexp._kernel.artifact.cases import FLOAT0, Array, Case, Tolerance
from jaxexp._kernel.artifact.words import bytes_in_words

from .comparing import compared
from .report import OF_CASE, OF_CHECK, OF_DTYPE, OF_RECORDING, Checked, CheckReport, Compared

Call = Callable[[int, Sequence[Array]], Sequence[Array]]

# How many bytes of random numbers a case may draw, unless the caller says so: a few bytes describe any number of them.
MOST_DRAWN = 1 << 32


def replayed(
    name: str,
    cases: Iterable[Case],
    call: Call,
    paths: Callable[[int], Sequence[str]],
    checked: Mapping[str, str],
    explained: Callable[[Exception], str],
    tolerance: Any = None,
    max_drawn_bytes: int = MOST_DRAWN,
) -> CheckReport:
    """Checks the cases of a function.

    Args:
        name: what the report calls the function.
        cases: the cases.
        call: calls the VJP of an order (0 for the function itself) with flat arguments, and returns its flat results.
        paths: the paths of the results of this VJP.
        checked: where this is.
        explained: the message of an error of a call.
        tolerance: for all results, in place of theirs.
        max_drawn_bytes: the most that the random arguments of a case may take.

    Raises:
        ExportError, TypeError: the tolerance is none.
    """
    given = None if tolerance is None else Tolerance.of(tolerance)

    def of_case(case: Case) -> Checked:
        about: dict[str, Any] = {"name": case.name, "vjp_order": case.vjp_order, "recorded": dict(case.recorded)}
        try:
            arguments = drawn_and_read(case, max_drawn_bytes)
            results = call(case.vjp_order, arguments)
            return Checked(**about, results=tuple(_compared(case, results, paths(case.vjp_order), given)))
        except Exception as error:  # of whatever runs the function
            return Checked(**about, error=explained(error))

    return CheckReport(name=name, cases=tuple(map(of_case, cases)), checked=dict(checked))


def drawn_and_read(case: Case, max_drawn_bytes: int) -> list[Array]:
    """The arguments of a case.

    Raises:
        ExportError: there are too many random numbers.
        WeightsError: a file beside the artifact is missing or damaged.
    """
    # Those of dtype float0 are not kept, either.
    made = [value for value in (*case.arguments, *case.results) if value.drawn is not None or value.dtype == FLOAT0]
    drawn = sum(value.nbytes or math.prod(value.shape) for value in made)
    if drawn > max_drawn_bytes:
        raise ExportError(
            f"its random arguments take {bytes_in_words(drawn)}; max_drawn_bytes allows "
            f"{bytes_in_words(max_drawn_bytes)}"
        )
    return [value.array() for value in case.arguments]


def _compared(
    case: Case, results: Sequence[Array], paths: Sequence[str], given: Tolerance | None
) -> Iterable[Compared]:
    measured = case.measured
    for index, (expected, found, path) in enumerate(zip(case.results, results, paths, strict=True)):
        tolerance = expected.tolerance if given is None else given
        of_case = OF_RECORDING if index in measured else OF_CASE
        whose = OF_CHECK if given is not None else OF_DTYPE if tolerance is None else of_case
        yield compared(path, expected.dtype, expected.array(), found, tolerance, whose)
