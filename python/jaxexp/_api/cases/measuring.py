"""Tolerances from the program itself: how large its rounding errors are, and what they become in its results.

The call is made again with arguments that differ by one unit in the last place, and so is the function in float64, as
it is and with rounding errors at random. docs/guide/check.md has the formula.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxexp._errors import UnsupportedError
from jaxexp._kernel.artifact import cases
from jaxexp._kernel.artifact.cases import MEASURED, MEASURED_BY, UNSTABLE, Array, Tolerance, integers_of
from jaxexp._kernel.artifact.words import bytes_in_words, counted, cut
from jaxexp._kernel.write.fitting import name_of

from .calling import Chain, for_jax, of_result
from .comparing import ULPS, epsilon, rounding
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


class Measured(NamedTuple):
    """Tolerances for results, None where there is none; and what a case says of them."""

    tolerances: list[Tolerance | None]
    facts: dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Call:
    """A call that was recorded.

    Attributes:
        chain: the function.
        order: which VJP of it.
        weights, arguments: what it was called with, in host memory.
        results: what it returned.
        done: called after each run.
    """

    chain: Chain
    order: int
    weights: Sequence[Array]
    arguments: Sequence[Array]
    results: Sequence[Array]
    done: Callable[[], None] = lambda: None

    @property
    def operands(self) -> Sequence[Array]:
        return *self.weights, *self.arguments

    def near(self, run: int) -> list[Array]:
        """The operands, one unit in the last place away."""
        return [perturbed(array, (run << 32) + index) for index, array in enumerate(self.operands)]

    def again(self, operands: Sequence[Array]) -> list[Array]:
        count = len(self.weights)
        results = self.chain.call(self.order, operands[count:], operands[:count] or None)
        self.done()
        return results


class _Progress:
    """Says what a recording waits for, once that takes long: most of the time is the compiler's, in the first runs."""

    def __init__(self, what: str) -> None:
        self._what, self._runs, self._said = what, 0, time.monotonic()

    def __call__(self) -> None:
        self._runs += 1
        if (now := time.monotonic()) - self._said >= PATIENCE:
            self._said = now
            logger.warning(
                "%s: measuring tolerances, as asked for: run %d of about %d is done",
                self._what, self._runs, max(3 * RUNS + 1, self._runs),
            )  # fmt: skip


@np.errstate(all="ignore")  # of NaN, infinity and zero, which are expected
def measured(
    chain: Chain,
    order: int,
    arguments: Sequence[Array],
    results: Sequence[Array],
    paths: Sequence[str],
    wanted: Sequence[bool],
    what: str = "",
) -> Measured:
    """Tolerances of the float results of a call, as far as they are wanted. `what` names the case in progress."""
    avals = chain.program(order).out_avals
    dtypes = [name_of(aval.dtype) for aval in avals]
    chosen = [is_wanted and _is_float(dtype) for is_wanted, dtype in zip(wanted, dtypes, strict=True)]
    nothing = Measured([None] * len(results), {})
    if not any(chosen) and not (any(wanted) and any(map(_moves, arguments))):
        return nothing
    try:
        weights, done = _weights(chain), _Progress(what)
        call = _Call(chain=chain, order=order, weights=weights, arguments=arguments, results=results, done=done)
        samples, how = _samples(call, [dtype for dtype, is_chosen in zip(dtypes, chosen, strict=True) if is_chosen])
    except Exception as error:  # of whatever runs the function
        return nothing._replace(facts={MEASURED_BY: f"nothing: {cut(explained(error), _LONGEST)}"})
    if not samples.near and not samples.exact:
        return nothing._replace(facts={MEASURED_BY: f"nothing: {how}"})
    tolerances: list[Tolerance | None] = []
    unstable: list[str] = []
    for index, (path, dtype) in enumerate(zip(paths, dtypes, strict=True)):
        found = _Result(index, dtype, results[index], samples)
        tolerances.append(found.tolerance() if chosen[index] else None)
        if wanted[index]:
            unstable += [f"{path} {note}" for note in found.notes(tolerances[-1])]
    which = " ".join(str(index) for index, is_chosen in enumerate(chosen) if is_chosen)
    facts = {MEASURED: which, MEASURED_BY: how, UNSTABLE: "; ".join(unstable[:_MOST_NOTES])}
    return Measured(tolerances, {key: text for key, text in facts.items() if text})


def exact(chain: Chain, order: int, arguments: Sequence[Array], results: Sequence[Array]) -> list[Array]:
    """The results of a call in float64; those that were returned say how large they are.

    Raises:
        UnsupportedError: the function cannot be read back, is too large, or has nothing to widen.
        Exception: whatever JAX raises.
    """
    call = _Call(chain=chain, order=order, weights=_weights(chain), arguments=arguments, results=results)
    dtypes = [name_of(aval.dtype) for aval in chain.program(order).out_avals]
    return _in_float64(call, [dtype for dtype in dtypes if _is_float(dtype)])(call.operands)


def _is_float(dtype: str) -> bool:
    return dtype in _FLOATS


def _weights(chain: Chain) -> list[Array]:
    """The weights in host memory, where they can be perturbed; none if they are large, or on several devices."""
    avals = chain.exported.unbound.in_avals[: chain.weights]
    if chain.exported.nr_devices > 1 or sum(map(_nbytes, avals)) > MOST_BYTES:
        return []
    return [of_result(array, aval) for array, aval in zip(chain.arrays(), avals, strict=True)]


def _nbytes(aval: Any) -> int:
    return math.prod(aval.shape) * int(getattr(aval.dtype, "itemsize", 8))


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Samples:
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


def _samples(call: _Call, dtypes: Sequence[str]) -> tuple[_Samples, str]:
    others = [call.near(run) for run in range(RUNS)]
    near = [call.again(operands) for operands in others] if any(map(_moves, call.operands)) else []
    try:
        run = _in_float64(call, dtypes)
        exact = [run(operands) for operands in (call.operands, *others[: len(near)])]

        def noisy(power: int) -> Sequence[Sequence[Array]]:
            part = 2.0**power
            return [run(_between(call.operands, other, part), seed, part) for seed, other in enumerate(others)]

        noisy(0)
        how = f"float64, {counted(RUNS, 'run')} with rounding errors, {counted(len(near), 'perturbed run')}"
        return _Samples(near=near, exact=exact, noisy=functools.cache(noisy)), how
    except Exception as error:  # of whatever runs the function
        how = f"{counted(len(near), 'perturbed run')}, not float64: {cut(explained(error), _LONGEST)}"
        return _Samples(near=near, exact=(), noisy=lambda _: ()), how


def _in_float64(call: _Call, dtypes: Sequence[str]) -> Callable[..., list[Array]]:
    """The function in float64: of operands of any float dtype, flat with weights.

    Raises:
        UnsupportedError: it cannot be read back, is too large, or has nothing to widen.
        Exception: whatever JAX raises.
    """
    program = call.chain.program(call.order)
    if dtypes and all(dtype in _WIDEST for dtype in dtypes):
        raise UnsupportedError("the results are float64")
    if program.nr_devices > 1:
        raise UnsupportedError(f"the function is for {program.nr_devices} devices")
    if call.chain.weights != len(call.weights):
        raise UnsupportedError("the weights are large")
    held = sum(array.nbytes for array in (*call.operands, *call.results))
    _check_bytes("arguments and results", held)
    leaves = [for_jax(array, aval) for array, aval in zip(call.operands, program.in_avals, strict=True)]
    function = call.chain.in_float64(call.order, leaves)
    _check_bytes("its numbers in between", function.nbytes)
    exact = function.errors(lambda count: np.zeros(count, bool), 0.0)

    def run(operands: Sequence[Array], seed: int = 0, size: float = 0.0) -> list[Array]:
        signs = functools.partial(_bools, (seed << 32) | _OF_ERRORS)
        given = [_wide(x) if _part(x) is not None else leaf for x, leaf in zip(operands, leaves, strict=True)]
        results = function(given, function.errors(signs, size) if size else exact)
        arrays = [
            np.zeros(0) if result is None else of_result(result, aval)
            for result, aval in zip(results, program.out_avals, strict=True)
        ]
        call.done()
        return arrays

    return run


def _check_bytes(what: str, size: int) -> None:
    if size > MOST_BYTES:
        raise UnsupportedError(f"{what} take {bytes_in_words(size)}, more than {bytes_in_words(MOST_BYTES)}")


# --- arguments nearby -------------------------------------------------------------------------------------------------


def _part(array: Array) -> np.dtype[Any] | None:
    """The integers with the bits of a float, or of the parts of a complex number; None for other arrays."""
    if not _is_float(array.dtype.name):
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
        start = _wide(array)
        return np.where(array == other, start, start + (_wide(other) - start) * part)

    return [moved(array, other) for array, other in zip(operands, near, strict=True)]


# --- one result -------------------------------------------------------------------------------------------------------


class _Result:
    """One result in all runs.

    Attributes:
        errors: how far each run is from its run in float64; empty without float64.
        shifts: how far each run nearby is from the call itself: both in float64 if there is one.
    """

    def __init__(self, index: int, dtype: str, recorded: Array, samples: _Samples) -> None:
        self._index, self._dtype, self._samples = index, dtype, samples
        self._recorded = recorded
        self._near, self._exact = [[run[index] for run in runs] for runs in (samples.near, samples.exact)]
        self._is_float = _is_float(dtype)
        self.jump = 0.0
        if self._is_float:
            self._measure()

    def _measure(self) -> None:
        recorded = _wide(self._recorded)
        self._is_finite = np.isfinite(recorded)
        self._sizes = np.where(self._is_finite, np.abs(recorded), 0.0)
        self._largest = float(self._sizes.max(initial=0.0))
        runs = [recorded, *map(_wide, self._near)]
        if not self._exact or self._dtype in _WIDEST:
            self.errors: list[Array] = []
            self.shifts = [self._distance(run, recorded) for run in runs[1:]]
            return
        self.errors = [self._distance(run, wide) for run, wide in zip(runs, self._exact, strict=True)]
        self.shifts = self._shifts(0)
        self._drop_jumps()

    def _distance(self, one: Array, other: Array) -> Array:
        """How far finite numbers are apart; what only underflows is not."""
        apart = np.abs(one - other)
        return np.where(np.isfinite(apart) & self._is_finite & (apart > self._smallest), apart, 0.0)

    @functools.cached_property
    def _smallest(self) -> float:
        return float(jax.numpy.finfo(self._recorded.dtype).smallest_normal)

    def _shifts(self, power: int) -> list[Array]:
        return [self._distance(run[self._index], self._exact[0]) for run in self._samples.noisy(power)]

    def _drop_jumps(self) -> None:
        """Leaves out runs in which the result does not follow the arguments: there, it depends on a decision."""
        loose = rounding(self._recorded.dtype) * self._largest
        if all(shift.max(initial=0.0) <= loose for shift in self.shifts):
            return
        tiny = [[float(shift.max(initial=0.0)) for shift in self._shifts(-power)] for power in _SMALLER]
        jumps = [
            shift.max() > loose and not _is_smooth(float(shift.max()), *of_run)
            for shift, *of_run in zip(self.shifts, *tiny, strict=True)
        ]
        if any(jumps):
            self.jump = min(float(shift.max()) for shift, is_jump in zip(self.shifts, jumps, strict=True) if is_jump)
            self.shifts = [shift for shift, is_jump in zip(self.shifts, jumps, strict=True) if not is_jump]
            of_jump = [error.max(initial=0.0) >= self.jump / 2 for error in self.errors]
            self.errors = [np.where(is_jump, 0.0, e) for e, is_jump in zip(self.errors, of_jump, strict=True)]

    def tolerance(self) -> Tolerance:
        """The tolerance: relative, or absolute if that is much tighter for the largest number."""
        zero = np.zeros(self._sizes.shape)
        spread = functools.reduce(np.maximum, self.errors, zero) + functools.reduce(np.maximum, self.shifts, zero)
        ulp = epsilon(self._recorded.dtype)
        if not self.errors:
            by_default = rounding(self._recorded.dtype) * self._largest
            return Tolerance(0.0, _rounded(FACTOR * float(spread.max(initial=0.0)) + by_default))
        absolute = FACTOR * float(spread.max(initial=0.0)) + FLOOR * ulp * self._largest
        parts = np.where(spread > 0, spread / self._sizes, 0.0)
        relative = FACTOR * float(parts.max(initial=0.0)) + FLOOR * ulp
        if relative < _MOST_RELATIVE and relative * self._largest <= FLOOR * absolute:
            return Tolerance(_rounded(relative), _rounded(self._smallest))
        return Tolerance(0.0, _rounded(absolute))

    def notes(self, tolerance: Tolerance | None) -> Iterator[str]:
        """What a reader of the tolerance has to know."""
        nearby = "arguments change by one unit in the last place"
        if not self._is_float:
            if integers_of(self._dtype) is not None:
                others = [*self._near, *self._exact, *(run[self._index] for run in self._samples.noisy(0))]
                changed = max((np.count_nonzero(other != self._recorded) for other in others), default=0)
                if changed:
                    yield f"may change ({changed:,} of {self._recorded.size:,} numbers) when {nearby}"
            return
        if any(np.any(self._is_finite & ~np.isfinite(run)) for run in map(_wide, self._near)):
            yield f"becomes NaN or infinite when {nearby}"
        if self._exact and np.any(~self._is_finite & np.isfinite(self._exact[0])):
            yield "is NaN or infinite where it is not in float64"
        if self.jump:
            yield (
                f"jumps by {self.jump:.2g} when {nearby}, because a comparison or a rounding goes the other way. The "
                "tolerance does not cover this"
            )
        if tolerance is not None and self._largest:
            left = (tolerance.absolute + tolerance.relative * self._largest) / self._largest
            unit = epsilon(self._recorded.dtype)
            if left > max(math.sqrt(unit), ULPS * unit):
                digits, every = (max(0, math.floor(-math.log10(part))) for part in (left, unit))
                yield f"keeps {digits} of {every} digits: rounding errors take the others"


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


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
