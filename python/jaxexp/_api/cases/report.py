"""What a check found: as data, in words, as JSON, and as a card in notebooks."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from jaxexp._errors import shown
from jaxexp._kernel.artifact.cases import OF_TOLERANCES, UNSTABLE, Tolerance
from jaxexp._kernel.artifact.words import counted, cut, dtype_and_shape
from jaxexp._public import part_of, public

if TYPE_CHECKING:
    from jaxexp._view.sides import Check

# Of a result, a case and all cases: the worst one counts.
EQUAL, CLOSE, DIFFERS, FAILED, NONE = "equal", "close", "differs", "failed", "no cases"
_BADNESS = (EQUAL, CLOSE, DIFFERS, FAILED)
OF_CHECK, OF_CASE, OF_RECORDING, OF_DTYPE = "check", "case", "recording", "dtype"
_WHOSE = {
    OF_CHECK: "given to the check",
    OF_CASE: "of the case",
    OF_RECORDING: "measured when it was recorded",
    OF_DTYPE: "the default of the dtype",
}
# What is said of an environment in one line.
_SHORT = ("jax", "jaxlib", "jaxexp", "platform", "device")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How a result compares with the recorded one.

    Attributes:
        path: the path of the result, as in ``"result['loss']"``.
        dtype: the name of its dtype.
        shape: its recorded shape; a random key has one more dimension.
        verdict: ``"equal"``: the same bits. ``"close"``: within the tolerance. ``"differs"``.
        why: the difference between the dtypes or shapes; empty if they are equal.
        size: how many numbers it has.
        differing: how many numbers differ by more than the tolerance, or are NaN or infinite on one side only.
        unequal: how many numbers differ at all.
        nans: how many are NaN on one side only.
        infinities: how many are infinite on one side only, or with another sign.
        max_absolute: the largest difference of finite numbers.
        max_relative: the largest difference relative to the recorded number.
        max_ulps: the largest difference in units in the last place; complex numbers are compared part by part.
        at: the index of the worst number; None if all are equal.
        expected: the recorded number at `at`, as text.
        found: the new number at `at`, as text.
        in_float64: if the result differs, the number at `at` when the function is computed in float64; None if unknown.
        allowed: the largest allowed difference at `at`.
        tolerance: the tolerance of the result; None for the default of the dtype.
        tolerance_of: the origin of the tolerance: ``"check"``, an argument of `check`; ``"case"``, given with the case;
            ``"recording"``, measured when the case was recorded; or ``"dtype"``, the default.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    verdict: str
    why: str = ""
    size: int = 0
    differing: int = 0
    unequal: int = 0
    nans: int = 0
    infinities: int = 0
    max_absolute: float = 0.0
    max_relative: float = 0.0
    max_ulps: int = 0
    at: tuple[int, ...] | None = None
    expected: str | None = None
    found: str | None = None
    in_float64: str | None = None
    allowed: float = 0.0
    tolerance: Tolerance | None = None
    tolerance_of: str = OF_DTYPE

    def __str__(self) -> str:
        name = f"{self.path} {dtype_and_shape(self.dtype, self.shape)}"
        if self.verdict == EQUAL:
            return shown(f"{name}: the same bits")
        if self.why:
            return shown(f"{name}: {self.why}")
        largest = f"at most {self.max_absolute:.3g}"
        if self.max_ulps:  # of floats
            largest += f" (relative {self.max_relative:.3g}, {self.max_ulps:,} ulps)"
        if self.verdict == CLOSE:
            return shown(f"{name}: {self.unequal:,} of {self.size:,} numbers differ by {largest}, as allowed")
        patterns = [
            f"{count:,} {what} on one side only"
            for count, what in ((self.nans, "NaN"), (self.infinities, "infinite"))
            if count
        ]
        what = f"{name}: {self.differing:,} of {self.size:,} numbers differ by {largest}"
        allowed = f"allowed is {self.allowed:.3g}, {_WHOSE[self.tolerance_of]}"
        there = f"at {list(self.at or ())} recorded {self.expected}, found {self.found}"
        if self.in_float64 is not None:
            there += f", float64 gives {self.in_float64}"
        return shown("; ".join([what, *patterns, there, allowed]))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The first operation whose result differs from the recorded run.

    Attributes:
        operation: its name, such as ``"stablehlo.add"``.
        place: the scope and the line of source code that the module names for it, such as
            ``"jit(f)/dot_general, f.py:12"``; empty if there are none.
        where: the loops, branches and calls around it, outermost first, such as ``("@layer", "while")``.
        at: the module's function that contains the operation, and its number in that function. Numbers begin at 0 and
            skip the operations that end blocks.
        type: the type of its result, such as ``"float32[4,2]"``.
        why: the difference, in words.
        error: the size of the difference relative to the size of the result, where a size is the root of the sum of
            squares; infinite if integers, NaNs or infinities differ.
        operands_error: the largest such error of its operands.
        run: the number of this run of the operation, from 1.
        runs: the number of all of its runs.
        expected: the largest number of the result in the recorded run; None if nothing is compared.
        found: the largest number now.
        expected_error: how far the recorded result is from the result of the operation in float64 with the operands
            of this run, in the form of `error`; None if unknown.
        found_error: the same for the result of this run.
    """

    operation: str
    place: str
    where: tuple[str, ...]
    at: tuple[str, int]
    type: str
    why: str
    error: float = math.inf
    operands_error: float = 0.0
    run: int = 1
    runs: int = 1
    expected: float | None = None
    found: float | None = None
    expected_error: float | None = None
    found_error: float | None = None

    def __str__(self) -> str:
        place = f" ({self.place})" if self.place else ""
        inside = "".join(f" in {name}" for name in reversed(self.where))
        runs = f", in run {self.run:,} of {self.runs:,}" if self.runs > 1 else ""
        largest = ""
        if self.expected != self.found:
            largest = f"; its largest number was {self.expected:.6g}, and is {self.found:.6g}"
        exact = ""
        if self.expected_error is not None and self.found_error is not None:
            recorded, here = _off(self.expected_error), _off(self.found_error)
            exact = f"; beside the same operation in float64, the recorded result is {recorded} and this one is {here}"
        of_type = f" {self.type}" if self.type else ""
        return shown(f"{self.operation}{of_type}{place}{inside}{runs}: {self.why}{largest}{exact}")


def _off(error: float) -> str:
    return f"off by {error:.2g} of its size" if math.isfinite(error) else "other numbers"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The outcome of one case.

    Attributes:
        name: the name of the case.
        vjp_order: 0 for a call of the function, 1 for a call of its VJP, and so on.
        recorded: where the case was recorded, as `Case.recorded`.
        results: the comparison of each result.
        error: why there are no results; None if there are.
        changed: if a result differs, which of the weights and the module have changed since the recording; else empty.
        culprit: the operation that differs first, if a result differs and a trace was recorded; else None.
        unnamed: if a result differs, why no culprit is known; else empty.
        differences: if there is a culprit, all operations that differ, as a page shows them. JSON leaves them out.
    """

    name: str
    vjp_order: int
    recorded: Mapping[str, str]
    error: str | None = None
    changed: str = ""
    results: tuple[Compared, ...] = ()
    culprit: Culprit | None = None
    unnamed: str = ""
    differences: Any = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def verdict(self) -> str:
        """That of the worst result; ``"failed"`` if there is none."""
        return FAILED if self.error is not None else _worst(one.verdict for one in self.results)

    def __str__(self) -> str:
        name = f"{self.name} (VJP of order {self.vjp_order})" if self.vjp_order else self.name
        return shown(f"{name}: {self.summary}")

    @property
    def summary(self) -> str:
        """How it went, in words."""
        if self.error is not None:
            return self.error
        if self.verdict == EQUAL:
            return f"{counted(len(self.results), 'result')} with the same bits"
        if self.verdict == DIFFERS:
            wrong = sum(one.verdict == DIFFERS for one in self.results)
            return f"{wrong:,} of {counted(len(self.results), 'result')} {'differs' if wrong == 1 else 'differ'}"
        largest = max(self.results, key=lambda one: one.max_absolute)
        ulps = f", {largest.max_ulps:,} ulps" if largest.max_ulps else ""
        return f"within the tolerance; {largest.path} by at most {largest.max_absolute:.3g}{ulps}"

    def lines(self) -> Iterator[str]:
        """What is not that of the recording; what differs, a line for each result; what rounding may change; and which
        operation differs first.
        """
        if self.changed:
            yield shown(self.changed)
        for one in self.results:
            if one.verdict == DIFFERS:
                yield str(one)
        if self.verdict == DIFFERS:
            if said := self.recorded.get(UNSTABLE):
                yield shown(f"unstable when it was recorded: {said}")
            yield shown(f"the first operation that differs: {self.culprit or self.unnamed}")


def _worst(verdicts: Iterator[str]) -> str:
    return max(verdicts, key=_BADNESS.index, default=EQUAL)


@public
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The result of `check`. `print` shows it as text, and a notebook as a card. ``bool(report)`` is `ok`, so a report
    without cases is false.

    Attributes:
        name: the name of the function.
        cases: the outcome of each case, a `CheckReport.Checked`. Each of its results is a `CheckReport.Compared`, and
            its culprit, if known, a `CheckReport.Culprit`.
        checked: where the cases were checked, in the form of `Case.recorded`.
    """

    name: str
    cases: tuple[Checked, ...]
    checked: Mapping[str, str]

    @property
    def verdict(self) -> str:
        """``"equal"``: all results have the same bits. ``"close"``: all are within their tolerances. ``"differs"``: at
        least one is not. ``"failed"``: a case cannot be called here. ``"no cases"``: there are no cases.
        """
        return _worst(one.verdict for one in self.cases) if self.cases else NONE

    @property
    def ok(self) -> bool:
        """Whether there are cases, and the verdict is ``"equal"`` or ``"close"``."""
        return self.verdict in (EQUAL, CLOSE)

    def __bool__(self) -> bool:
        return self.ok

    def lines(self) -> Iterator[str]:
        """The report as lines of text."""
        good = sum(one.verdict in (EQUAL, CLOSE) for one in self.cases)
        if not self.cases:
            yield shown(f"{self.name}: no cases")
            return
        yield shown(f"{self.name}: {good:,} of {counted(len(self.cases), 'case')} as recorded")
        recorded: Mapping[str, str] = {}
        for case in self.cases:
            yield f"  {case.verdict:7}  {case}"
            for line in case.lines():
                yield f"           {line}"
            if case.verdict in (DIFFERS, FAILED):
                recorded = case.recorded
                yield f"           recorded with {in_short(recorded, self.checked)}"
        if not self.ok:
            yield f"           checked with {in_short(self.checked, recorded)}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        from jaxexp._view import card

        lines = [line for case in self.cases for line in _table_lines(case)]
        title = f"{self.name}: {self.verdict}, checked with {in_short(self.checked)}"
        return card.table_card(title, _HEADS, lines[:_MOST_LINES], len(lines) - _MOST_LINES)

    def to_json(self) -> dict[str, Any]:
        """The report, with the verdicts, as a value that `json.dumps` accepts."""
        cases = [
            {"name": case.name, "vjp_order": case.vjp_order, "verdict": case.verdict} | _plain(case)
            for case in self.cases
        ]
        return {"name": self.name, "verdict": self.verdict, "checked": dict(self.checked), "cases": cases}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> CheckReport:
        """Makes a report from the result of `to_json`.

        Raises:
            LookupError, TypeError, ValueError: `said` is not such a result.
        """
        found: CheckReport = _of_json(cls, said)
        return found


part_of(CheckReport, Checked)
part_of(CheckReport, Compared)
part_of(CheckReport, Culprit)

# Of a table about cases: what its columns are called, and how many lines are shown.
_HEADS = "case", "result", "verdict", "largest difference", "worst number"
_MOST_LINES = 200


def _table_lines(case: Checked) -> Iterator[tuple[str, ...]]:
    """Texts for each result of a case, and for the operation that is named."""
    if case.error is not None:
        yield case.name, "", FAILED, "", case.error
    for one in case.results:
        largest = f"{one.max_absolute:.3g}, {one.max_ulps:,} ulps" if one.unequal else one.why or "none"
        at = f"{list(one.at)}: recorded {one.expected}, found {one.found}" if one.at is not None else ""
        yield case.name, one.path, one.verdict, largest, at
    if case.culprit is not None:
        yield case.name, str(case.culprit), DIFFERS, f"{case.culprit.error:.3g}", ""


def in_short(environment: Mapping[str, str], other: Mapping[str, str] | None = None) -> str:
    """An environment in one line; with all in which it differs from another one."""
    keys = [key for key in _SHORT if environment.get(key)]
    if other is not None:
        every = sorted({*environment, *other} - {*_SHORT, *OF_TOLERANCES})
        keys += [key for key in every if environment.get(key) != other.get(key)]
    return shown(", ".join(f"{key} {cut(environment.get(key) or 'none', 240)}" for key in keys))


def of_report(found: CheckReport) -> Check:
    """What a page about the artifact shows of a report. The first case that differs gives the module of its VJP the
    colours.
    """
    from jaxexp._view.sides import Check

    errors: dict[int, Any] = {}
    words = []
    for case in found.cases:
        words += [f"{case.name}: {line}" for line in case.lines()]
        if case.differences is not None:
            errors.setdefault(case.vjp_order, case.differences)
    lines = [line for case in found.cases for line in _table_lines(case)]
    if len(lines) > _MOST_LINES:
        words.insert(0, f"and {len(lines) - _MOST_LINES:,} more")
    title = f"{found.verdict}, checked with {in_short(found.checked)}"
    return Check(title, _HEADS, lines[:_MOST_LINES], words, errors)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if dataclasses.is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value) if one.compare}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(map(_plain, value))
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _of_json(kind: Any, said: Any) -> Any:
    """The value of a field of this type, or a record with such fields."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = [one.name for one in dataclasses.fields(kind) if one.compare]
        made: Any = kind(**{name: _of_json(kind.__annotations__[name], said[name]) for name in fields})
        if kind is Compared and (made.verdict not in _BADNESS or made.tolerance_of not in _WHOSE):
            raise ValueError(made.verdict)
        return made
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:  # with None
        return None if said is None else _of_json(parts[0], said)
    if origin is tuple:
        types = itertools.repeat(parts[0], len(said)) if parts[-1] is Ellipsis else parts
        return tuple(map(_of_json, types, said))
    if origin is Mapping:
        return {str(key): str(value) for key, value in said.items()}
    return Tolerance(*map(float, said)) if kind is Tolerance else kind(said)
