"""What a trace keeps of an array that an operation makes: six numbers, whatever its size.

They are how often the operation ran; a checksum of where elements are infinite or no numbers; two sums of the elements,
each with a random weight that depends on its place, or two checksums where elements are integers; the root of the sum
of their squares; and the largest element. If two runs make the same but for rounding, so are the sums but for as small
a part of the root. Other arrays have other sums, unless somebody chose them so.

Inside a program, a table of fingerprints is float32[2,rows,4] and uint32[2,rows,4]. It has a row for each result of
an operation, of the first time that it ran, and of all times.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

FLOATS, INTEGERS = 4, 4
# What is larger counts as infinite: so neither sums overflow, nor do masks hide what is beside them.
_LARGEST = np.float32(1e15)
_ODD = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77), np.uint32(0xC2B2AE3D)
_EACH_TIME = np.uint32(0x01000193)  # what checksums are multiplied by before those of the next time are added


def _mixed(numbers: Any, factor: np.uint32) -> Any:
    """Numbers that look random: a permutation of uint32."""
    numbers = (numbers + np.uint32(1)) * factor
    numbers = numbers ^ (numbers >> np.uint32(15))
    numbers = numbers * np.uint32(0x2C1B3C6D)
    return numbers ^ (numbers >> np.uint32(13))


def _weights(index: Any, factor: np.uint32) -> Any:
    """Weights between -1 and 1."""
    return lax.convert_element_type(_mixed(index, factor), np.float32) * np.float32(2**-31) - np.float32(1)


def of_arrays(*arrays: Any) -> tuple[Any, Any]:
    """The fingerprints of arrays of one type, of any dtype and static shape, which are not empty, as a table."""
    x = jnp.stack([lax.reshape(one, (one.size,)) for one in arrays])
    if jnp.issubdtype(x.dtype, np.complexfloating):
        x = jnp.concatenate([lax.real(x), lax.imag(x)], axis=1)
    rows = len(arrays)
    index = lax.broadcasted_iota(np.uint32, x.shape, 1)
    values = lax.convert_element_type(x, np.float32)
    none: Any = jnp.zeros(rows, np.uint32)
    if jnp.issubdtype(x.dtype, np.floating):
        is_plain = lax.abs(values) < _LARGEST
        kind = jnp.where(values > 0, np.uint32(1), np.uint32(2)) + jnp.where(
            values != values, np.uint32(4), np.uint32(0)
        )
        special = jnp.where(is_plain, np.uint32(0), kind * _mixed(index, _ODD[2]))
        values = jnp.where(is_plain, values, np.float32(0))
        parts = [*(values * _weights(index, odd) for odd in _ODD[:2]), values * values, special]
        high, low, *sums, squares, special = _reduced(values, parts)
        floats, checks = [*sums, jnp.sqrt(squares)], [special, none, none]
    else:
        bits = _bits(x)
        high, low, *sums = _reduced(values, [_mixed(bits ^ _mixed(index, odd), odd) for odd in _ODD[:2]])
        floats, checks = [jnp.zeros(rows, np.float32)] * 3, [none, *sums]
    table = jnp.stack([*floats, jnp.where(high >= -low, high, low)], axis=1)
    integers = jnp.stack([none + np.uint32(1), *checks], axis=1)
    return jnp.broadcast_to(table, (2, rows, FLOATS)), jnp.broadcast_to(integers, (2, rows, INTEGERS))


def _reduced(values: Any, parts: list[Any]) -> Any:
    """The largest value, the least, and sums of the parts, in one pass: compilers take long for many."""

    def both(a: Any, b: Any) -> Any:
        sums = [x + y for x, y in zip(a[2:], b[2:], strict=True)]
        return lax.max(a[0], b[0]), lax.min(a[1], b[1]), *sums

    start = -np.float32(np.inf), np.float32(np.inf), *(np.zeros((), part.dtype)[()] for part in parts)
    return lax.reduce((values, values, *parts), start, both, (1,))


def _bits(integers: Any) -> Any:
    """Integers and truth values as uint32, equal only for equal ones, but for few of 64 bits."""
    if integers.dtype.itemsize < 8:
        return lax.convert_element_type(integers, np.uint32)
    wide = lax.convert_element_type(integers, np.uint64)
    high = lax.convert_element_type(wide >> np.uint64(32), np.uint32)
    return lax.convert_element_type(wide, np.uint32) ^ _mixed(high, _ODD[2])


def repeated(times: Any, floats: Any, integers: Any, new_floats: Any, new_integers: Any) -> tuple[Any, ...]:
    """The table of a loop after one more trip, and how many trips there were: `times` is the number before, uint32[].

    Each trip has a weight of its own, so that what two of them exchange is seen.
    """
    weight = np.float32(1) - np.float32(0.5) * lax.convert_element_type(
        _mixed(times, _ODD[0]), np.float32
    ) * np.float32(2**-32)
    sums = floats[1, :, :3] + weight * new_floats[1, :, :3]
    old, new = floats[1, :, 3:], new_floats[1, :, 3:]
    all_floats = jnp.concatenate([sums, jnp.where(lax.abs(new) > lax.abs(old), new, old)], axis=1)
    runs = integers[1, :, :1] + new_integers[1, :, :1]
    checks = integers[1, :, 1:] * _EACH_TIME + new_integers[1, :, 1:]
    all_integers = jnp.concatenate([runs, checks], axis=1)
    # What a later trip reaches for the first time, such as a branch, has its first run there.
    is_new = integers[0, :, :1] == 0
    return (
        times + np.uint32(1),
        jnp.stack([jnp.where(is_new, new_floats[0], floats[0]), all_floats]),
        jnp.stack([jnp.where(is_new, new_integers[0], integers[0]), all_integers]),
    )


def of_devices(floats: Any, integers: Any) -> tuple[Any, Any]:
    """The table of code that several devices run, from their tables: float32[2*devices,rows,4] and the same of uint32.

    Each device has a weight of its own, so that what two of them exchange is seen.
    """
    devices = floats.shape[0] // 2
    floats, integers = (table.reshape(devices, 2, *table.shape[1:]) for table in (floats, integers))
    number = lax.iota(np.uint32, devices)[:, None, None, None]
    weights = np.float32(1) + np.float32(0.5) * _weights(number, _ODD[0])
    roots, extremes = floats[..., 2:3], floats[..., 3:]
    largest, least = extremes.max(0), extremes.min(0)
    root = jnp.sqrt((roots * roots).sum(0))
    table = [(floats[..., :2] * weights).sum(0), root, jnp.where(largest >= -least, largest, least)]
    checks = integers[..., 1:] * (_mixed(number, _ODD[1]) | np.uint32(1))
    counted = [integers[..., :1].max(0), checks.sum(0, dtype=np.uint32)]
    return jnp.concatenate(table, axis=-1), jnp.concatenate(counted, axis=-1)


def in_order(floats: Any, integers: Any, order: tuple[int, ...]) -> tuple[Any, Any]:
    """A table with its rows in another order."""
    places = np.array(order)
    return jnp.take(floats, places, axis=1), jnp.take(integers, places, axis=1)


def nothing(rows: int) -> tuple[Any, Any]:
    """The table of operations that did not run."""
    return jnp.zeros((2, rows, FLOATS), np.float32), jnp.zeros((2, rows, INTEGERS), np.uint32)


def avals(rows: int) -> tuple[Any, Any]:
    """What a table of so many rows is."""
    return (
        jax.ShapeDtypeStruct((2, rows, FLOATS), np.float32),
        jax.ShapeDtypeStruct((2, rows, INTEGERS), np.uint32),
    )
