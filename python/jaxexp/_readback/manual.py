"""`jax.shard_map`: code that each device runs with its parts of the arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from typing import Any

import jax

from jaxexp import _jax

from .axis_indices import makes_only
from .operation import Many, Operation
from .placement import Dimension, Sharding, mesh_inside, placed, read
from .program import Block
from .refused import RefusedError


def manual_computation(operation: Operation) -> Many | Block:
    axes = operation.plain("manual_axes", _names)
    before, after = (
        operation.plain(name, lambda attribute: _shardings(operation, attribute))
        for name in ("in_shardings", "out_shardings")
    )
    mesh, *others = {operation.mesh(sharding.mesh) for sharding in (*before, *after)} or {None}
    if mesh is None or others:
        operation.refuse("whose arrays are not all on one mesh")
    block = operation.manual_region(0, mesh.update_axis_types(dict.fromkeys(axes, _jax.AxisType.Manual)))
    # For a place along an axis, JAX makes the other axes manual, too.
    if math.prod(mesh.shape[name] for name in axes) == 1 or (not before and makes_only(block, mesh.manual_axes)):
        return block
    enter, in_specs = _parts(operation, before, mesh, axes)
    leave, out_specs = _parts(operation, after, mesh, axes)

    def run(*arrays: Any) -> Sequence[Any]:
        mapped = jax.shard_map(
            lambda *parts: tuple(block(parts)),
            mesh=_with_devices(mesh_inside(mesh), {*axes}),
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names={*axes},
            check_vma=False,  # a module does not say which values are equal on all devices
        )
        return _each(leave, mapped(*_each(enter, arrays)))

    return Many(run)


def _with_devices(mesh: Any, axes: Set[str]) -> Any:
    """The mesh, with the devices of the mesh that the caller has set: JAX would lower the code for that mesh's axes.

    Raises:
        RefusedError: JAX would do so nevertheless.
    """
    there = _jax.mesh_in_context.value
    if there is None or there.size != mesh.size or there.shape_tuple == mesh.shape_tuple:
        return mesh
    if axes < {*mesh.axis_names}:
        raise RefusedError("sdy.manual_computation", "over some axes, where jax.set_mesh has set a mesh of other axes")
    return _jax.Mesh(there.devices.reshape(mesh.axis_sizes), mesh.axis_names, mesh.axis_types)


def _each(places: Sequence[Callable[[Any], Any] | None], arrays: Sequence[Any]) -> list[Any]:
    return [array if place is None else place(array) for place, array in zip(places, arrays, strict=True)]


def _names(attribute: Any) -> tuple[str, ...]:
    axes: Any = _jax.sdy.ManualAxesAttr(attribute)
    return tuple(map(str, axes))


def _shardings(operation: Operation, attribute: Any) -> tuple[Sharding, ...]:
    return tuple(read(operation, one) for one in _jax.sdy.TensorShardingPerValueAttr(attribute).shardings)


def _parts(
    operation: Operation, shardings: Sequence[Sharding], mesh: Any, axes: Sequence[str]
) -> tuple[list[Callable[[Any], Any] | None], tuple[Any, ...]]:
    """How the compiler places each array, and how `jax.shard_map` divides it."""
    has_others = any(mesh.shape[name] > 1 for name in {*mesh.axis_names} - {*axes, *mesh.manual_axes})
    places, specs = [], []
    for _, dimensions in shardings:
        specs.append(_jax.PartitionSpec(*(tuple(name for name in d.axes if name in axes) or None for d in dimensions)))
        # The other axes are the compiler's, unless it is told which of them to use for a dimension.
        said = [Dimension((), False) if not d.is_closed and {*d.axes} <= {*axes} else d for d in dimensions]
        places.append(placed(operation, mesh, said) if has_others else None)
    return places, tuple(specs)
