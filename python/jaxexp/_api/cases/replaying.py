"""Makes the calls of cases again, by JAX or by whatever else runs functions, and compares the results; or compares what
they returned elsewhere. Without JAX.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp._errors import ExportError
from jaxexp._kernel.artifact.cases import FLOAT0, Array, Case, Tolerance, integers_of
from jaxexp._kernel.artifact.words import bytes_in_words

from .comparing import compared
from .report import DIFFERS, OF_CASE, OF_CHECK, OF_DTYPE, OF_RECORDING, Checked, CheckReport, Compared, Differences

if TYPE_CHECKING:
    from jaxexp._readback.traced import Traced

    from .culprit import Trace

Call = Callable[[int, Sequence[Array]], Sequence[Array]]
Exact = Callable[[int, Sequence[Array], Sequence[Array]], Sequence[Array]]
Tracing = Callable[..., "tuple[Traced, Trace]"]

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
    trace: Tracing | None = None,
    exact: Exact | None = None,
    changed_weights: Callable[[], str] = str,
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
        trace: makes the trace of a call, as `Chain.trace` does; None if whatever runs functions cannot.
        exact: makes a call in float64, given its results, too; None if whatever runs functions cannot.
        changed_weights: says how the weights differ from those that the function was saved with; empty if they do not.

    Raises:
        ExportError, TypeError: the tolerance is none.
    """
    given = None if tolerance is None else Tolerance.of(tolerance)

    def of_case(case: Case) -> Checked:
        try:
            arguments = drawn_and_read(case, max_drawn_bytes)
            results = call(case.vjp_order, arguments)
            checked = _checked(case, results=tuple(_compared(case, results, paths(case.vjp_order), given)))
        except Exception as error:  # of whatever runs the function
            return _checked(case, error=explained(error))
        if checked.verdict != DIFFERS:
            return checked
        if exact is not None:
            with contextlib.suppress(Exception):  # as of a function that cannot be read back
                wide = exact(case.vjp_order, arguments, results)
                with_exact = tuple(map(_with_exact, checked.results, wide))
                checked = dataclasses.replace(checked, results=with_exact)
        if changed := changed_weights():
            why = "not looked for, because the weights have changed"
            return dataclasses.replace(checked, changed=changed, unnamed=why)
        try:
            return dataclasses.replace(checked, **_first(case, arguments, trace))
        except Exception as error:
            return dataclasses.replace(checked, unnamed=f"tracing failed: {explained(error)}")

    return CheckReport(name=name, cases=tuple(map(of_case, cases)), checked=dict(checked))


class Returned(NamedTuple):
    """What a case returned elsewhere.

    Attributes:
        paths: the paths of its results.
        results: makes them.
        error: why there are none; None if there are.
    """

    paths: Sequence[str]
    results: Callable[[Case], Sequence[Array]]
    error: str | None


def judged(
    name: str,
    cases: Iterable[Case],
    returned: Iterable[Returned],
    checked: Mapping[str, str],
    explained: Callable[[Exception], str],
    tolerance: Any = None,
) -> CheckReport:
    """Compares what the cases of a function returned elsewhere with what was recorded.

    Args:
        name, cases, explained, tolerance: as in `replayed`.
        returned: what each case returned.
        checked: where that was.

    Raises:
        ExportError, TypeError: the tolerance is none.
        Exception: as making the results does.
    """
    given = None if tolerance is None else Tolerance.of(tolerance)

    def of_case(case: Case, one: Returned) -> Checked:
        if one.error is not None:
            return _checked(case, error=one.error)
        results = one.results(case)
        try:
            made = _checked(case, results=tuple(_compared(case, results, one.paths, given)))
        except Exception as error:  # as of a file with what was recorded, which is missing
            return _checked(case, error=explained(error))
        return made if made.verdict != DIFFERS else dataclasses.replace(made, **_first(case, (), None))

    return CheckReport(name=name, cases=tuple(map(of_case, cases, returned)), checked=dict(checked))


def _checked(case: Case, **found: Any) -> Checked:
    return Checked(name=case.name, vjp_order=case.vjp_order, recorded=dict(case.recorded), **found)


def _with_exact(one: Compared, wide: Array) -> Compared:
    """A comparison that also has the worst number in float64, if it differs."""
    if one.verdict != DIFFERS or one.at is None or one.dtype == FLOAT0 or integers_of(one.dtype) is not None:
        return one
    return dataclasses.replace(one, in_float64=f"{wide[one.at]:.9g}")


def _first(case: Case, arguments: Sequence[Array], trace: Tracing | None) -> dict[str, Any]:
    """The fields of a report on the first operation at which a case differs, or on why none is named."""
    if case.trace is None:
        why = (
            "unknown, because no trace was recorded: run 'record --trace' where the results are right, and later "
            "checks name it"
        )
        return {"unnamed": why}
    if trace is None:
        return {"unnamed": "unknown, because only a check with JAX compares the recorded trace"}
    from . import culprit

    if (recorded := culprit.Trace.of_case(case.trace)) is None:
        return {"unnamed": "another release of jaxexp recorded the trace, in another form: record it again"}
    traced, here = trace(case.vjp_order, arguments)
    is_changed = culprit.is_changed(here, recorded)
    about = {"changed": "the module has changed since the recording" if is_changed else ""}
    if (named := culprit.find(traced.rows, here, recorded)) is None:
        why = "the module has changed" if is_changed else "the compiler combines them in another way"
        return about | {"unnamed": f"no single one; {why}"}
    found = named.culprit
    if found.expected is not None:
        with contextlib.suppress(Exception):  # as of an operation that has no float64
            found = culprit.with_exact(named, *trace(case.vjp_order, arguments, found.at), recorded)
    operations = culprit.differences(traced.rows, here, recorded, found)
    return about | {"culprit": found, "differences": Differences(traced.module, operations)}


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
