"""Random numbers that every release draws alike, bit for bit: docs/formats/cases.md defines them.

They come from Philox4x32-10, whose counter is the number of a block, so that each number can be drawn by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

NORMAL, UNIFORM, INTEGERS = "normal", "uniform", "integers"
DISTRIBUTIONS = (NORMAL, UNIFORM, INTEGERS)  # by their numbers in a trailer

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_LOW, _HALF, _16, _32 = np.uint64(0xFFFFFFFF), np.uint64(0xFFFF), np.uint64(16), np.uint64(32)
_SCALE = float.fromhex("0x1.3988e1409212ep+0")  # the root of 3/2, for a deviation of 1
_AT_ONCE = 1 << 14  # numbers, so that what is computed of them stays in caches


def philox(counter: Sequence[np.ndarray], key: tuple[int, int]) -> list[np.ndarray]:
    """Four words of 32 bits for each counter of four such words; all of them in arrays of uint64."""
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (second >> _32) ^ b ^ np.uint64(left),
            second & _LOW,
            (first >> _32) ^ d ^ np.uint64(right),
            first & _LOW,
        )
        left, right = (left + _WEYL[0]) & 0xFFFFFFFF, (right + _WEYL[1]) & 0xFFFFFFFF
    return [a, b, c, d]


def _blocks(seed: int, start: int, count: int) -> list[np.ndarray]:
    """The words of some blocks: four arrays."""
    number = np.arange(start, start + count, dtype=np.uint64)
    zero = np.zeros_like(number)
    return philox((number & _LOW, number >> _32, zero, zero), (seed & 0xFFFFFFFF, seed >> 32))


def _wide(seed: int, start: int, count: int) -> np.ndarray:
    """Numbers of 64 bits, of which a block has two."""
    first = start // 2
    a, b, c, d = _blocks(seed, first, (start + count + 1) // 2 - first)
    wide: np.ndarray = np.stack((a | (b << _32), c | (d << _32)), axis=1).reshape(-1)[start % 2 :][:count]
    return wide


def _some(distribution: str, seed: int, first: float, second: float, start: int, count: int) -> np.ndarray:
    """The numbers from `start` on: float64, or int64 for integers."""
    if distribution == NORMAL:
        halves = [half for word in _blocks(seed, start, count) for half in (word & _HALF, word >> _16)]
        total = sum(halves[1:], start=halves[0]).astype(np.int64) + (4 - (1 << 18))
        standard: np.ndarray = total.astype(np.float64) * 2.0**-16 * _SCALE
        return first + second * standard
    wide = _wide(seed, start, count)
    if distribution == UNIFORM:
        return first + (second - first) * ((wide >> np.uint64(11)).astype(np.float64) * 2.0**-53)
    low, high = int(first), int(second)
    return (wide % np.uint64(high - low)).astype(np.int64) + low


def draw(distribution: str, seed: int, first: float, second: float, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array of a dtype of NumPy, or of `ml_dtypes`."""
    dtype = np.dtype(dtype)
    array = np.empty(shape, dtype)
    flat: Any = array.reshape(-1)
    if dtype.kind == "c":  # real and imaginary parts are numbers of their own
        flat = flat.view(np.float32 if dtype.itemsize == 8 else np.float64)
    # What has less than 32 bits is rounded to float32 first.
    is_narrow = flat.dtype.kind not in "biu" and flat.dtype.itemsize < 4
    for start in range(0, flat.size, _AT_ONCE):
        count = min(_AT_ONCE, flat.size - start)
        some = _some(distribution, seed, first, second, start, count)
        with np.errstate(over="ignore"):
            flat[start : start + count] = (some.astype(np.float32) if is_narrow else some).astype(flat.dtype)
    return array
