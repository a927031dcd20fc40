"""Shardings in the one form that an Exported stores: a NamedSharding on an abstract mesh, or None for unspecified."""

from __future__ import annotations

from typing import Any

from . import _jax
from ._errors import DeserializationError, ExportError, ExportTypeError


def on_mesh(sharding: Any, mesh: Any) -> Any:
    """A stored sharding, moved to a mesh (Mesh or AbstractMesh) of the same axes; None leaves it where it is."""
    if sharding is None or mesh is None:
        return sharding
    stored, given = sharding.mesh, mesh.abstract_mesh
    for what in ("axis_names", "axis_sizes", "axis_types"):
        if getattr(given, what) != getattr(stored, what):
            raise ExportError(
                f"the function was exported with a mesh of {what} {getattr(stored, what)}, "
                f"and cannot be placed on one of {what} {getattr(given, what)}"
            )
    return sharding.update(mesh=mesh)


def to_hlo(sharding: Any, aval: Any) -> Any:
    """The HLO form of a stored sharding; None stays None."""
    return None if sharding is None else _jax.hlo_of_named_sharding(sharding, aval.ndim)


def to_named(sharding: Any, aval: Any, mesh: Any) -> Any:
    """A sharding from a lowering, in the stored form.

    Args:
        sharding: what the lowering says about one argument or result.
        aval: its abstract value.
        mesh: the abstract mesh of the function's NamedShardings, for shardings that name no mesh; or None.

    Raises:
        ExportTypeError: no mesh expresses this sharding.
    """
    if isinstance(sharding, _jax.UnspecifiedValue):
        return None
    if isinstance(sharding, _jax.NamedSharding):
        spec = sharding.spec
        if isinstance(sharding.mesh, _jax.Mesh) and sharding.mesh.is_scalar:
            spec = _replicated(aval)
        return _jax.NamedSharding(sharding.mesh.abstract_mesh, spec, memory_kind=sharding.memory_kind)
    if isinstance(sharding, _jax.SingleDeviceSharding):
        return _jax.NamedSharding(_jax.empty_abstract_mesh, _replicated(aval), memory_kind=sharding.memory_kind)
    if isinstance(sharding, _jax.GSPMDSharding):
        return _from_hlo(_jax.hlo_of_gspmd_sharding(sharding), aval, mesh, sharding.memory_kind)
    raise ExportTypeError(
        f"an argument or result of type {aval} has a {type(sharding).__name__}, which cannot be exported: "
        "use a NamedSharding"
    )


def from_proto(proto: bytes, aval: Any) -> Any:
    """The stored form of an xla.OpSharding, which is all that artifacts from before JAX 0.9 hold.

    The mesh is made up: the proto knows how the devices are tiled, but not the names of the axes.

    Raises:
        DeserializationError: the bytes are no OpSharding, or one that no mesh expresses.
    """
    try:
        op_sharding = _jax.OpSharding()
        op_sharding.ParseFromString(proto)
        hlo = _jax.HloSharding.from_proto(op_sharding)
        return _from_hlo(hlo, aval, None, _jax.memory_kind(aval))
    except Exception as error:
        raise DeserializationError("", "an HLO sharding that a mesh can express", f"{error}") from error


def _from_hlo(hlo: Any, aval: Any, mesh: Any, memory_kind: str | None) -> Any:
    if mesh is None:
        if hlo.is_replicated() or (hlo.is_maximal() and not hlo.is_tiled()):
            return _jax.NamedSharding(_jax.empty_abstract_mesh, _replicated(aval), memory_kind=memory_kind)
        mesh = _synthesized_mesh(hlo)
    (spec,) = _jax.partition_specs_of_hlo(hlo, mesh)
    return _jax.NamedSharding(mesh, spec, memory_kind=memory_kind)


def _synthesized_mesh(hlo: Any) -> Any:
    """An abstract mesh with an axis for each factor of the order in which the sharding tiles its devices."""
    if hlo.tuple_elements() or not hlo.is_tiled() or not hlo.is_tile_assignment_iota():
        raise ExportTypeError(f"the HLO sharding {hlo} does not tile devices in the order of a mesh")
    sizes = tuple(hlo.get_axis_sizes())
    names = tuple(f"_axis_{i}" for i in range(len(sizes)))
    # HLO shardings come from the compiler's propagation, which is what Auto axes stand for.
    return _jax.AbstractMesh(sizes, names, (_jax.AxisType.Auto,) * len(sizes))


def _replicated(aval: Any) -> Any:
    return _jax.PartitionSpec(*([None] * aval.ndim))
