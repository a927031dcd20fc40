"""Operations on several devices: sharding constraints, `jax.shard_map`, and collectives.

A sharding constraint says where arrays lie; a batch keeps it for each of its elements. A `jax.shard_map` is code that
each device runs with its parts of the arrays. In collectives, its devices exchange data.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxexp import _jax

from .program import Block, makes_only
from .reader import Many, Operation, Read
from .refused import RefusedError


class Dimension(NamedTuple):
    """What a sharding says about one dimension of an array.

    Attributes:
        axes: the mesh axes that divide it.
        is_closed: whether the compiler may not add more.
    """

    axes: tuple[str, ...]
    is_closed: bool


# A sharding in a module: the name of a mesh, and how its axes divide an array.
Sharding = tuple[str, tuple[Dimension, ...]]


def _sharding_constraint(operation: Operation) -> Callable[..., Any] | None:
    if not operation.reader.is_partitioned:
        operation.ignore("sharding")
        return None
    mesh, dimensions = operation.read("sharding", lambda attribute: _sharding(operation, attribute))
    return _placed(operation, operation.mesh(mesh), dimensions)


def _placed(operation: Operation, mesh: Any, dimensions: Sequence[Dimension]) -> Callable[[Any], Any] | None:
    """A function that places an array; None if the compiler may place it as it likes."""
    if any(dimension.axes and not dimension.is_closed for dimension in dimensions):
        operation.refuse("that leaves a dimension open which it shards")
    # JAX writes open ones for each value in a jax.shard_map over some axes, and ones on a mesh without axes for keys.
    if mesh.empty or not any(dimension.is_closed for dimension in dimensions):
        return None
    entries = (d.axes or None if d.is_closed else _jax.PartitionSpec.UNCONSTRAINED for d in dimensions)
    spec = _jax.PartitionSpec(*entries)
    return lambda x: lax.with_sharding_constraint(x, _jax.NamedSharding(_mesh_inside(mesh), spec))


def _mesh_inside(mesh: Any) -> Any:
    """The mesh as JAX knows it in the trace of a `jax.shard_map`, if that is where it is used."""
    return jax.sharding.get_abstract_mesh() if mesh.manual_axes else mesh


def _sharding(operation: Operation, attribute: Any) -> Sharding:
    """A sharding, if it is one that JAX can say."""
    sharding = _jax.sdy.TensorShardingAttr(attribute)
    if len(sharding.replicated_axes) or len(sharding.unreduced_axes):
        operation.refuse("with axes that are replicated or not reduced")
    dimensions = []
    for dimension in map(_jax.sdy.DimensionShardingAttr, sharding.dimension_shardings):
        axes = [_jax.sdy.AxisRefAttr(axis) for axis in dimension.axes]
        if any(axis.sub_axis_info is not None for axis in axes) or dimension.priority is not None:
            operation.refuse("over parts of a mesh axis, or with a priority")
        dimensions.append(Dimension(tuple(axis.name for axis in axes), bool(dimension.is_closed)))
    return str(sharding.mesh_or_ref).removeprefix("@"), tuple(dimensions)


def constraint(sharding: Any) -> Callable[[Any], Any]:
    """A function that places an array as a stored sharding says.

    Raises:
        RefusedError: the sharding says more than how dimensions are divided.
    """
    if sharding.memory_kind not in (None, "device"):
        raise RefusedError(f"a value in the memory {sharding.memory_kind}")
    if sharding.spec.unreduced or sharding.spec.reduced:
        raise RefusedError("a value that is reduced, or still to be reduced, over devices")
    sizes, names = sharding.mesh.axis_sizes, sharding.mesh.axis_names
    # On Auto axes, the compiler divides arrays as it likes, within constraints.
    mesh = _jax.AbstractMesh(sizes, names, (_jax.AxisType.Auto,) * len(names))
    placed = _jax.NamedSharding(mesh, sharding.spec)
    return lambda x: lax.with_sharding_constraint(x, placed)


# --- jax.shard_map


def _manual_computation(operation: Operation) -> Many | Block:
    axes, per_value = operation.read("manual_axes", _names), _jax.sdy.TensorShardingPerValueAttr
    before, after = (
        operation.read(name, lambda every: tuple(_sharding(operation, one) for one in per_value(every).shardings))
        for name in ("in_shardings", "out_shardings")
    )
    mesh, *others = {operation.mesh(name) for name, _ in (*before, *after)} or {None}
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
            mesh=_with_devices(_mesh_inside(mesh), {*axes}),
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


def _names(attribute: Any) -> tuple[str, ...]:
    axes: Any = _jax.sdy.ManualAxesAttr(attribute)
    return tuple(map(str, axes))


def _each(places: Sequence[Callable[[Any], Any] | None], arrays: Sequence[Any]) -> list[Any]:
    return [array if place is None else place(array) for place, array in zip(places, arrays, strict=True)]


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
        places.append(_placed(operation, mesh, said) if has_others else None)
    return places, tuple(specs)


# --- collectives

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


def _exchanging(read_one: Callable[[Operation, _Groups | None], Callable[..., Any]], *, ids: bool = False) -> Read:
    """Reads a collective: what it does with each array, among groups. Nothing is left of one that exchanges nothing."""

    def read(operation: Operation) -> Many | None:
        groups = _groups(operation, ids)
        exchange = read_one(operation, groups)
        return None if groups is None else Many(lambda *xs: [exchange(x, **groups.options) for x in xs])

    return read


def _all_reduce(operation: Operation, _: Any) -> Callable[..., Any]:
    combine = _reduction(operation)
    # Of a constant, `psum` would return a product, which may be rounded otherwise.
    return lambda x, **groups: combine(x if isinstance(x, Tracer) else lax.optimization_barrier(x), **groups)


def _reduce_scatter(operation: Operation, _: Any) -> Callable[..., Any]:
    dimension = operation.integer("scatter_dimension")
    if _reduction(operation) is not lax.psum:
        operation.refuse("that does not add")
    return functools.partial(lax.psum_scatter, scatter_dimension=dimension, tiled=True)


def _all_gather(operation: Operation, _: Any) -> Callable[..., Any]:
    return functools.partial(lax.all_gather, axis=operation.integer("all_gather_dim"), tiled=True)


def _all_to_all(operation: Operation, groups: _Groups | None) -> Callable[..., Any]:
    split, concat = operation.integer("split_dimension"), operation.integer("concat_dimension")
    if operation.integer("split_count") != (1 if groups is None else groups.size):
        operation.refuse("into other parts than one for each device")
    return functools.partial(lax.all_to_all, split_axis=split, concat_axis=concat, tiled=True)


def _collective_permute(operation: Operation) -> Callable[..., Any] | None:
    pairs = operation.matrix("source_target_pairs")
    if not _has_channel(operation):
        operation.refuse(_OF_REPLICAS)
    if pairs == ((0, 0),) and not operation.reader.is_partitioned:
        return None
    axes, places = _along(operation, pairs)
    return lambda x: lax.ppermute(x, axes, places)


def _partition_id(operation: Operation) -> Callable[..., Any]:
    """The number of the device: its place along all axes of the mesh."""
    mesh = operation.reader.manual
    if mesh is not None and len(mesh.manual_axes) == len(mesh.axis_names):
        return lambda: lax.convert_element_type(lax.axis_index(mesh.axis_names), np.uint32)
    if operation.reader.is_partitioned:
        operation.refuse(_OUTSIDE)
    return lambda: np.zeros((), np.uint32)


_OUTSIDE = "outside of a jax.shard_map over the mesh axes that it needs"
_OF_REPLICAS = "among replicas, of which JAX has one"


def _reduction(operation: Operation) -> Callable[..., Any]:
    name = operation.closed_region(0).only_operation()
    if name not in _REDUCTIONS:
        operation.refuse("whose reduction is not psum, pmax or pmin")
    function, kinds = _REDUCTIONS[name]
    operation.check_kinds(kinds)
    return function


def _has_channel(operation: Operation) -> bool:
    if not operation.has("channel_handle"):
        return False
    return operation.read("channel_handle", lambda attribute: bool(_jax.hlo.ChannelHandle(attribute).handle > 0))


def _groups(operation: Operation, numbers_devices: bool) -> _Groups | None:
    """The groups of a collective; None if each device is a group by itself, so that nothing is exchanged. If it has a
    channel, they have the numbers of devices: it `numbers_devices` always, or has to say so.
    """
    has_channel = _has_channel(operation)
    if operation.has("use_global_device_ids"):
        operation.ignore("use_global_device_ids")
        numbers_devices = True
    if has_channel and not numbers_devices:
        operation.refuse("whose groups do not have the numbers of devices")
    if _jax.hlo.ReplicaGroupMeshAxesAttr.isinstance(operation.mlir.attributes["replica_groups"]):
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

    name, axes = operation.read("replica_groups", read)
    mesh = operation.mesh(name)
    size = math.prod(mesh.shape[name] for name in axes)
    if size == 1:
        return None
    if not {*axes} <= {*mesh.manual_axes}:
        operation.refuse(_OUTSIDE)
    return _Groups(axes, None, size)


def _along(operation: Operation, lists: Sequence[Sequence[int]]) -> tuple[tuple[str, ...], list[list[int]]]:
    """Lists of devices as lists of places along mesh axes, which are the same wherever one is on the other axes."""
    mesh = operation.reader.manual
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


OPERATIONS: dict[str, Read] = {
    "sdy.manual_computation": _manual_computation,
    "sdy.sharding_constraint": _sharding_constraint,
    "stablehlo.all_gather": _exchanging(_all_gather),
    "stablehlo.all_reduce": _exchanging(_all_reduce),
    "stablehlo.all_to_all": _exchanging(_all_to_all, ids=True),
    "stablehlo.collective_permute": _collective_permute,
    "stablehlo.partition_id": _partition_id,
    "stablehlo.reduce_scatter": _exchanging(_reduce_scatter),
    "stablehlo.replica_id": lambda _: lambda: np.zeros((), np.uint32),  # JAX runs a module as one replica
}
