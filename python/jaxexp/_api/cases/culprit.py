"""The first operation that makes something else in one run than in another, from the traces of both."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np

from jaxexp import _native
from jaxexp._kernel.artifact.cases import Array, storage
from jaxexp._kernel.artifact.words import counted
from jaxexp._readback.traced import EXACT, RETURN, TRIPS, Row, Traced

from .comparing import ULPS, epsilon
from .report import Culprit

# How much more an operation may differ than what it takes: rounding grows by less in nearly all operations. And which
# part of its size at most if it takes the same: rounding of narrow floats makes less.
_GROWTH, _MOST = 16, 1 / 16
# These may be small where what they take is large.
_CANCELLING = tuple(f"stablehlo.{name}" for name in ("add", "subtract", "reduce", "reduce_window", "dot_general"))
_GIVEN, _LOOP = ("stablehlo.constant", "stablehlo.iota"), "stablehlo.while"

_UNIT = epsilon(np.dtype(np.float32))  # of the sums
_RUNS, _SPECIAL, _SUMS, _ROOT, _LARGEST = 0, 1, slice(2, 4), 4, 5
_BESIDE = 2  # the words in front of these numbers


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The fingerprints of a run.

    Attributes:
        module: the digest of the module.
        identities: int64[rows]: `Row.identity` of each row.
        counts: how many trips the loop around each row made.
        numbers: uint32[TRIPS,rows,6]: the numbers from each of the first trips.
        outermost: uint32[TRIPS,rows]: which trip of the outermost loop each of these was, from 1 on; of a case, 0.
        runs: how often each operation ran; of a case, 0.
    """

    module: bytes
    identities: Array
    counts: Array
    numbers: Array
    outermost: Array
    runs: Array

    @classmethod
    def of(cls, module: bytes, rows: Sequence[Row], table: Array) -> Trace:
        """The trace of a program that returned this table."""
        every = np.zeros((TRIPS, *table.shape[1:]), np.uint32)
        every[: len(table) - 1] = table[:-1]
        is_float = np.array([[row.is_float] for row in rows], bool)
        sums = np.where(is_float, every[..., 5:7], every[..., 3:5])
        numbers = np.concatenate([every[..., 1:3], sums, every[..., 7:]], axis=-1)
        identities = np.array([row.identity for row in rows], np.int64)
        return cls(_native.digest(module), identities, table[-1, :, 0], numbers, every[..., 0], table[-1, :, 1])

    @classmethod
    def of_case(cls, table: Any) -> Trace | None:
        """The trace that a case has; None if another release wrote it, in another form."""
        words = table.array()
        if words.shape[1] != _BESIDE + _LARGEST + 1 or len(words) < 2:
            return None
        digest, words = words[0, _BESIDE:][:4].astype("<u4").tobytes(), words[1:]
        rows = np.cumsum(words[:, 1] > 0) - 1
        firsts = np.flatnonzero(words[:, 1] > 0)
        numbers = np.zeros((TRIPS, len(firsts), _LARGEST + 1), np.uint32)
        numbers[(np.arange(len(rows)) - firsts[rows]) % TRIPS, rows] = words[:, _BESIDE:]
        counts, unknown = words[firsts, 1] - 1, np.zeros((TRIPS, len(firsts)), np.uint32)
        return cls(digest, words[firsts, 0].astype(np.int64), counts, numbers, unknown, unknown[0])

    @property
    def words(self) -> Array:
        """What a case keeps, uint32[:,8]: the digest; then for each row, its identity, 1 + its count, and its numbers,
        with more of them behind for each trip.
        """
        row, trip = np.nonzero(np.arange(TRIPS) < np.maximum(self.counts, 1)[:, None])
        about = np.stack([self.identities.astype(np.uint32), self.counts + np.uint32(1)], axis=1)[row]
        about[trip > 0] = 0
        head = np.zeros((1, _BESIDE + _LARGEST + 1), np.uint32)
        head[0, _BESIDE:][:4] = np.frombuffer(self.module, "<u4")
        return np.concatenate([head, np.concatenate([about, self.numbers[trip, row]], axis=1)])

    def for_rows_of(self, other: Trace) -> Trace:
        """This with a row for each one of another trace: as they are, if both have as many. Otherwise those of the same
        operations with the same operands; others have the identity -1, and no numbers.
        """
        if len(self.identities) == len(other.identities):
            return self
        places, both = np.full(len(other.identities), -1), (self.identities.tolist(), other.identities.tolist())
        for block in SequenceMatcher(None, *both, autojunk=False).get_matching_blocks():
            places[block.b : block.b + block.size] = np.arange(block.a, block.a + block.size)
        is_there = places >= 0
        return dataclasses.replace(
            self,
            identities=np.where(is_there, self.identities[places], -1),
            counts=self.counts[places],
            numbers=np.where(is_there[:, None], self.numbers[:, places], np.uint32(0)),
        )

    def where_as(self, again: Trace) -> Trace:
        """The same, without what was other numbers when it was run again: no run may be compared with that."""
        numbers = self.numbers.copy()
        numbers[:, (numbers != again.numbers).any(axis=(0, 2))] = 0  # as if it did not run
        return dataclasses.replace(self, numbers=numbers)


class Named(NamedTuple):
    """A row, the trip in which it differs, and what is said of its operation."""

    row: int
    trip: int
    culprit: Culprit


def with_exact(named: Named, traced: Traced, run: Trace, first: Trace, recorded: Trace) -> Culprit:
    """The operation that was named, with how far its results are from float64, by a run that has numbers only of this
    operation, also in float64, and by the first run, which named it.
    """
    plain = [index for index, row in enumerate(traced.rows) if row.operation != EXACT]
    at, row = plain[named.row], named.row
    if at + 1 == len(traced.rows) or traced.rows[at + 1].operation != EXACT:
        return named.culprit
    rows = [traced.rows[index] for index in plain]
    here, exact = (
        dataclasses.replace(first, identities=recorded.identities, numbers=first.numbers.copy()) for _ in range(2)
    )
    here.numbers[:, row], exact.numbers[:, row] = run.numbers[:, at], run.numbers[:, at + 1]
    expected, found = (float(Comparison(rows, exact, one).errors[named.trip, row]) for one in (recorded, here))
    return dataclasses.replace(named.culprit, expected_error=expected, found_error=found)


class Comparison:
    """A run and the recorded one, as far as their rows are about the same operations.

    Attributes:
        is_changed: whether the module has other operations than the recorded one.
        errors: float64[TRIPS,rows]: in each trip, by how much of its size a result differs; infinite for other
            integers, and other infinities and NaNs.
        is_to_blame: of the same shape: whether neither what the operation takes nor rounding explains that.
    """

    @np.errstate(divide="ignore")  # by the sizes of numbers so small that their squares are 0
    def __init__(self, rows: Sequence[Row], here: Trace, recorded: Trace) -> None:
        self._rows, self._here, self._recorded = rows, here, recorded.for_rows_of(here)
        is_same = here.module == recorded.module or np.array_equal(here.identities, recorded.identities)
        self.is_changed, self._more = not is_same, len(recorded.identities) - len(rows)
        both = here, self._recorded
        is_float = np.array([[row.is_float] for row in rows], bool)
        differ = both[0].numbers != both[1].numbers
        are_others = differ[..., _SPECIAL] | (differ[..., _SUMS] & ~is_float).any(axis=-1)
        floats = [np.where(is_float, run.numbers.view(np.float32), 0).astype(np.float64) for run in both]
        apart = np.where(are_others, math.inf, np.abs(floats[0] - floats[1])[..., _SUMS].max(axis=-1))
        # Of what did not run, what chose another branch is to blame.
        apart[np.minimum(*(run.numbers[..., _RUNS] for run in both)) == 0] = 0
        # What takes a result has the error relative to its size; the operation is judged by that of its operands, too.
        sizes = np.maximum(*(side[..., _ROOT] for side in floats))
        errors = np.divide(apart, sizes, out=apart.copy(), where=apart > 0)
        self._taken = np.zeros(apart.shape)
        self.errors = errors.copy()
        for index, row in enumerate(rows):
            of_all = [(taken, 0) for taken in row.takes]
            of_all += [(before, row.operation != _LOOP) for before in row.before]
            for one, ago in of_all:
                np.maximum(self._taken[:, index], self._of(errors, index, one, ago), out=self._taken[:, index])
                if row.operation in _CANCELLING:
                    np.maximum(sizes[:, index], self._of(sizes, index, one, ago), out=sizes[:, index])
        np.divide(apart, sizes, out=self.errors, where=apart > 0)
        loops = [index for index, row in enumerate(rows) if row.operation == _LOOP and row.before]
        self._trips = np.zeros((2, len(rows)), int)
        self._trips[:, loops] = [run.counts[[rows[index].before[0] for index in loops]] for run in both]
        is_loop = np.isin(np.arange(len(rows)), loops)
        has_ended = (self.errors > 0) & (self._trips[0] != self._trips[1])
        is_large = self.errors > np.maximum(_GROWTH * self._taken, [_rounding(row) for row in rows])
        is_infinite = np.isinf(self.errors) | has_ended
        self.is_to_blame = np.where(is_infinite, self._taken == 0, is_large & ~is_loop)
        self._turns_over = np.where(is_infinite, np.isfinite(self._taken), is_large)
        self._rounds = (self.errors > 0) & (self._taken == 0)

    def _of(self, values: Array, index: int, taken: int, ago: int) -> Array:
        """What a row takes of the values of another one, which may be in other loops, of so many trips ago."""
        loops, own = self._rows[taken].loops, values[:, taken]
        if loops != self._rows[index].loops[: len(loops)]:
            return np.full(TRIPS, own.max())
        trips = np.arange(TRIPS) if loops == self._rows[index].loops else self._here.outermost[:, index].astype(int) - 1
        trips = trips - ago if loops else np.zeros(TRIPS, int)
        return np.where(trips >= 0, own[np.clip(trips, 0, TRIPS - 1)], 0.0)

    def first(self) -> Named | None:
        """The first of the rows at which the run differs from the recorded one; None if they make the same."""
        return next(self._suspects(), None)

    def differences(self, named: Culprit) -> dict[tuple[str, int], tuple[float, float]]:
        """For each operation whose result differs, by how much, and how much of that neither its operands nor rounding
        explain: the most in all runs. `named` is of `first`.
        """
        own = np.where(self.is_to_blame, self.errors, 0.0).max(axis=0)
        found: dict[tuple[str, int], tuple[float, float]] = {}
        for row, *both in zip(self._rows, self.errors.max(axis=0), own, strict=False):
            if both[0] > 0:
                error, of_its_own = map(max, both, found.get(row.at, (0.0, 0.0)))
                found[row.at] = error, of_its_own
        return found | {named.at: (named.error, named.error)}

    def _suspects(self) -> Iterator[Named]:
        """The operations that may be the first to differ, the most likely one in front."""
        if self.is_changed:
            yield from self._changed()
        # A comparison makes other integers of operands that differ as rounding; then what only rounds otherwise.
        for is_it in (self.is_to_blame, self._turns_over, self._rounds):
            if found := np.argwhere(is_it).tolist():
                trip, index = min(found, key=lambda one: self._when(*one))
                yield self._carrier(trip, index) or self._blamed(trip, index)

    def _changed(self) -> Iterator[Named]:
        """The operations that the recorded module does not have, if they are why results differ."""
        is_new = self._here.identities != self._recorded.identities
        differs = self.errors > np.maximum(2 * self._taken, ULPS * _UNIT)
        for index in np.flatnonzero(is_new).tolist():
            row = self._rows[index]
            if differs[:, index].any():
                yield self._blamed(int(np.argmax(differs[:, index])), index)
            elif self._recorded.identities[index] < 0 or not (row.dtype or is_new[[*row.takes]].any()):
                what = "returns other values, or in another order"
                if row.operation != RETURN:
                    what = "is another one, or takes other operands"
                if self._more:
                    how = "are missing" if self._more > 0 else "are new"
                    what += f"; {counted(abs(self._more), 'result')} of operations {how}"
                yield Named(index, 0, _culprit(row, f"the module was changed here: it {what}"))

    def _carrier(self, trip: int, index: int) -> Named | None:
        """What hands an operand over from the trip before, if all that take it make something else, and several are to
        blame: then it is another value that it hands over, as of a loop that overwrites its state.
        """
        rows = self._rows
        for one in rows[index].before:
            takers = [at for at, row in enumerate(rows) if one in row.before and row.dtype and row.operation != _LOOP]
            carriers = [at for at, row in enumerate(rows) if row.operation == RETURN and one in row.takes]
            carriers += [at for at, row in enumerate(rows) if row.operation == _LOOP and one in row.before]
            is_blamed, others = self.is_to_blame[trip, takers], self.errors[trip, takers]
            if carriers and is_blamed.sum() > 1 and others.all():
                why = f"all {len(takers)} operations that take one of its results in the next trip make something else"
                return Named(carriers[0], trip, _culprit(rows[carriers[0]], why))
        return None

    def _when(self, trip: int, index: int) -> tuple[int, ...]:
        """What orders runs of operations by time."""
        loops = self._rows[index].loops
        outermost = (loops[0], int(self._here.outermost[trip, index])) if loops else ()
        return *outermost, *((loops[-1], trip) if len(loops) > 1 else ()), index

    def _blamed(self, trip: int, index: int) -> Named:
        row, error, taken = self._rows[index], float(self.errors[trip, index]), float(self._taken[trip, index])
        here, recorded = self._trips[:, index].tolist()
        if here != recorded:
            why = f"its condition ended it after {recorded:,} trips in the recorded run, {here:,} here"
            return Named(index, trip, _culprit(row, why))
        what = "has other numbers" if math.isinf(error) else f"differs by about {error:.2g} of its size"
        operands = f"operands that differ by {taken:.2g} of theirs" if taken else "the same operands"
        why = f"its result {what}, from {operands}"
        if self._here.identities[index] != self._recorded.identities[index]:
            why = f"the module was changed here: {why}"
        elif row.operation == _LOOP:
            why += f", which its first {TRIPS} trips do not explain"
        elif error <= _rounding(row):
            why += ", as rounding may"
        culprit = _culprit(
            row,
            why,
            error=error,
            operands_error=taken,
            run=int(self._here.numbers[: trip + 1, index, _RUNS].sum()),
            runs=int(self._here.runs[index]),
            expected=_largest(self._recorded, trip, index),
            found=_largest(self._here, trip, index),
        )
        return Named(index, trip, culprit)


def _largest(run: Trace, trip: int, index: int) -> float:
    return float(run.numbers[trip, index, _LARGEST:].view(np.float32)[0])


def _culprit(row: Row, why: str, **more: Any) -> Culprit:
    return Culprit(operation=row.operation, place=row.place, where=row.where, at=row.at, type=row.type, why=why, **more)


def _rounding(row: Row) -> float:
    """How much of its size the result of an operation differs by for rounding, if its operands are the same."""
    if not row.is_float or row.operation in _GIVEN:
        return ULPS * _UNIT
    unit = max(epsilon(storage(row.dtype).dtype), _UNIT)
    return max(unit, min(_GROWTH * ULPS * unit, _MOST))
