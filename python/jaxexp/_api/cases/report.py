"""What a check found: as data, in words, as JSON, and as a card in notebooks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxexp._errors import shown
from jaxexp._kernel.artifact.cases import OF_TOLERANCES, UNSTABLE, Tolerance
from jaxexp._kernel.artifact.words import counted, cut, dtype_and_shape
from jaxexp._public import part_of, public

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
        path: which result, as in ``"result['loss']"``.
        dtype: the name of its dtype.
        shape: its shape as recorded; a random key has one dimension more.
        verdict: ``"equal"``: the same bits. ``"close"``: within the tolerance. ``"differs"``.
        why: what differs if dtypes or shapes do; else empty.
        size: how many numbers it has.
        differing: how many of them differ by more than the tolerance allows, or are NaN or infinite on one side only.
        unequal: how many of them differ at all.
        nans: how many are NaN on one side only.
        infinities: how many are infinite on one side only, or with another sign.
        max_absolute: the largest difference of finite numbers.
        max_relative: the largest one relative to the recorded number.
        max_ulps: the largest one in units in the last place; of complex numbers, for their parts.
        at: the index of the worst number; None if all are equal.
        expected: that number as recorded.
        found: that number as it is now.
        in_float64: if the result differs, that number as the function gives it in float64; None if that is not known.
        allowed: the largest difference that is allowed there.
        tolerance: what was allowed; None for the default of the dtype.
        tolerance_of: who gave it: ``"check"``; ``"case"``; ``"recording"``, if it was measured then; or ``"dtype"``.
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
    """The first operation that makes something else than in the recorded run.

    Attributes:
        operation: its name, such as ``"stablehlo.add"``.
        place: the scope and the line of source code that the module names for it, such as
            ``"jit(f)/dot_general, f.py:12"``; empty if there are none.
        where: the loops, branches and calls around it, outermost first, such as ``("@layer", "while")``.
        at: the function of the module that it is in, and its number there: 0 is the first operation, and what ends a
            block is not counted.
        type: the type of its result, such as ``"float32[4,2]"``.
        why: what is different about it, in words.
        error: by how much the result differs, relative to its size, which is the root of the sum of squares; infinite
            if integers differ, or NaNs and infinities.
        operands_error: the largest such error of its operands.
        run: which run of the operation this is, from 1 on.
        runs: how often it ran.
        expected: the largest number of the result in the recorded run; None if nothing is compared.
        found: the largest number now.
        expected_error: by how much the recorded result differs from that of the operation in float64 with the operands
            of this run, in the form of `error`; None if that is not known.
        found_error: by how much the result of this run does.
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
        runs = ""
        if self.runs > 1:
            runs = f", in run {self.run:,} of {self.runs:,}"
        largest = ""
        if self.expected != self.found:
            largest = f"; its largest number was {self.expected:.6g}, and is {self.found:.6g}"
        exact = ""
        if self.expected_error is not None and self.found_error is not None:
            sides = (
                f"{side} is {_off(error)}"
                for side, error in (("the recorded result", self.expected_error), ("this one", self.found_error))
            )
            exact = f"; beside the same operation in float64, {' and '.join(sides)}"
        of_type = f" {self.type}" if self.type else ""
        return shown(f"{self.operation}{of_type}{place}{inside}{runs}: {self.why}{largest}{exact}")


def _off(error: float) -> str:
    return f"off by {error:.2g} of its size" if math.isfinite(error) else "other numbers"


class Difference(NamedTuple):
    """By how much the result of an operation differs from the recorded run, relative to its size; and how much of that
    neither its operands nor rounding explain.
    """

    error: float
    own: float


class Differences(NamedTuple):
    """A module, and the operations of it whose results differ, by their functions and their numbers there."""

    module: bytes
    operations: Mapping[tuple[str, int], Difference]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """How one case went.

    Attributes:
        name: the name of the case.
        vjp_order: whose call it is: 0 of the function, 1 of its VJP, and so on.
        recorded: where it was recorded.
        results: how each result compares.
        error: why there is no result; else None.
        changed: if a result differs and the weights or the module are not those of the recording, which; else empty.
        culprit: the operation that differs first, if a result differs and a trace was recorded; else None.
        unnamed: if a result differs, why there is no culprit; else empty.
        differences: if there is a culprit, all operations that differ, for a page. JSON has none of them.
    """

    name: str
    vjp_order: int
    recorded: Mapping[str, str]
    results: tuple[Compared, ...] = ()
    error: str | None = None
    changed: str = ""
    culprit: Culprit | None = None
    unnamed: str = ""
    differences: Differences | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def verdict(self) -> str:
        """That of the worst result; ``"failed"`` if there is none."""
        return FAILED if self.error is not None else worst(one.verdict for one in self.results)

    def __str__(self) -> str:
        name = f"{self.name} (VJP of order {self.vjp_order})" if self.vjp_order else self.name
        return shown(f"{name}: {self.summary}")

    @property
    def summary(self) -> str:
        """How it went, in words."""
        return _summary(self.results, self.verdict) if self.error is None else self.error

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


def _summary(results: tuple[Compared, ...], verdict: str) -> str:
    if verdict == EQUAL:
        return f"{counted(len(results), 'result')} with the same bits"
    if verdict == DIFFERS:
        wrong = sum(one.verdict == DIFFERS for one in results)
        return f"{wrong:,} of {counted(len(results), 'result')} {'differs' if wrong == 1 else 'differ'}"
    largest = max(results, key=lambda one: one.max_absolute)
    ulps = f", {largest.max_ulps:,} ulps" if largest.max_ulps else ""
    return f"within the tolerance; {largest.path} by at most {largest.max_absolute:.3g}{ulps}"


def worst(verdicts: Iterator[str]) -> str:
    """The worst of some verdicts; `EQUAL` if there are none."""
    return max(verdicts, key=_BADNESS.index, default=EQUAL)


@public
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What `check` found. `print` shows it, a notebook shows a card, and `ok` is for programs. A report is true in an
    ``if`` or an ``assert`` if it is `ok`: so it is false if there are no cases.

    Attributes:
        name: the name of the function.
        cases: how each case went, each a `CheckReport.Checked`; its results are a `CheckReport.Compared` each, and its
            culprit, if there is one, is a `CheckReport.Culprit`.
        checked: where they were checked, in the form of `Case.recorded`.
    """

    name: str
    cases: tuple[Checked, ...]
    checked: Mapping[str, str]

    @property
    def verdict(self) -> str:
        """``"equal"``: all results have the same bits. ``"close"``: all are within their tolerances. ``"differs"``: one
        is not. ``"failed"``: a case cannot be called here. ``"no cases"``: nothing was recorded.
        """
        return worst(one.verdict for one in self.cases) if self.cases else NONE

    @property
    def ok(self) -> bool:
        """Whether there are cases, and all results are as recorded."""
        return self.verdict in (EQUAL, CLOSE)

    def __bool__(self) -> bool:
        return self.ok

    def lines(self) -> Iterator[str]:
        """The report in lines of words."""
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

        lines = [line for case in self.cases for line in table_lines(case)]
        title = f"{self.name}: {self.verdict}, checked with {in_short(self.checked)}"
        return card.table_card(title, HEADS, lines[:MOST_LINES], len(lines) - MOST_LINES)

    def to_json(self) -> dict[str, Any]:
        """The report as values for `json.dumps`, with the verdicts."""
        cases = [
            {
                "name": case.name,
                "vjp_order": case.vjp_order,
                "verdict": case.verdict,
                "recorded": dict(case.recorded),
                "error": case.error,
                "changed": case.changed,
                "results": [_to_json(one) for one in case.results],
                "culprit": None if case.culprit is None else _plain(case.culprit),
                "unnamed": case.unnamed,
            }
            for case in self.cases
        ]
        return {"name": self.name, "verdict": self.verdict, "checked": dict(self.checked), "cases": cases}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> CheckReport:
        """The report that `to_json` returned the values of.

        Raises:
            LookupError, TypeError, ValueError: these are other values.
        """
        cases = tuple(
            Checked(
                name=str(case["name"]),
                vjp_order=int(case["vjp_order"]),
                recorded=_texts(case["recorded"]),
                results=tuple(map(_of_json, case["results"])),
                error=None if case["error"] is None else str(case["error"]),
                culprit=None if case["culprit"] is None else _culprit_of_json(case["culprit"]),
                changed=str(case["changed"]),
                unnamed=str(case["unnamed"]),
            )
            for case in said["cases"]
        )
        return cls(name=str(said["name"]), cases=cases, checked=_texts(said["checked"]))


part_of(CheckReport, Checked)
part_of(CheckReport, Compared)
part_of(CheckReport, Culprit)

# Of a table about cases: what its columns are called, and how many lines are shown.
HEADS = "case", "result", "verdict", "largest difference", "worst number"
MOST_LINES = 200


def table_lines(case: Checked) -> Iterator[tuple[str, ...]]:
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


def _texts(said: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in said.items()}


def _plain(one: Compared | Culprit) -> dict[str, Any]:
    said = dataclasses.asdict(one)
    for key, value in said.items():
        if isinstance(value, float) and not math.isfinite(value):
            said[key] = str(value)  # which JSON has no number for
    return said


def _to_json(one: Compared) -> dict[str, Any]:
    return _plain(one) | {"tolerance": None if one.tolerance is None else list(one.tolerance)}


_FLOATS = ("max_absolute", "max_relative", "allowed")


def _of_json(said: Mapping[str, Any]) -> Compared:
    values = {field.name: said[field.name] for field in dataclasses.fields(Compared)}
    values |= {key: float(values[key]) for key in _FLOATS}
    values["shape"] = tuple(map(int, values["shape"]))
    values["at"] = None if values["at"] is None else tuple(map(int, values["at"]))
    values["tolerance"] = None if values["tolerance"] is None else Tolerance(*map(float, values["tolerance"]))
    if values["verdict"] not in _BADNESS or values["tolerance_of"] not in _WHOSE:
        raise ValueError(values["verdict"])
    return Compared(**values)


def _culprit_of_json(said: Mapping[str, Any]) -> Culprit:
    return Culprit(
        operation=str(said["operation"]),
        place=str(said["place"]),
        where=tuple(map(str, said["where"])),
        at=(str(said["at"][0]), int(said["at"][1])),
        type=str(said["type"]),
        why=str(said["why"]),
        error=float(said["error"]),
        operands_error=float(said["operands_error"]),
        run=int(said["run"]),
        runs=int(said["runs"]),
        **{name: None if said[name] is None else float(said[name]) for name in _OPTIONAL},
    )


_OPTIONAL = "expected", "found", "expected_error", "found_error"
