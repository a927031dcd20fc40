"""`jax.vmap` of exported functions: one call for a declared batch dimension, otherwise a mapped call."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, UnsupportedError
from jaxexp._kernel.call.primitive import check
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.module import batch_dim

from . import mapped_lowering  # noqa: F401  (registers a rule)
from .looped import partitions, reshaped
from .mapped import Element, Level, mapped_p


def batch_call(
    primitive: Any, axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, exported: ExportedData, **params: Any
) -> tuple[Any, Any]:
    """The rule of `call_exported_p` and of `pushforward_p`."""
    wrt, batch = params.get("wrt"), batch_dim.of(exported)
    led = None if batch is None else (batch.arguments, batch.results)
    results = params.get("results")
    if led is not None and wrt is not None:  # element i of a tangent belongs to element i of its primal
        led = (*led[0], *(led[0][i] for i in wrt)), led[1]
    if led is not None and results is not None:
        led = led[0], tuple(led[1][i] for i in results)

    def fits(avals: Sequence[Any]) -> bool:
        try:
            check(exported, avals[: len(exported.in_avals)])
        except ExportError:
            return False
        return True

    bind = functools.partial(primitive.bind, exported=exported, **params)
    element = Element(exported, wrt, tuple(range(len(exported.out_avals)) if results is None else results))
    return _run(bind, axis_data, args, dims, led, fits, element, ())


def _batch_mapped(
    axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, element: Element, levels: tuple[Level, ...]
) -> tuple[Any, Any]:
    """Adds one axis around the axes that are already mapped."""
    bind = functools.partial(mapped_p.bind, element=element, levels=levels)
    return _run(bind, axis_data, args, dims, None, lambda _: False, element, levels)


def _run(
    bind: Callable[..., Sequence[Any]],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[int | None],
    led: tuple[Sequence[bool], Sequence[bool]] | None,
    fits: Callable[[Sequence[Any]], bool],
    element: Element,
    levels: tuple[Level, ...],
) -> tuple[Sequence[Any], Sequence[int | None]]:
    """Applies `bind` to each element of a batch: the common part of the batching rules.

    Args:
        bind: the operation without the axis.
        axis_data: what JAX says about the mapped axis.
        args: the arguments, some of them batched.
        dims: the mapped axis of each argument, None for those that are not batched.
        led: which arguments and results have the batch dimension in front; None without one.
        fits: whether `bind` takes arguments of these abstract values.
        element: what `bind` does for each element.
        levels: the axes that are already mapped.
    """
    exported = element.exported
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
        level = Level(axis.size, tuple(batched), (False,) * len(element.results), axis.spmd)
        results = list(map(axis.place, mapped_p.bind(*stacked, element=element, levels=(level, *levels))))
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
            return reshaped(result, result.shape, self.explicit, *partitions(result)[1:], mesh=self.mesh)
        if self.spmd is not None and _are_auto_axes(self.spmd):
            unconstrained = [_jax.PartitionSpec.UNCONSTRAINED] * (result.ndim - 1)
            return jax.lax.with_sharding_constraint(result, _jax.PartitionSpec(self.spmd, *unconstrained))
        return result


def _are_auto_axes(names: Sequence[Any]) -> bool:
    mesh = jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return all(types.get(name) == _jax.AxisType.Auto for name in names)


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
        over_axis, over_batch, *rest = partitions(arg)
        return reshaped(arg, (axis.size * length, *inner), over_axis or over_batch, *rest, mesh=axis.mesh)

    def unfolded(result: Any, is_led: bool) -> Any:
        if not is_led or result.dtype == _jax.float0:
            return np.zeros((axis.size, *([length, *result.shape[1:]] if is_led else result.shape)), _jax.float0)
        shape = axis.size, length, *result.shape[1:]
        return axis.place(reshaped(result, shape, axis.explicit, *partitions(result), mesh=axis.mesh))

    return list(map(unfolded, bind(*map(folded, args, batched, led_args)), led_results))


_jax.fancy_primitive_batchers[mapped_p] = _batch_mapped
