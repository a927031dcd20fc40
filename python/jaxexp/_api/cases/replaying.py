"""Compares what the calls of cases return with what was recorded: calls that are made again, by JAX or by whatever else
runs functions, or that `jaxexp-run --cases` made elsewhere. Without JAX.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxexp import _native
from jaxexp._errors import ExportError, cause
from jaxexp._kernel.artifact.cases import FLOAT0, Array, Case, Tolerance, read, storage
from jaxexp._kernel.artifact.words import bytes_in_words

from .comparing import compared
from .machine import explained, split
from .report import DIFFERS, EQUAL, OF_CASE, OF_CHECK, OF_DTYPE, OF_RECORDING, Checked, CheckReport, Compared

# In a file of `jaxexp-run`: the array with a text in JSON that says what the others are, and the version of that text.
_ABOUT, _VERSION = "about", 1
_FLAGS = "XLA_FLAGS"


class Returned(NamedTuple):
    """What a case returned: the paths of its results, and the results; or why there are none. `checks` compare the
    arguments with their digests: if the results are those that were recorded, the arguments were right.
    """

    paths: Sequence[str]
    results: Sequence[Array]
    error: str | None
    checks: Sequence[Callable[[], object]] = ()


def replayed(
    name: str,
    cases: Sequence[Case],
    call: Callable[[int, Sequence[Array]], Sequence[Array]],
    paths: Callable[[int], Sequence[str]],
    checked: Mapping[str, str],
    tolerance: Any,
    max_drawn_bytes: int,  # of random numbers, of which a few bytes describe any number
    more: Callable[[Case, Checked], Checked] | None = None,
) -> CheckReport:
    """Checks the cases of a function, which the report calls `name`; `checked` says where.

    `call` calls the VJP of an order (0 for the function itself) with flat arguments, and returns its flat results;
    `paths` are those of its results. `more` adds what is known of a case that differs.
    """

    def returned(case: Case) -> Returned:
        try:
            arguments, checks = _drawn_and_read(case, max_drawn_bytes)
            return Returned(paths(case.vjp_order), call(case.vjp_order, arguments), None, checks)
        except Exception as error:  # of whatever runs the function
            return Returned((), (), explained(error))

    return _judged(name, cases, map(returned, cases), checked, tolerance, more)


def _drawn_and_read(case: Case, max_drawn_bytes: int) -> tuple[list[Array], list[Callable[[], object]]]:
    # Those of dtype float0 are not kept, either.
    made = [value for value in (*case.arguments, *case.results) if value.drawn is not None or value.dtype == FLOAT0]
    drawn = sum(value.nbytes or math.prod(value.shape) for value in made)
    if drawn > max_drawn_bytes:
        raise ExportError(
            f"its random arguments take {bytes_in_words(drawn)}; max_drawn_bytes allows "
            f"{bytes_in_words(max_drawn_bytes)}"
        )
    found = list(map(read, case.arguments))
    return [array for array, _ in found], [check for _, check in found]


def _judged(
    name: str,
    cases: Iterable[Case],
    returned: Iterable[Returned],
    checked: Mapping[str, str],
    tolerance: Any,
    more: Callable[[Case, Checked], Checked] | None = None,
) -> CheckReport:
    given = None if tolerance is None else Tolerance.of(tolerance)

    def of_case(case: Case, one: Returned) -> Checked:
        found = Checked(name=case.name, vjp_order=case.vjp_order, recorded=dict(case.recorded), error=one.error)
        if one.error is not None:
            return found
        try:
            checks = list(one.checks)
            found = dataclasses.replace(found, results=tuple(_compared(case, one, given, checks)))
            if found.verdict != EQUAL:
                for check in checks:
                    check()
        except Exception as error:  # as of a file with what was recorded, which is missing
            return dataclasses.replace(found, error=explained(error))
        if found.verdict != DIFFERS:
            return found
        if more is not None:
            return more(case, found)
        why = "unknown, because only a check with JAX compares the recorded trace"
        return dataclasses.replace(found, unnamed=UNRECORDED if case.trace is None else why)

    return CheckReport(name=name, cases=tuple(map(of_case, cases, returned)), checked=dict(checked))


# Why no operation is named, in a report.
UNRECORDED = (
    "unknown, because no trace was recorded: run 'record --trace' where the results are right, and later checks name it"
)


def _compared(
    case: Case, returned: Returned, given: Tolerance | None, checks: list[Callable[[], object]]
) -> Iterator[Compared]:
    """Adds to `checks` what compares the recorded results with their digests."""
    measured = case.measured
    for index, (expected, found, path) in enumerate(zip(case.results, returned.results, returned.paths, strict=True)):
        tolerance = expected.tolerance if given is None else given
        of_case = OF_RECORDING if index in measured else OF_CASE
        whose = OF_CHECK if given is not None else OF_DTYPE if tolerance is None else of_case
        array, check = read(expected)
        checks.append(check)
        yield compared(path, expected.dtype, array, found, tolerance, whose)


def check_results(
    file: str,
    arrays: Mapping[str, Callable[[], Array]],
    cases: Sequence[Case],
    artifact: Any,
    tolerance: Any,
) -> CheckReport:
    """Compares the results that `jaxexp-run --cases` wrote to a file with those of the cases of an artifact.

    Args:
        file: its name, for messages.
        arrays: what makes its arrays, by their names.
        artifact: the bytes of the artifact, which were verified.
        tolerance: for all results, in place of theirs.

    Raises:
        ExportError: the file says something else; or it is about another artifact, or other cases.
        Exception: as making an array does.
    """
    try:
        said = json.loads(arrays[_ABOUT]().tobytes().decode("utf-8", "replace"))  # flags may have any bytes
        if said["version"] != _VERSION:
            raise ValueError(said["version"])
        name, digest = str(said["function"]), str(said["artifact"])
        facts = {str(key): str(value) for key, value in said["checked"].items() if value}
        returned = [_later(one, arrays) for one in said["cases"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ExportError(
            f"{file!r}: expected a file of 'jaxexp-run --cases' with version {_VERSION} of the array {_ABOUT!r}, found "
            "another file or version: make the calls again with the 'jaxexp-run' of this release"
        ) from cause(error)
    if _FLAGS in facts:
        facts[_FLAGS] = " ".join(sorted(split(facts[_FLAGS])))
    expected = _native.artifact_digest(artifact).hex() if cases else "none"
    if digest != expected or len(returned) != len(cases):
        wanted = f"results of the artifact's cases (digest {expected})"
        if not cases:
            wanted = "no results, because the artifact has no cases"
        raise ExportError(
            f"{file!r}: expected {wanted}, found results of another artifact or of other cases (digest {digest}): make "
            "the calls again with 'jaxexp-run --cases'"
        )
    return _judged(name, cases, (make(case) for make, case in zip(returned, cases, strict=True)), facts, tolerance)


def _later(said: Mapping[str, Any], arrays: Mapping[str, Callable[[], Array]]) -> Callable[[Case], Returned]:
    """What makes the results of a case, whose dtypes NumPy's files may have no names for: they have their bytes."""
    paths, makes = list(map(str, said["results"].values())), [arrays[name] for name in said["results"]]
    error = None if said["error"] is None else str(said["error"])

    def as_held(array: Array, dtype: str) -> Array:
        held = storage(dtype).dtype
        are_bytes = array.dtype.char == "V" and array.dtype.names is None and array.dtype.itemsize == held.itemsize
        return array.view(held) if are_bytes else array

    def returned(case: Case) -> Returned:
        if error is not None:
            return Returned((), (), error)
        results = [as_held(make(), value.dtype) for make, value in zip(makes, case.results, strict=False)]
        return Returned(paths, results, None)

    return returned
