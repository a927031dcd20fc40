"""`jax.vmap` of exported functions: one call for a declared batch dimension, otherwise one call after the other."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, UnsupportedError
from jaxexp._function.data import ExportedData
from jaxexp._module import batch_dim

from .primitive import abstract_eval, call_exported_p, pushforward_p


def _batching_rule(primitive: Any) -> Callable[..., Any]:
    def rule(
        axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, exported: ExportedData, **params: Any
    ) -> tuple[Any, Any]:
        wrt, batch = params.get("wrt"), batch_dim.of(exported)
        led = None if batch is None else (batch.arguments, batch.results)
        results = params.get("results")
        if led is not None and wrt is not None:  # element i of a tangent goes with element i of what it is a tangent of
            led = (*led[0], *(led[0][i] for i in wrt)), led[1]
        if led is not None and results is not None:
            led = led[0], tuple(led[1][i] for i in results)

        def fits(avals: Sequence[Any]) -> bool:
            assert batch is not None
            try:
                abstract_eval(*avals[: len(exported.in_avals)], exported=batch.constrained)
            except ExportError:
                return False
            return True

        bind = functools.partial(primitive.bind, exported=exported, **params)
        return _run(bind, axis_data, args, dims, led, fits, exported)

    return rule


def _run(
    bind: Callable[..., Sequence[Any]],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[int | None],
    led: tuple[Sequence[bool], Sequence[bool]] | None,
    fits: Callable[[Sequence[Any]], bool],
    exported: ExportedData,
) -> tuple[Sequence[Any], Sequence[int | None]]:
    """Applies `bind` to each element of a batch: the whole of a batching rule.

    Args:
        bind: the operation for one element.
        axis_data: what JAX says about the mapped axis.
        args: the arguments, some of them batched.
        dims: the mapped axis of each argument, None for those that are not batched.
        led: which arguments and which results the batch dimension leads; None without one.
        fits: whether `bind` takes arguments of these abstract values.
        exported: the function, for messages.
    """
    if args:
        args, dims = zip(*map(_without_batch_of_float0, args, dims), strict=True)
    batched = [dim is not None for dim in dims]
    if not any(batched):
        results = bind(*args)
        return results, [None] * len(results)
    if exported.ordered_effects:
        effects = ", ".join(sorted(type(effect).__name__ for effect in exported.ordered_effects))
        raise UnsupportedError(
            f"vmap of {exported.fun_name}: it has ordered effects ({effects}), "
            "and the elements of a batch have no order. Call it in a loop, such as jax.lax.scan"
        )
    mesh = next(jax.typeof(arg).sharding.mesh for arg, dim in zip(args, dims, strict=True) if dim is not None)
    axis = _MappedAxis(axis_data.size, mesh, axis_data.explicit_mesh_axis, axis_data.spmd_name)
    stacked = [arg if dim is None else jax.numpy.moveaxis(arg, dim, 0) for arg, dim in zip(args, dims, strict=True)]
    if led is not None and _can_fold(axis.size, stacked, batched, led[0], fits):
        results = _fold(bind, axis, stacked, batched, *led)
    else:
        results = _loop(bind, axis, stacked, batched)
    return results, [0] * len(results)


def _without_batch_of_float0(arg: Any, dim: int | None) -> tuple[Any, int | None]:
    """All arrays of dtype float0 are alike, because they have no content."""
    if dim is None or arg.dtype != _jax.float0:
        return arg, dim
    return np.zeros((*arg.shape[:dim], *arg.shape[dim + 1 :]), _jax.float0), None


@dataclasses.dataclass(frozen=True, slots=True)
class _MappedAxis:
    size: Any
    mesh: Any  # of the batched arguments; an empty one if they have none
    explicit: Any  # the axes of an Explicit mesh that it is sharded over, or None
    spmd: Any  # the axes of an Auto mesh that the caller of vmap wants it sharded over, or None

    def place(self, result: Any) -> Any:
        """A stacked result, sharded over this axis as JAX would shard it."""
        if self.explicit is not None:
            return _reshaped(result, result.shape, self.explicit, *_partitions(result)[1:], mesh=self.mesh)
        if self.spmd is not None and _are_auto_axes(self.spmd):
            unconstrained = [_jax.PartitionSpec.UNCONSTRAINED] * (result.ndim - 1)
            return jax.lax.with_sharding_constraint(result, _jax.PartitionSpec(self.spmd, *unconstrained))
        return result


def _are_auto_axes(names: Sequence[Any]) -> bool:
    mesh = jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return all(types.get(name) == _jax.AxisType.Auto for name in names)


def _partitions(array: Any) -> tuple[Any, ...]:
    """For each dimension of an array the axes of an Explicit mesh that it is sharded over, or None."""
    partitions = tuple(jax.typeof(array).sharding.spec)
    return (*partitions, *[None] * (np.ndim(array) - len(partitions)))


def _reshaped(array: Any, shape: Sequence[Any], *partitions: Any, mesh: Any) -> Any:
    """An array in another shape and, where types tell how arrays are sharded over the mesh, sharded in another way.

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


def _loop(
    bind: Callable[..., Sequence[Any]], axis: _MappedAxis, args: Sequence[Any], batched: Sequence[bool]
) -> Sequence[Any]:
    """One call after the other, because the function did not declare a batch dimension."""

    def call(slices: Sequence[Any]) -> Any:
        rest = iter(slices)
        return bind(*(next(rest) if is_batched else arg for arg, is_batched in zip(args, batched, strict=True)))

    def step(rows: list[Any], at: tuple[Any, list[Any]]) -> tuple[list[Any], list[Any]]:
        index, slices = at
        results = call(slices)
        filled = [
            row if row is None else jax.lax.dynamic_update_index_in_dim(row, result, index, 0)
            for row, result in zip(rows, results, strict=True)
        ]
        return filled, [result if row is None else None for row, result in zip(rows, results, strict=True)]

    whole = [arg for arg, is_batched in zip(args, batched, strict=True) if is_batched]
    # A loop runs over an axis that is not sharded.
    whole = [_reshaped(arg, arg.shape, None, *_partitions(arg)[1:], mesh=axis.mesh) for arg in whole]
    slices = [jax.ShapeDtypeStruct(arg.shape[1:], arg.dtype) for arg in whole]
    rows = [_rows(axis, whole, result) for result in jax.make_jaxpr(call)(slices).out_avals]
    filled, stacked = jax.lax.scan(step, rows, (jax.numpy.arange(axis.size), whole))
    return [axis.place(s if f is None else f) for f, s in zip(filled, stacked, strict=True)]


def _rows(axis: _MappedAxis, args: Sequence[Any], result: Any) -> Any:
    """An array for the loop to fill with results; None leaves it to JAX, which makes one of zeros.

    It is made from the values of an argument. So the compiler shards both in the same way over Auto axes of a mesh,
    where it only follows the data flow.
    """
    like = next((arg for arg in args if _is_number(jax.typeof(arg)) and 0 not in arg.shape), None)
    if like is None or not _is_number(result) or _jax.AxisType.Explicit in axis.mesh.axis_types:
        return None
    like = jax.lax.stop_gradient(like)
    like = jax.lax.slice(like, [0] * like.ndim, [axis.size, *[1] * (like.ndim - 1)]).reshape(axis.size)
    if _jax.issubdtype(like.dtype, np.complexfloating):
        like = like.real
    return jax.lax.broadcast_in_dim(like.astype(result.dtype), (axis.size, *result.shape), (0,))


def _is_number(aval: Any) -> bool:
    """Whether arrays are of numbers, and on the device."""
    on_device = aval.memory_space == _jax.MemorySpace.Device
    return on_device and (aval.dtype == bool or _jax.issubdtype(aval.dtype, np.number))


def _can_fold(
    size: Any,
    args: Sequence[Any],
    batched: Sequence[bool],
    led: Sequence[bool],
    fits: Callable[[Sequence[Any]], bool],
) -> bool:
    """Whether the function takes a batch that is `size` times as long."""
    avals = []
    for arg, is_batched, is_led in zip(args, batched, led, strict=True):
        if is_batched and not is_led:
            return False
        shape = arg.shape[1:] if is_batched else np.shape(arg)
        shape = (size * shape[0], *shape[1:]) if is_led else shape
        avals.append(_jax.ShapedArray(shape, jax.typeof(arg).dtype))
    return fits(avals)


def _fold(
    bind: Callable[..., Sequence[Any]],
    axis: _MappedAxis,
    args: Sequence[Any],
    batched: Sequence[bool],
    led_args: Sequence[bool],
    led_results: Sequence[bool],
) -> Sequence[Any]:
    """One call, with the mapped axis folded into the batch dimension."""
    length = next(arg.shape[is_batched] for arg, is_batched, led in zip(args, batched, led_args, strict=True) if led)

    def folded(arg: Any, is_batched: bool, is_led: bool) -> Any:
        if not is_led:
            return arg
        inner = arg.shape[1 + is_batched :]
        if arg.dtype == _jax.float0:
            return np.zeros((axis.size * length, *inner), _jax.float0)
        if not is_batched:
            arg = jax.numpy.broadcast_to(arg, (axis.size, *arg.shape))
        over_axis, over_batch, *rest = _partitions(arg)
        return _reshaped(arg, (axis.size * length, *inner), over_axis or over_batch, *rest, mesh=axis.mesh)

    def unfolded(result: Any, is_led: bool) -> Any:
        if not is_led or result.dtype == _jax.float0:
            return np.zeros((axis.size, *([length, *result.shape[1:]] if is_led else result.shape)), _jax.float0)
        shape = axis.size, length, *result.shape[1:]
        return axis.place(_reshaped(result, shape, axis.explicit, *_partitions(result), mesh=axis.mesh))

    return list(map(unfolded, bind(*map(folded, args, batched, led_args)), led_results))


_jax.fancy_primitive_batchers[call_exported_p] = _batching_rule(call_exported_p)
_jax.fancy_primitive_batchers[pushforward_p] = _batching_rule(pushforward_p)
