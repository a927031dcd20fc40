"""The first operation that makes something else in one run than in another, from the traces of both."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxexp._kernel.artifact.cases import Array, storage
from jaxexp._readback.traced.rows import EXACT, Row
from jaxexp._readback.traced.tracing import Traced

from .comparing import ULPS, epsilon
from .report import Culprit, Difference

# How much more an operation may differ than what it takes: rounding grows by less in nearly all operations.
_GROWTH = 16
# These may be small where what they take is large.
_CANCELLING = ("stablehlo.add", "stablehlo.subtract", "stablehlo.reduce", "stablehlo.dot_general")

_FIRST, _ALL = range(2)  # of an operation, the first time that it ran, or all times
_WORDS = 6
_RUNS, _SPECIAL, _SUMS, _ROOT, _LARGEST = 0, 1, slice(2, 4), 4, 5


class Trace:
    """The fingerprints of a run.

    Attributes:
        words: uint32[rows,7 or 13]: `Row.identity`; then the six numbers of the first time that each operation ran;
            then those of all times, unless these are the same for each of them.
    """

    def __init__(self, words: Array) -> None:
        self.words = np.ascontiguousarray(words)
        self.identities: list[int] = words[:, 0].tolist()
        self._integers = np.ascontiguousarray(words[:, 1:]).reshape(len(words), (words.shape[1] - 1) // _WORDS, _WORDS)
        self._floats = self._integers.view(np.float32)

    @classmethod
    def of(cls, rows: Sequence[Row], floats: Array, integers: Array) -> Trace:
        """The trace of a program that returned this table."""
        is_float = np.array([row.is_float for row in rows], bool)[:, None]
        numbers = np.ascontiguousarray(floats).view(np.uint32)
        either = np.where(is_float, numbers[..., :2], integers[..., 2:])
        halves = np.concatenate([integers[..., :2], either, numbers[..., 2:]], axis=-1)
        kept = halves[:1] if np.array_equal(*halves) else halves
        identities = np.array([row.identity for row in rows], np.uint32)[:, None]
        return cls(np.concatenate([identities, *kept], axis=1))

    @classmethod
    def of_case(cls, table: Any) -> Trace | None:
        """The trace that a case has; None if a later release wrote it."""
        words = table.array()
        return cls(words) if words.shape[1] in (1 + _WORDS, 1 + 2 * _WORDS) else None

    def where_as(self, again: Trace) -> Array:
        """The words, without what was other numbers when the same was run again: no run may be compared with that."""
        words = self.words.copy()
        words[(words != again.words).any(axis=1), 1:] = 0  # as if it did not run
        return words

    def integers(self, half: int, row: int) -> Any:
        return self._integers[row, min(half, self._integers.shape[1] - 1)]

    def floats(self, half: int, row: int) -> Any:
        return self._floats[row, min(half, self._floats.shape[1] - 1)]


class Named(NamedTuple):
    """A row, and what is said of its operation."""

    row: int
    culprit: Culprit


def find(rows: Sequence[Row], here: Trace, recorded: Trace) -> Named | None:
    """The first of the rows at which a run differs from the recorded one; None if they make the same."""
    alike = _alike(rows, here, recorded)
    first = _Comparison(rows, here, recorded, _FIRST)
    if (suspect := _earliest(range(alike), first.is_to_blame)) is not None:
        return _in_loop(rows, here, recorded, suspect) or first.blamed(suspect)
    if alike < len(rows):
        return Named(alike, _culprit(rows[alike], "the recorded run has another operation in this place"))
    for is_first in (first.turns_over, first.rounds):
        if (suspect := _earliest(range(alike), is_first)) is not None:
            return first.blamed(suspect)
    return None


def differences(rows: Sequence[Row], here: Trace, recorded: Trace, named: Culprit) -> dict[tuple[str, int], Difference]:
    """By how much the result of each operation differs, if it does: the most in all calls of its function. `named` is
    what `find` returned.
    """
    alike = _alike(rows, here, recorded)
    found: dict[tuple[str, int], Difference] = {}
    for half in (_FIRST, _ALL):
        comparison = _Comparison(rows, here, recorded, half)
        for index in range(alike):
            if (error := comparison.error(index)) > 0:
                own = error if comparison.is_to_blame(index) else 0.0
                before = found.get(rows[index].at, Difference(0.0, 0.0))
                found[rows[index].at] = Difference(max(before.error, error), max(before.own, own))
    found[named.at] = Difference(named.error, named.error)
    return found


def _alike(rows: Sequence[Row], here: Trace, recorded: Trace) -> int:
    """How many rows are about the same operations."""
    both = zip(here.identities, recorded.identities, strict=False)
    return next((i for i, (mine, theirs) in enumerate(both) if mine != theirs), min(len(rows), len(recorded.words)))


def with_exact(named: Named, traced: Traced, run: Trace, recorded: Trace) -> Culprit:
    """The operation that `find` named, with how far its results are from float64.

    Args:
        named: what `find` returned, of the first time that the operation ran.
        traced, run: of a run that has rows of this operation in float64, too.
        recorded: the recorded run.
    """
    plain = [index for index, row in enumerate(traced.rows) if row.operation != EXACT]
    at = plain[named.row]
    if at + 1 == len(traced.rows) or traced.rows[at + 1].operation != EXACT:
        return named.culprit
    rows, words = [traced.rows[index] for index in plain], run.words[plain]
    exact = words.copy()
    exact[named.row, 1:] = run.words[at + 1, 1:]
    expected, found = (
        _Comparison(rows, side, Trace(exact), _FIRST).error(named.row) for side in (recorded, Trace(words))
    )
    return dataclasses.replace(named.culprit, expected_error=expected, found_error=found)


def _in_loop(rows: Sequence[Row], here: Trace, recorded: Trace, suspect: int) -> Named | None:
    """What is to blame in a loop whose first trip made the same in both runs; None if `suspect` is no such loop."""
    row = rows[suspect]
    if row.operation != "stablehlo.while":
        return None
    inside = (*row.where, "while")
    end = suspect
    while end >= 0 and (rows[end].operation, rows[end].where, rows[end].takes) == (row.operation, row.where, row.takes):
        end -= 1
    begin = end
    while begin >= 0 and rows[begin].where[: len(inside)] == inside:
        begin -= 1
    body = range(begin + 1, end + 1)
    if not body:
        return None
    trips = [int(run.integers(_ALL, body[0])[_RUNS]) for run in (recorded, here)]
    if trips[0] != trips[1]:
        why = f"its condition ended it after {trips[0]:,} trips in the recorded run, {trips[1]:,} here"
        return Named(suspect, _culprit(row, why))
    later = _Comparison(rows, here, recorded, _ALL)
    blamed = _earliest(body, later.is_to_blame)
    return None if blamed is None else later.blamed(blamed)


def _earliest(indices: Iterable[int], is_it: Callable[[int], bool]) -> int | None:
    return next(filter(is_it, indices), None)


class _Comparison:
    """The rows of two runs: of the first time that each operation ran, or of all times."""

    def __init__(self, rows: Sequence[Row], here: Trace, recorded: Trace, half: int) -> None:
        self._rows, self._half = rows, half
        self._here, self._recorded = here, recorded
        self._errors: dict[int, float] = {}

    def error(self, index: int) -> float:
        """By how much of its size a result differs; infinite for other integers, and other infinities and NaNs."""
        if index not in self._errors:
            self._errors[index] = self._error(index)
        return self._errors[index]

    def _error(self, index: int) -> float:
        half = self._half
        mine, theirs = self._here.integers(half, index), self._recorded.integers(half, index)
        if mine[_RUNS] == 0 or theirs[_RUNS] == 0:
            return 0.0  # what chose another branch is to blame
        row = self._rows[index]
        if mine[_SPECIAL] != theirs[_SPECIAL] or (not row.is_float and (mine[_SUMS] != theirs[_SUMS]).any()):
            return math.inf
        if not row.is_float:
            return 0.0
        both = self._here.floats(half, index).astype(float), self._recorded.floats(half, index).astype(float)
        size = max(one[_ROOT] for one in both)
        if row.operation in _CANCELLING:
            size = max([size, *(float(self._here.floats(half, i)[_ROOT]) for i in row.takes)])
        difference = float(np.abs(both[0][_SUMS] - both[1][_SUMS]).max())
        return difference / size if difference > 0 else 0.0

    def taken(self, index: int) -> float:
        """The largest error of what an operation takes."""
        return max(map(self.error, self._rows[index].takes), default=0.0)

    def is_to_blame(self, index: int) -> bool:
        error, taken = self.error(index), self.taken(index)
        if math.isinf(error):
            return taken == 0
        return error > 0 and error > _GROWTH * max(taken, ULPS * _rounding(self._rows[index].dtype))

    def turns_over(self, index: int) -> bool:
        """Whether operands that differ as rounding may make other integers, as a comparison may."""
        return math.isinf(self.error(index)) and not math.isinf(self.taken(index))

    def rounds(self, index: int) -> bool:
        return self.error(index) > 0 and self.taken(index) == 0

    def blamed(self, index: int) -> Named:
        error, taken = self.error(index), self.taken(index)
        row, half = self._rows[index], self._half
        what = "has other numbers" if math.isinf(error) else f"differs by about {error:.2g} of its size"
        operands = f"operands that differ by {taken:.2g} of theirs" if taken else "the same operands"
        why = f"its result {what}, from {operands}"
        if not math.isinf(error) and error <= _GROWTH * ULPS * _rounding(row.dtype):
            why += ", as rounding may"
        culprit = _culprit(
            row,
            why,
            error=error,
            operands_error=taken,
            is_first_run=half == _FIRST,
            runs=int(self._here.integers(_ALL, index)[_RUNS]),
            expected=float(self._recorded.floats(half, index)[_LARGEST]),
            found=float(self._here.floats(half, index)[_LARGEST]),
        )
        return Named(index, culprit)


def _culprit(row: Row, why: str, **more: Any) -> Culprit:
    return Culprit(operation=row.operation, place=row.place, where=row.where, at=row.at, type=row.type, why=why, **more)


def _rounding(dtype: str) -> float:
    """The rounding of a dtype, as far as sums in float32 show it."""
    return max(epsilon(storage(dtype).dtype), epsilon(np.dtype(np.float32)))
