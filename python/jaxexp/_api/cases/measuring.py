"""Tolerances from the program itself: how large its rounding errors are, and what they become in its results.

The call is made again with arguments that differ by one unit in the last place, and so is the function in float64, as
it is and with rounding errors at random. docs/guide/check.md has the formula.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxexp._errors import UnsupportedError
from jaxexp._kernel.artifact import cases
from jaxexp._kernel.artifact.cases import MEASURED, MEASURED_BY, UNSTABLE, Array, Tolerance, integers_of
from jaxexp._kernel.artifact.words import bytes_in_words, counted, cut
from jaxexp._kernel.write.fitting import name_of

from .calling import Chain, for_jax, of_result
from .comparing import ULPS, epsilon, finfo, rounding, wide
from .machine import explained

logger = logging.getLogger("jaxexp.cases")

# Seconds that may pass without a word.
PATIENCE = 2.0
# How often the call is made again with other arguments.
RUNS = 3
# By how much a bound exceeds what was measured, which is a sample.
FACTOR = 4
# The least bound, in units of the last place.
FLOOR = 4
# Float64 is left out if arrays take more bytes than this: arguments and results, or what the compiled call needs.
MOST_BYTES = 1 << 29
# A perturbation of 2^-5 and 2^-11 of a unit in the last place; results that do not follow are not smooth there.
_SMALLER = 5, 11
_SLACK = 8
# A larger relative tolerance says that numbers near zero are not known; an absolute one says how far.
_MOST_RELATIVE = 1 / 16
_LONGEST, _MOST_NOTES = 160, 8
_WIDEST = "float64", "complex128"
# The dtypes of which arguments are moved and results are measured.
_FLOATS = "float16", "bfloat16", "float32", "complex64", *_WIDEST
# The lower half of a seed for errors; arguments have their numbers there.
_OF_ERRORS = (1 << 32) - 1


@np.errstate(all="ignore")  # of NaN, infinity and zero, which are expected
def measured(
    chain: Chain,
    order: int,
    arguments: Sequence[Array],
    results: Sequence[Array],
    paths: Sequence[str],
    wanted: Sequence[bool],
    what: str,
) -> tuple[list[Tolerance | None], dict[str, str]]:
    """Tolerances of the float results of a call, as far as they are wanted, None where there is none; and what a case
    says of them. `what` names the case in progress.
    """
    dtypes = [name_of(aval.dtype) for aval in chain.program(order).out_avals]
    chosen = [index for index, dtype in enumerate(dtypes) if wanted[index] and dtype in _FLOATS]
    tolerances: list[Tolerance | None] = [None] * len(results)
    if not chosen and not (any(wanted) and any(map(_moves, arguments))):
        return tolerances, {}
    samples = _Samples((), (), lambda _: ())
    try:
        samples, how = _Call(chain, order, arguments, results, what).samples([dtypes[index] for index in chosen])
    except Exception as error:  # of whatever runs the function
        how = cut(explained(error), _LONGEST)
    if not samples.near and not samples.exact:
        return tolerances, {MEASURED_BY: f"nothing: {how}"}
    unstable: list[str] = []
    for index, (path, dtype, recorded) in enumerate(zip(paths, dtypes, results, strict=True)):
        notes: Iterable[str] = ()
        if index in chosen:
            found = _Result(index, recorded, samples)
            tolerances[index] = tolerance = found.tolerance()
            notes = found.notes(tolerance)
        elif wanted[index] and integers_of(dtype) is not None:
            notes = _changes(index, recorded, samples)
        unstable += [f"{path} {note}" for note in notes]
    facts = {MEASURED: " ".join(map(str, chosen)), MEASURED_BY: how, UNSTABLE: "; ".join(unstable[:_MOST_NOTES])}
    return tolerances, {key: text for key, text in facts.items() if text}


def exact(chain: Chain, order: int, arguments: Sequence[Array], results: Sequence[Array]) -> list[Array]:
    """The results of a call in float64; those that were recorded say how large they are. Raises as `_Call.in_float64`
    does.
    """
    call = _Call(chain, order, arguments, results)
    dtypes = [name_of(aval.dtype) for aval in chain.program(order).out_avals]
    return call.in_float64([dtype for dtype in dtypes if dtype in _FLOATS])(call.operands)


# --- runs -------------------------------------------------------------------------------------------------------------


class _Samples(NamedTuple):
    """Results of several runs.

    Attributes:
        near: of the function, for arguments nearby; empty if it has none that can be moved.
        exact: in float64, for the arguments themselves and for those nearby; empty if it cannot be run so.
        noisy: in float64 with rounding errors, a part of them, for arguments that are that part of the way to those
            nearby, by the power of two of the part; empty if it cannot be run so.
    """

    near: Sequence[Sequence[Array]]
    exact: Sequence[Sequence[Array]]
    noisy: Callable[[int], Sequence[Sequence[Array]]]


class _Call:
    """A call that was recorded, with what it took and returned in host memory.

    Attributes:
        operands: its arguments, and in front the weights; without these if they are large, or on several devices.
    """

    def __init__(
        self, chain: Chain, order: int, arguments: Sequence[Array], results: Sequence[Array], what: str = ""
    ) -> None:
        self._chain, self._order, self._what = chain, order, what
        avals, weights = chain.exported.unbound.in_avals[: chain.weights], []
        if chain.exported.nr_devices == 1 and sum(map(_nbytes, avals)) <= MOST_BYTES:
            weights = list(map(of_result, chain.arrays, avals))
        self._weights, self.operands = len(weights), [*weights, *arguments]
        self._held = sum(array.nbytes for array in (*self.operands, *results))
        self._runs, self._said = 0, time.monotonic()

    def samples(self, dtypes: Sequence[str]) -> tuple[_Samples, str]:
        """The runs from which results of some dtypes get tolerances, and what they are in words."""
        others = [
            [perturbed(array, (run << 32) + index) for index, array in enumerate(self.operands)] for run in range(RUNS)
        ]
        near = list(map(self._again, others)) if any(map(_moves, self.operands)) else []
        try:
            run = self.in_float64(dtypes)
            exact = [run(operands) for operands in (self.operands, *others[: len(near)])]

            def noisy(power: int) -> Sequence[Sequence[Array]]:
                part = 2.0**power
                return [run(_between(self.operands, other, part), seed, part) for seed, other in enumerate(others)]

            noisy(0)
            how = f"float64, {counted(RUNS, 'run')} with rounding errors, {counted(len(near), 'perturbed run')}"
            return _Samples(near, exact, functools.cache(noisy)), how
        except Exception as error:  # of whatever runs the function
            how = f"{counted(len(near), 'perturbed run')}, not float64: {cut(explained(error), _LONGEST)}"
            return _Samples(near, (), lambda _: ()), how

    def _again(self, operands: Sequence[Array]) -> list[Array]:
        weights = operands[: self._weights] or None
        return self._done(self._chain.call(self._order, operands[self._weights :], weights))

    def in_float64(self, dtypes: Sequence[str]) -> Callable[..., list[Array]]:
        """The function in float64: of operands of any float dtype, flat with weights. An UnsupportedError if it cannot
        be read back, is too large, or has nothing to widen.
        """
        program = self._chain.program(self._order)
        if dtypes and all(dtype in _WIDEST for dtype in dtypes):
            raise UnsupportedError("the results are float64")
        if program.nr_devices > 1:
            raise UnsupportedError(f"the function is for {program.nr_devices} devices")
        if self._chain.weights != self._weights:
            raise UnsupportedError("the weights are large")
        _check_bytes("arguments and results", self._held)
        leaves = list(map(for_jax, self.operands, program.in_avals))
        function = self._chain.in_float64(self._order, leaves)
        _check_bytes("its numbers in between", function.nbytes)
        exact = function.errors(lambda count: np.zeros(count, bool), 0.0)

        def run(operands: Sequence[Array], seed: int = 0, size: float = 0.0) -> list[Array]:
            signs = functools.partial(_bools, (seed << 32) | _OF_ERRORS)
            given = [wide(x) if _part(x) is not None else leaf for x, leaf in zip(operands, leaves, strict=True)]
            results = function(given, function.errors(signs, size) if size else exact)
            return self._done(
                np.zeros(0) if result is None else of_result(result, aval)
                for result, aval in zip(results, program.out_avals, strict=True)
            )

        return run

    def _done(self, results: Iterable[Array]) -> list[Array]:
        """Says what a recording waits for, once that takes long: most of the time is the compiler's, in the first
        runs.
        """
        made = list(results)
        self._runs += 1
        if self._what and (now := time.monotonic()) - self._said >= PATIENCE:
            self._said = now
            most = max(3 * RUNS + 1, self._runs)
            said = "%s: measuring tolerances, as asked for: run %d of about %d is done"
            logger.warning(said, self._what, self._runs, most)
        return made


def _nbytes(aval: Any) -> int:
    return math.prod(aval.shape) * int(getattr(aval.dtype, "itemsize", 8))


def _check_bytes(what: str, size: int) -> None:
    if size > MOST_BYTES:
        raise UnsupportedError(f"{what} take {bytes_in_words(size)}, more than {bytes_in_words(MOST_BYTES)}")


# --- arguments nearby -------------------------------------------------------------------------------------------------


def _part(array: Array) -> np.dtype[Any] | None:
    """The integers with the bits of a float, or of the parts of a complex number; None for other arrays."""
    if array.dtype.name not in _FLOATS:
        return None
    return np.dtype(f"u{array.dtype.itemsize // (2 if array.dtype.kind == 'c' else 1)}")


def _moves(array: Array) -> bool:
    return _part(array) is not None and bool(np.any(array != 0))


@np.errstate(all="ignore")
def perturbed(array: Array, seed: int) -> Array:
    """A float array with every number one unit in the last place away, up or down; zeros, infinities and NaN stay.

    Other arrays stay as they are. The same seed gives the same array everywhere.
    """
    part = _part(array)
    if part is None or not array.size:
        return array
    floats = np.ascontiguousarray(array).reshape(-1).view(array.real.dtype if array.dtype.kind == "c" else array.dtype)
    up = _bools(seed, floats.size)
    # The bits of a float count up with its magnitude.
    raw, one = floats.view(part), part.type(1)
    other = np.where(up, raw + one, raw - one).view(floats.dtype)
    moves = np.isfinite(other) & np.isfinite(floats) & (floats != 0)
    return np.where(moves, other, floats).view(array.dtype).reshape(array.shape)


def _bools(seed: int, count: int) -> Array:
    """Bools at random: the bits of whole numbers of 32 bits, as cases draw them, from the lowest one."""
    words = cases.draw(cases.INTEGERS, seed, 0, 1 << 32, ((count + 31) // 32,), np.uint32)
    return np.unpackbits(words.astype("<u4").view(np.uint8), count=count, bitorder="little").astype(bool)


def _between(operands: Sequence[Array], near: Sequence[Array], part: float) -> list[Array]:
    """Operands in float64 that are this part of the way to others."""

    def moved(array: Array, other: Array) -> Array:
        if _part(array) is None:
            return array
        start = wide(array)
        return np.where(array == other, start, start + (wide(other) - start) * part)

    return list(map(moved, operands, near))


# --- one result -------------------------------------------------------------------------------------------------------


_NEARBY = "arguments change by one unit in the last place"


def _changes(index: int, recorded: Array, samples: _Samples) -> Iterator[str]:
    """What a reader has to know of a result of integers."""
    others = [run[index] for run in (*samples.near, *samples.exact, *samples.noisy(0))]
    if changed := max((np.count_nonzero(other != recorded) for other in others), default=0):
        yield f"may change ({changed:,} of {recorded.size:,} numbers) when {_NEARBY}"


class _Result:
    """A result of floats in all runs.

    Attributes:
        errors: how far each run is from its run in float64; empty without float64.
        shifts: how far each run nearby is from the call itself: both in float64 if there is one.
        jump: the least change that does not follow the arguments; 0 if all do.
    """

    def __init__(self, index: int, recorded: Array, samples: _Samples) -> None:
        self._index, self._dtype, self._samples = index, recorded.dtype, samples
        held = wide(recorded)
        self._is_finite = np.isfinite(held)
        self._sizes = np.where(self._is_finite, np.abs(held), 0.0)
        self._largest = float(self._sizes.max(initial=0.0))
        self._smallest = float(finfo(recorded.dtype).smallest_normal)
        self._near, self._exact = [wide(run[index]) for run in samples.near], [run[index] for run in samples.exact]
        self.errors: list[Array] = []
        self.jump = 0.0
        if self._exact and recorded.dtype.name not in _WIDEST:
            self.errors = list(map(self._distance, (held, *self._near), self._exact))
            self.shifts = self._shifts(0)
            self._drop_jumps()
        else:
            self.shifts = [self._distance(run, held) for run in self._near]

    def _distance(self, one: Array, other: Array) -> Array:
        """How far finite numbers are apart; what only underflows is not."""
        apart = np.abs(one - other)
        return np.where(np.isfinite(apart) & self._is_finite & (apart > self._smallest), apart, 0.0)

    def _shifts(self, power: int) -> list[Array]:
        return [self._distance(run[self._index], self._exact[0]) for run in self._samples.noisy(power)]

    def _drop_jumps(self) -> None:
        """Leaves out runs in which the result does not follow the arguments: there, it depends on a decision."""
        loose = rounding(self._dtype) * self._largest
        most = [float(shift.max(initial=0.0)) for shift in self.shifts]
        if max(most) <= loose:
            return
        tiny = [[float(shift.max(initial=0.0)) for shift in self._shifts(-power)] for power in _SMALLER]
        jumps = [whole > loose and not _is_smooth(whole, *of_run) for whole, *of_run in zip(most, *tiny, strict=True)]
        if any(jumps):
            self.jump = min(itertools.compress(most, jumps))
            self.shifts = [shift for shift, is_jump in zip(self.shifts, jumps, strict=True) if not is_jump]
            self.errors = [np.where(e.max(initial=0.0) >= self.jump / 2, 0.0, e) for e in self.errors]

    def tolerance(self) -> Tolerance:
        """The tolerance: relative, or absolute if that is much tighter for the largest number."""
        zero = np.zeros(self._sizes.shape)
        spread = functools.reduce(np.maximum, self.errors, zero) + functools.reduce(np.maximum, self.shifts, zero)
        largest = FACTOR * float(spread.max(initial=0.0))
        if not self.errors:
            return Tolerance(0.0, _rounded(largest + rounding(self._dtype) * self._largest))
        ulp = epsilon(self._dtype)
        absolute = largest + FLOOR * ulp * self._largest
        parts = np.where(spread > 0, spread / self._sizes, 0.0)
        relative = FACTOR * float(parts.max(initial=0.0)) + FLOOR * ulp
        if relative < _MOST_RELATIVE and relative * self._largest <= FLOOR * absolute:
            return Tolerance(_rounded(relative), _rounded(self._smallest))
        return Tolerance(0.0, _rounded(absolute))

    def notes(self, tolerance: Tolerance) -> Iterator[str]:
        """What a reader of the tolerance has to know."""
        if any(np.any(self._is_finite & ~np.isfinite(run)) for run in self._near):
            yield f"becomes NaN or infinite when {_NEARBY}"
        if self._exact and np.any(~self._is_finite & np.isfinite(self._exact[0])):
            yield "is NaN or infinite where it is not in float64"
        if self.jump:
            yield (
                f"jumps by {self.jump:.2g} when {_NEARBY}, because a comparison or a rounding goes the other way. The "
                "tolerance does not cover this"
            )
        if self._largest:
            left = (tolerance.absolute + tolerance.relative * self._largest) / self._largest
            unit = epsilon(self._dtype)
            if left > max(math.sqrt(unit), ULPS * unit):
                digits, every = (max(0, math.floor(-math.log10(part))) for part in (left, unit))
                yield f"keeps {digits} of {every} digits: rounding errors take the others"


def _is_smooth(whole: float, closer: float, closest: float) -> bool:
    """Whether a change of a result follows that of the arguments: in proportion, where they change little."""
    near, nearest = _SMALLER
    expected = closest * 2.0 ** (nearest - near)
    is_smooth = expected / _SLACK <= closer <= expected * _SLACK
    return is_smooth and whole <= _SLACK * _SLACK * closest * 2.0**nearest


def _rounded(number: float) -> float:
    """A number with two digits, rounded up."""
    if number <= 0 or not math.isfinite(number):
        return max(0.0, min(number, float(np.finfo(np.float64).max)))
    return float(f"{number * (1 + 5e-2):.1e}")
