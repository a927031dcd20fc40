"""How a result differs from the one that was recorded: bits, units in the last place, numbers, NaNs and infinities."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxexp._kernel.artifact.cases import FLOAT0, Array, Tolerance, integers_of, storage
from jaxexp._kernel.artifact.words import dtype_and_shape

from .report import CLOSE, DIFFERS, EQUAL, Compared

# Without a tolerance, how far two runs of a function may differ, in units of the last place of a result's largest
# number. Narrow floats may differ by at most this part of that number, or by one unit.
ULPS, MOST = 64, 1 / 64


def compared(path: str, dtype: str, expected: Array, found: Array, tolerance: Tolerance | None, whose: str) -> Compared:
    """Compares a result with the recorded one. `tolerance` is None for the default of the dtype; `whose` says who gave
    it.
    """
    about: dict[str, Any] = {
        "path": path,
        "dtype": dtype,
        "shape": expected.shape,
        "tolerance": tolerance,
        "tolerance_of": whose,
    }
    if expected.shape != found.shape or expected.dtype != found.dtype:
        before, after = (dtype_and_shape(one.dtype, one.shape) for one in (expected, found))
        return Compared(**about, verdict=DIFFERS, why=f"recorded {before}, found {after}")
    if dtype == FLOAT0 or np.array_equal(_words(expected), _words(found)):
        return Compared(**about, verdict=EQUAL, size=expected.size)
    if integers_of(dtype) is not None:
        return _integers(about, expected, found)
    return _floats(about, expected, found)


def _words(array: Array) -> Array:
    """Its bits in as few numbers as they fit."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return raw if raw.size % 8 else raw.view(np.uint64)


def _place(array: Array, index: int) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(index, array.shape)))


def _integers(about: dict[str, Any], expected: Array, found: Array) -> Compared:
    """Integers, bools and random keys, which a tolerance may allow to differ if it was given."""
    before, after = expected.reshape(-1), found.reshape(-1)
    differ = before != after
    distances = np.zeros(differ.shape)  # of numbers of any width
    distances[differ] = [float(abs(int(a) - int(b))) for a, b in zip(after[differ], before[differ], strict=True)]
    tolerance = about["tolerance"] or Tolerance()
    allowed = tolerance.absolute + tolerance.relative * np.abs(before.astype(np.float64))
    wrong = differ & (distances > allowed)
    worst = int(np.argmax(np.where(wrong, distances, -1) if wrong.any() else distances))
    return Compared(
        **about,
        verdict=DIFFERS if wrong.any() else CLOSE,
        size=expected.size,
        differing=int(np.count_nonzero(wrong)),
        unequal=int(np.count_nonzero(differ)),
        max_absolute=float(distances.max()),
        at=_place(expected, worst),
        expected=str(before[worst]),
        found=str(after[worst]),
        allowed=float(allowed[worst]),
    )


def _floats(about: dict[str, Any], expected: Array, found: Array) -> Compared:
    is_complex = expected.dtype.kind == "c"
    before, after = wide(expected).reshape(-1), wide(found).reshape(-1)
    parts = before.view(np.float64), after.view(np.float64)  # a complex number has two
    both_nan = np.isnan(parts[0]) & np.isnan(parts[1])
    for part in parts:
        part[both_nan] = 0  # and equal; what is left of a complex number is compared
    other_nans = np.isnan(before) | np.isnan(after)
    infinite = (np.isinf(before) | np.isinf(after)) & ~other_nans
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        other_infinities = infinite & (before != after)
        is_finite = ~(other_nans | infinite)
        distances = np.where(is_finite, np.abs(after - before), 0.0)
        magnitudes = np.minimum(np.abs(before), np.finfo(np.float64).max)  # those of complex numbers may overflow
        sizes = np.where(is_finite, magnitudes, 0.0)
        relative = np.where(distances > 0, distances / sizes, 0.0)
        tolerance = about["tolerance"]
        if tolerance is None:
            largest = np.max(np.where(np.isfinite(before), magnitudes, 0.0), initial=0.0)
            allowed = np.full(distances.shape, rounding(expected.dtype) * float(largest))
        else:
            allowed = tolerance.absolute + tolerance.relative * sizes
        excess = np.where(distances > allowed, distances / np.maximum(allowed, np.finfo(np.float64).tiny), 0.0)
    pattern = other_nans | other_infinities
    wrong = pattern | (distances > allowed)
    unequal = pattern | (is_finite & (distances > 0))
    # The worst: where patterns differ, else what is furthest beyond the tolerance, else furthest from the recorded one.
    worst = int(np.argmax(pattern if pattern.any() else excess if wrong.any() else distances))
    return Compared(
        **about,
        verdict=DIFFERS if wrong.any() else CLOSE,
        size=expected.size,
        differing=int(np.count_nonzero(wrong)),
        unequal=int(np.count_nonzero(unequal)),
        nans=int(np.count_nonzero(other_nans)),
        infinities=int(np.count_nonzero(other_infinities)),
        max_absolute=float(distances.max()),
        max_relative=float(relative.max()),
        max_ulps=_ulps(about["dtype"], expected, found, np.repeat(is_finite, 1 + is_complex) & ~both_nan),
        at=_place(expected, worst),
        expected=str(expected.reshape(-1)[worst]),
        found=str(found.reshape(-1)[worst]),
        allowed=float(allowed[worst]),
    )


def wide(array: Array) -> Array:
    """Floats as float64, complex numbers as complex128: a copy."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def rounding(dtype: np.dtype[Any]) -> float:
    """How far floats may differ without a tolerance, as a part of the largest number."""
    unit = epsilon(dtype)
    return max(unit, min(ULPS * unit, MOST))


def epsilon(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next float."""
    return float(finfo(dtype).eps)


def finfo(dtype: np.dtype[Any]) -> Any:
    if dtype.isbuiltin != 2:  # which is for dtypes of packages
        return np.finfo(dtype)
    import ml_dtypes  # whose dtype it is

    return ml_dtypes.finfo(dtype)


# How many bits of a byte a number takes, and whether one of them is a sign.
_LAYOUTS = {"float4_e2m1fn": (4, True), "float8_e8m0fnu": (8, False)}


def _ulps(dtype: str, expected: Array, found: Array, is_compared: Array) -> int:
    """The largest number of floats that lie between two that should be equal; of complex numbers, for their parts."""
    part = storage(dtype).dtype
    if part.kind == "c":
        part = np.dtype(np.float32 if part.itemsize == 8 else np.float64)
    bits, is_signed = _LAYOUTS.get(dtype, (8 * part.itemsize, True))
    sides = []
    for array in (expected, found):
        raw = np.ascontiguousarray(array).reshape(-1).view(f"u{part.itemsize}")[is_compared].astype(np.uint64)
        sign = np.uint64(1 << (bits - 1) if is_signed else 0)
        sides.append((raw & ~sign, (raw & sign) != 0))
    (left, left_minus), (right, right_minus) = sides
    apart = np.where(left > right, left - right, right - left)
    between = np.where(left_minus == right_minus, apart, left + right)
    return int(between.max(initial=0))
