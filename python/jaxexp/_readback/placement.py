"""Sharding constraints: where arrays lie on several devices. A batch keeps them for each of its elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax

from jaxexp import _jax

from .operation import Operation
from .refused import RefusedError


def sharding_constraint(operation: Operation) -> Callable[..., Any]:
    if not operation.is_partitioned:
        operation.ignore("sharding")
        return lambda x: x
    sharding = operation.structure("sharding", _jax.sdy.TensorShardingAttr)
    mesh = operation.mesh(sharding.mesh_or_ref)
    if len(sharding.replicated_axes) or len(sharding.unreduced_axes):
        operation.refuse("with axes that are replicated or not reduced")
    spec = _jax.PartitionSpec(*(_of_dimension(operation, dimension) for dimension in sharding.dimension_shardings))
    return constraint(_jax.NamedSharding(mesh, spec))


def _of_dimension(operation: Operation, dimension: Any) -> Any:
    """The entry of a PartitionSpec that says the same about a dimension."""
    sharding = _jax.sdy.DimensionShardingAttr(dimension)
    axes = [_jax.sdy.AxisRefAttr(axis) for axis in sharding.axes]
    if any(axis.sub_axis_info is not None for axis in axes) or sharding.priority is not None:
        operation.refuse("over parts of a mesh axis, or with a priority")
    if sharding.is_closed:
        return tuple(axis.name for axis in axes) or None
    if axes:
        operation.refuse("that leaves a dimension open which it shards")
    return _jax.PartitionSpec.UNCONSTRAINED


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
