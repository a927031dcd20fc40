"""Sharding constraints: where arrays lie on several devices. A batch keeps them for each of its elements."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from jaxexp import _jax

from .operation import Operation
from .refused import RefusedError


class Dimension(NamedTuple):
    """What a sharding says about one dimension of an array.

    Attributes:
        axes: the mesh axes that divide it.
        is_closed: whether the compiler may not add more.
    """

    axes: tuple[str, ...]
    is_closed: bool


class Sharding(NamedTuple):
    """A sharding in a module: the name of a mesh, and how its axes divide an array."""

    mesh: str
    dimensions: tuple[Dimension, ...]


def sharding_constraint(operation: Operation) -> Callable[..., Any] | None:
    if not operation.is_partitioned:
        operation.ignore("sharding")
        return None
    mesh, dimensions = operation.plain("sharding", lambda attribute: read(operation, attribute))
    return placed(operation, operation.mesh(mesh), dimensions)


def placed(operation: Operation, mesh: Any, dimensions: Sequence[Dimension]) -> Callable[[Any], Any] | None:
    """A function that places an array; None if the compiler may place it as it likes."""
    if any(dimension.axes and not dimension.is_closed for dimension in dimensions):
        operation.refuse("that leaves a dimension open which it shards")
    # JAX writes open ones for each value in a jax.shard_map over some axes, and ones on a mesh without axes for keys.
    if mesh.empty or not any(dimension.is_closed for dimension in dimensions):
        return None
    entries = (d.axes or None if d.is_closed else _jax.PartitionSpec.UNCONSTRAINED for d in dimensions)
    spec = _jax.PartitionSpec(*entries)
    return lambda x: lax.with_sharding_constraint(x, _jax.NamedSharding(mesh_inside(mesh), spec))


def mesh_inside(mesh: Any) -> Any:
    """The mesh as JAX knows it in the trace of a `jax.shard_map`, if that is where it is used."""
    return jax.sharding.get_abstract_mesh() if mesh.manual_axes else mesh


@contextlib.contextmanager
def without_meshes() -> Generator[None]:
    """A context in which no mesh of the caller is set."""
    before = _jax.mesh_in_context.swap_local(_jax.not_set)
    try:
        with jax.sharding.use_abstract_mesh(_jax.empty_abstract_mesh):
            yield
    finally:
        _jax.mesh_in_context.set_local(before)


def read(operation: Operation, attribute: Any) -> Sharding:
    """A sharding, if it is one that JAX can say."""
    sharding = _jax.sdy.TensorShardingAttr(attribute)
    if len(sharding.replicated_axes) or len(sharding.unreduced_axes):
        operation.refuse("with axes that are replicated or not reduced")
    mesh = str(sharding.mesh_or_ref).removeprefix("@")
    return Sharding(mesh, tuple(_dimension(operation, dimension) for dimension in sharding.dimension_shardings))


def _dimension(operation: Operation, attribute: Any) -> Dimension:
    sharding = _jax.sdy.DimensionShardingAttr(attribute)
    axes = [_jax.sdy.AxisRefAttr(axis) for axis in sharding.axes]
    if any(axis.sub_axis_info is not None for axis in axes) or sharding.priority is not None:
        operation.refuse("over parts of a mesh axis, or with a priority")
    return Dimension(tuple(axis.name for axis in axes), bool(sharding.is_closed))


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
