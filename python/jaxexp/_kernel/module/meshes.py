"""The mesh of a function: the one of its shardings, or one that its module names inside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportTypeError
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.function import sharding
from jaxexp._kernel.function.data import ExportedData

from . import mlir


def make(exported: ExportedData, devices: Sequence[Any] | None) -> Any:
    mesh = of(exported)
    if not isinstance(devices, (Iterable, NoneType)):
        raise ExportTypeError(f"make_mesh takes devices, such as jax.devices()[:{mesh.size}], not {devices!r:.80}")
    there = list(jax.devices() if devices is None else devices)
    if len(there) < mesh.size or (devices is not None and len(there) > mesh.size):
        raise ExportError(
            f"making a mesh for {exported.fun_name}: it was exported for {mesh.size} devices, found {len(there)}"
        )
    there = there[: mesh.size]
    return jax.make_mesh(mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types, devices=there)


def of(exported: ExportedData) -> Any:
    """The abstract mesh of a function's shardings; or else of its module, if one there has all devices. JAX writes how
    results lie in terms of its axes: if there is none, it has one for each prime factor of the number of devices, which
    suits most results.
    """
    for one in (*exported._in_named_shardings, *exported._out_named_shardings):
        if one is not None and not one.mesh.empty:
            return one.mesh
    for mesh in _inside(exported):
        if mesh.size == exported.nr_devices:
            return mesh
    factors = list[int]()  # primes
    while (left := exported.nr_devices // math.prod(factors)) > 1:
        factors.append(next(factor for factor in range(2, left + 1) if left % factor == 0))
    names = [f"devices_{index}" for index in range(len(factors))]
    return _of_axes(factors or [1], names if len(names) > 1 else ["devices"])


def shardings_on(
    exported: ExportedData, mesh: Any, axis_names: Mapping[str, str] | None = None
) -> Sequence[NamedSharding | None]:
    """How arguments lie on a mesh, as `Exported.in_shardings_jax` says; whole on each device if that says nothing."""
    found = [sharding.on_mesh(stored, mesh, axis_names) for stored in exported._in_named_shardings]
    if mesh is not None and exported.nr_devices > 1 and all(one is None for one in found):
        return [NamedSharding(mesh, _jax.PartitionSpec())] * len(found)
    return found


def of_operation(operation: Any) -> Any | None:
    """The mesh of an `sdy.mesh`; None if it names devices: one alone, or all in an order that a type cannot express."""
    mesh = _jax.sdy.MeshAttr(operation.attributes["mesh"])
    if len(mesh.device_ids):
        return None
    axes = [_jax.sdy.MeshAxisAttr(axis) for axis in mesh.axes]
    return _of_axes([axis.size for axis in axes], [axis.name for axis in axes])


def _of_axes(sizes: Sequence[int], names: Sequence[str]) -> Any:
    return _jax.AbstractMesh(tuple(sizes), tuple(names), (_jax.AxisType.Auto,) * len(sizes))


def _inside(exported: ExportedData) -> Iterator[Any]:
    serialized = exported.mlir_module_serialized
    if exported.nr_devices == 1 or not module_head.may_name(serialized, "sdy"):
        return
    with mlir.reading(), _jax.make_ir_context() as context:
        for operation in mlir.parse(serialized, context).body.operations:
            if isinstance(operation, _jax.MeshOp) and (mesh := of_operation(operation)) is not None:
                yield mesh
