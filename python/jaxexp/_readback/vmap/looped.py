"""A mapped call as a loop: one call after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxexp import _jax
from jaxexp._readback.array_type import is_wide

from .mapped import Level, repeated


def loop(call: Callable[..., Sequence[Any]], level: Level, arrays: Sequence[Any]) -> list[Any]:
    """Runs `call` for each element along one axis, and stacks or sums its results."""
    if not any(level.batched):
        return repeated(call(*arrays), level)

    def element(slices: Sequence[Any]) -> Sequence[Any]:
        rest = iter(slices)
        return call(*(next(rest) if has_axis else array for array, has_axis in zip(arrays, level.batched, strict=True)))

    whole = [array for array, has_axis in zip(arrays, level.batched, strict=True) if has_axis]
    mesh = jax.typeof(whole[0]).sharding.mesh
    # A loop runs over an axis that is not sharded.
    whole = [reshaped(array, array.shape, None, *partitions(array)[1:], mesh=mesh) for array in whole]
    types = jax.make_jaxpr(element)([jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in whole]).out_avals
    # A function may return 64-bit arrays although JAX is set to make 32-bit ones.
    with jax.enable_x64(bool(jax.config.read("jax_enable_x64")) or any(map(is_wide, types))):
        return _filled(element, level, whole, types)


def _filled(element: Callable[..., Sequence[Any]], level: Level, whole: list[Any], types: Sequence[Any]) -> list[Any]:
    begun = [
        jax.numpy.zeros(type_.shape, type_.dtype) if is_summed else _rows(level.size, whole, type_)
        for type_, is_summed in zip(types, level.summed, strict=True)
    ]

    def step(carry: list[Any], at: tuple[Any, list[Any]]) -> tuple[list[Any], list[Any]]:
        index, slices = at
        carried: list[Any] = []
        stacked: list[Any] = []
        for before, result, is_summed in zip(carry, element(slices), level.summed, strict=True):
            if is_summed:
                carried.append(lax.add(before, result))
            elif before is not None:
                carried.append(lax.dynamic_update_index_in_dim(before, result, index, 0))
            else:
                carried.append(None)
            stacked.append(result if before is None else None)
        return carried, stacked

    filled, stacked = lax.scan(step, begun, (jax.numpy.arange(level.size), whole))
    return [s if f is None else f for f, s in zip(filled, stacked, strict=True)]


def _rows(size: Any, arrays: Sequence[Any], result: Any) -> Any:
    """An array for the loop to fill with results; None leaves it to JAX, which makes one of zeros.

    It is made from the values of an argument, so the compiler, which follows the data flow, shards both over a mesh in
    the same way.
    """
    if any(_jax.AxisType.Explicit in jax.typeof(array).sharding.mesh.axis_types for array in arrays):
        return None
    like = next((array for array in arrays if _is_number(jax.typeof(array)) and 0 not in array.shape), None)
    if like is None or not _is_number(result):
        return None
    like = lax.slice(like, [0] * like.ndim, [size, *[1] * (like.ndim - 1)]).reshape(size)
    if _jax.issubdtype(like.dtype, np.complexfloating):
        like = like.real
    return lax.broadcast_in_dim(like.astype(result.dtype), (size, *result.shape), (0,))


def _is_number(aval: Any) -> bool:
    """Whether arrays contain numbers and are on the device."""
    on_device = aval.memory_space == _jax.MemorySpace.Device
    return on_device and (aval.dtype == bool or _jax.issubdtype(aval.dtype, np.number))


def partitions(array: Any) -> tuple[Any, ...]:
    """For each dimension of an array, the axes of an Explicit mesh that it is sharded over, or None."""
    partitions = tuple(jax.typeof(array).sharding.spec)
    return (*partitions, *[None] * (np.ndim(array) - len(partitions)))


def reshaped(array: Any, shape: Sequence[Any], *partitions: Any, mesh: Any) -> Any:
    """An array in another shape and, if types say how arrays are sharded over the mesh, with another sharding.

    If a mesh axis would appear twice, the first dimension gets it.
    """
    if _jax.AxisType.Explicit not in mesh.axis_types or array.dtype == _jax.float0:
        return array.reshape(shape)
    seen: set[Any] = set()
    unique = []
    for names in partitions:
        names = names if isinstance(names, tuple) else (names,)
        unique.append(tuple(name for name in names if name is not None and name not in seen) or None)
        seen.update(names)
    sharding = jax.typeof(array).sharding
    wanted = _jax.NamedSharding(mesh, sharding.spec.update(partitions=tuple(unique)))
    if array.shape != tuple(shape):
        return jax.lax.reshape(array, shape, out_sharding=wanted)
    return array if sharding == wanted else jax.sharding.reshard(array, wanted)
