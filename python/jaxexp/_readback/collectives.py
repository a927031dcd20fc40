"""Collectives: operations in which the devices of a `jax.shard_map` exchange data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.core import Tracer

from jaxexp import _jax

from .elementwise import check_kinds
from .operation import Many, Operation

# JAX's collectives that combine values, and for which kinds of numbers they do only that.
_REDUCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "stablehlo.add": (lax.psum, "iufc"),
    "stablehlo.maximum": (lax.pmax, "biuf"),
    "stablehlo.minimum": (lax.pmin, "biuf"),
}


class _Groups(NamedTuple):
    """Which devices exchange data: those along these mesh axes, or only those at these places along them."""

    axes: tuple[str, ...]
    places: list[list[int]] | None
    size: int

    @property
    def options(self) -> dict[str, Any]:
        return {"axis_name": self.axes, "axis_index_groups": self.places}


def all_reduce(operation: Operation) -> Many | None:
    groups = _groups(operation)
    combine = _reduction(operation)
    if groups is None:
        return None
    return Many(lambda *xs: [combine(_traced(x), **groups.options) for x in xs])


def reduce_scatter(operation: Operation) -> Many | None:
    groups, dimension = _groups(operation), operation.integer("scatter_dimension")
    if _reduction(operation) is not lax.psum:
        operation.refuse("that does not add")
    if groups is None:
        return None
    return Many(lambda x: [lax.psum_scatter(x, scatter_dimension=dimension, tiled=True, **groups.options)])


def all_gather(operation: Operation) -> Many | None:
    groups, dimension = _groups(operation), operation.integer("all_gather_dim")
    if groups is None:
        return None
    return Many(lambda *xs: [lax.all_gather(x, axis=dimension, tiled=True, **groups.options) for x in xs])


def all_to_all(operation: Operation) -> Many | None:
    groups = _groups(operation, numbers_devices=True)
    split, concat = operation.integer("split_dimension"), operation.integer("concat_dimension")
    if operation.integer("split_count") != (1 if groups is None else groups.size):
        operation.refuse("into other parts than one for each device")
    if groups is None:
        return None
    options: dict[str, Any] = {"split_axis": split, "concat_axis": concat, "tiled": True, **groups.options}
    return Many(lambda *xs: [lax.all_to_all(x, **options) for x in xs])


def collective_permute(operation: Operation) -> Callable[..., Any] | None:
    pairs = operation.matrix("source_target_pairs")
    if not _has_channel(operation):
        operation.refuse(_OF_REPLICAS)
    if pairs == ((0, 0),) and not operation.is_partitioned:
        return None
    axes, places = _along(operation, pairs)
    return lambda x: lax.ppermute(x, axes, places)


def partition_id(operation: Operation) -> Callable[..., Any]:
    """The number of the device: its place along all axes of the mesh."""
    mesh = operation.manual
    if mesh is not None and len(mesh.manual_axes) == len(mesh.axis_names):
        return lambda: lax.convert_element_type(lax.axis_index(mesh.axis_names), np.uint32)
    if operation.is_partitioned:
        operation.refuse(_OUTSIDE)
    return lambda: np.zeros((), np.uint32)


def replica_id(operation: Operation) -> Callable[..., Any]:
    """The number of the replica: JAX runs a module as one."""
    return lambda: np.zeros((), np.uint32)


_OUTSIDE = "outside of a jax.shard_map over the mesh axes that it needs"
_OF_REPLICAS = "among replicas, of which JAX has one"


def _reduction(operation: Operation) -> Callable[..., Any]:
    name = operation.closed_region(0).only_operation()
    if name not in _REDUCTIONS:
        operation.refuse("whose reduction is none of JAX's: psum, pmax, pmin")
    function, kinds = _REDUCTIONS[name]
    check_kinds(operation, kinds)
    return function


def _traced(x: Any) -> Any:
    """A value that JAX traces. Of a constant, `psum` would return a product, which may be rounded otherwise."""
    return x if isinstance(x, Tracer) else lax.optimization_barrier(x)


def _has_channel(operation: Operation) -> bool:
    if not operation.has("channel_handle"):
        return False
    return operation.plain("channel_handle", lambda attribute: bool(_jax.hlo.ChannelHandle(attribute).handle > 0))


def _groups(operation: Operation, *, numbers_devices: bool = False) -> _Groups | None:
    """The groups of a collective; None if each device is a group by itself, so that nothing is exchanged.

    Args:
        operation: the collective.
        numbers_devices: whether its groups have the numbers of devices if it has a channel; otherwise it has to say so.
    """
    has_channel = _has_channel(operation)
    if operation.has("use_global_device_ids"):
        operation.ignore("use_global_device_ids")
        numbers_devices = True
    if has_channel and not numbers_devices:
        operation.refuse("whose groups do not have the numbers of devices")
    if operation.is_a("replica_groups", _jax.hlo.ReplicaGroupMeshAxesAttr):
        groups = _of_mesh_axes(operation)
    else:
        lists = operation.matrix("replica_groups")
        groups = None
        if any(len(devices) != 1 for devices in lists) or not lists:
            axes, places = _along(operation, lists)
            size = len(lists[0])
            whole = [list(range(size))]
            groups = _Groups(axes, None if places == whole else places, size)
    if groups is not None and not has_channel:
        operation.refuse(_OF_REPLICAS)
    return groups


def _of_mesh_axes(operation: Operation) -> _Groups | None:
    def read(attribute: Any) -> tuple[str, tuple[str, ...]]:
        said: Any = _jax.hlo.ReplicaGroupMeshAxesAttr(attribute)
        axes = [_jax.hlo.AxisRefAttr(axis) for axis in said.axes]
        if any(axis.sub_axis_info is not None for axis in axes):
            operation.refuse("over parts of a mesh axis")
        return str(said.mesh).removeprefix("@"), tuple(axis.name for axis in axes)

    name, axes = operation.plain("replica_groups", read)
    mesh = operation.mesh(name)
    size = math.prod(mesh.shape[name] for name in axes)
    if size == 1:
        return None
    if not {*axes} <= {*mesh.manual_axes}:
        operation.refuse(_OUTSIDE)
    return _Groups(axes, None, size)


def _along(operation: Operation, lists: Sequence[Sequence[int]]) -> tuple[tuple[str, ...], list[list[int]]]:
    """Lists of devices as lists of places along mesh axes, which are the same wherever one is on the other axes."""
    mesh = operation.manual
    if mesh is None:
        operation.refuse(_OUTSIDE)
    devices, manual = np.array(lists), tuple(name for name in mesh.axis_names if name in mesh.manual_axes)
    if not devices.size or devices.min() < 0 or devices.max() >= mesh.size:
        operation.refuse("whose devices are not all on its mesh")
    for axes in (_axes_between(mesh, devices), manual):
        if axes and {*axes} <= {*manual} and (places := _places(mesh, axes, devices)) is not None:
            return axes, places
    return operation.refuse("among devices that no mesh axes of its jax.shard_map connect")


def _axes_between(mesh: Any, devices: Any) -> tuple[str, ...]:
    """The axes along which the devices of a list lie, in the order in which the list goes through them."""
    coordinates = np.stack(np.unravel_index(devices, mesh.axis_sizes))
    changes = (coordinates != coordinates[:, :, :1]).any(1)  # for each axis and each place in a list
    first = {name: change.argmax() for name, change in zip(mesh.axis_names, changes, strict=True) if change.any()}
    return tuple(sorted(first, key=lambda name: -first[name]))


def _places(mesh: Any, axes: Sequence[str], devices: Any) -> list[list[int]] | None:
    """Lists of devices as lists of places along some axes; None if they differ elsewhere on the mesh."""
    numbers = np.arange(mesh.size).reshape(mesh.axis_sizes)
    rows = np.moveaxis(numbers, [mesh.axis_names.index(name) for name in axes], range(-len(axes), 0))
    rows = rows.reshape(-1, math.prod(mesh.shape[name] for name in axes))
    row, place = np.empty((2, mesh.size), int)
    row[rows], place[rows] = np.arange(len(rows))[:, None], np.arange(rows.shape[1])
    in_each: list[set[tuple[int, ...]]] = [set() for _ in rows]
    for some in devices:
        if (row[some] != row[some[0]]).any():
            return None
        in_each[row[some[0]]].add(tuple(map(int, place[some])))
    return sorted(map(list, in_each[0])) if all(places == in_each[0] for places in in_each) else None


OPERATIONS = {
    "stablehlo.all_gather": all_gather,
    "stablehlo.all_reduce": all_reduce,
    "stablehlo.all_to_all": all_to_all,
    "stablehlo.collective_permute": collective_permute,
    "stablehlo.partition_id": partition_id,
    "stablehlo.reduce_scatter": reduce_scatter,
    "stablehlo.replica_id": replica_id,
}
