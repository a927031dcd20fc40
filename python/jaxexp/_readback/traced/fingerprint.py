"""What a trace keeps of an array that an operation makes: some numbers, whatever its size.

They are a checksum of where elements are infinite or no numbers; two checksums of integers, or two sums of floats, each
element with a random weight that depends on its place; the root of the sum of their squares; and the largest element.
If two runs make the same but for rounding, so are the sums but for as small a part of the root. Other arrays have other
sums, unless somebody chose them so.

Inside a program, a table is uint32[trips + 1,rows,9], with floats as their bits. It has a row for each result of an
operation, from each of the first trips of the loop around it. In front are two more numbers: which trip of the
outermost loop that was, from 1 on; and how often the operation ran in it, which is not always if it is in a branch.
Behind these trips is the number of all trips, and how often the operation ran in them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

TRIPS = 32  # that are kept apart
COLUMNS = 9
_COUNTS, _CHECKS, _FLOATS = slice(0, 2), slice(2, 5), slice(5, 9)
# What is larger counts as infinite: so neither sums overflow, nor do masks hide what is beside them.
_LARGEST = np.float32(1e15)
_ODD = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77), np.uint32(0xC2B2AE3D)


def _mixed(numbers: Any, factor: np.uint32) -> Any:
    """Numbers that look random: a permutation of uint32."""
    numbers = (numbers + np.uint32(1)) * factor
    numbers = numbers ^ (numbers >> np.uint32(15))
    numbers = numbers * np.uint32(0x2C1B3C6D)
    return numbers ^ (numbers >> np.uint32(13))


def _weights(index: Any, factor: np.uint32) -> Any:
    """Weights between -1 and 1."""
    return lax.convert_element_type(_mixed(index, factor), np.float32) * np.float32(2**-31) - np.float32(1)


def of_arrays(*arrays: Any, trips: int) -> Any:
    """The table of arrays of one type, of any dtype and static shape, which are not empty."""
    x = jnp.stack([lax.reshape(one, (one.size,)) for one in arrays])
    if jnp.issubdtype(x.dtype, np.complexfloating):
        x = jnp.concatenate([lax.real(x), lax.imag(x)], axis=1)
    index = lax.broadcasted_iota(np.uint32, x.shape, 1)
    values = lax.convert_element_type(x, np.float32)
    none: Any = jnp.zeros(len(arrays), np.uint32)
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
        floats, checks = [jnp.zeros(len(arrays), np.float32)] * 3, [none, *sums]
    numbers = [_of_floats(one) for one in (*floats, jnp.where(high >= -low, high, low))]
    once = jnp.stack([none, none + np.uint32(1), *checks, *numbers], axis=1)
    return nothing(len(arrays), trips, 1).at[0].add(once).at[-1, :, 1].set(1)


def _of_floats(floats: Any) -> Any:
    return lax.bitcast_convert_type(floats, np.uint32)


def _floats(table: Any) -> Any:
    return lax.bitcast_convert_type(table[..., _FLOATS], np.float32)


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


def repeated(times: Any, table: Any, new: Any) -> tuple[Any, Any]:
    """How many trips a loop has made, and its table, after one more trip: `times` is the number before, uint32[]."""
    times, count = times + np.uint32(1), table[-1, :, 0]
    firsts = new[:-1].at[..., 0].set(jnp.where(new[:-1, :, 0] > 0, times, np.uint32(0)))
    # Of a loop inside, one trip out here adds several.
    trip = lax.broadcasted_iota(np.uint32, firsts.shape[:2], 0)
    place = jnp.minimum(trip - count, np.uint32(len(firsts) - 1))
    moved = jnp.take_along_axis(firsts, place[..., None], axis=0)
    firsts = jnp.where((trip < count)[..., None], table[:-1], moved)
    return times, jnp.concatenate([firsts, (table[-1] + new[-1])[None]])


def of_devices(table: Any, devices: int) -> Any:
    """The table of code that several devices run, from their tables, one behind the other.

    Each device has a weight of its own, so that what two of them exchange is seen.
    """
    table = table.reshape(devices, len(table) // devices, *table.shape[1:])
    number = lax.iota(np.uint32, devices)[:, None, None, None]
    floats, checks = _floats(table), table[..., _CHECKS] * (_mixed(number, _ODD[1]) | np.uint32(1))
    weights = np.float32(1) + np.float32(0.5) * _weights(number, _ODD[0])
    roots, extremes = floats[..., 2:3], floats[..., 3:]
    largest, least = extremes.max(0), extremes.min(0)
    parts = [
        (floats[..., :2] * weights).sum(0),
        jnp.sqrt((roots * roots).sum(0)),
        jnp.where(largest >= -least, largest, least),
    ]
    return jnp.concatenate(
        [table[..., _COUNTS].max(0), checks.sum(0, dtype=np.uint32), *map(_of_floats, parts)], axis=-1
    )


def in_order(table: Any, order: tuple[int, ...]) -> Any:
    """A table with its rows in another order."""
    return jnp.take(table, np.array(order), axis=1)


def nothing(rows: int, trips: int, count: int) -> Any:
    """The table of operations that did not run, in one trip or none."""
    table = np.zeros((trips + 1, rows, COLUMNS), np.uint32)
    table[[0, -1], :, 0] = count
    return jnp.asarray(table)


def aval(rows: int, trips: int) -> Any:
    """What a table of so many rows is."""
    return jax.ShapeDtypeStruct((trips + 1, rows, COLUMNS), np.uint32)
