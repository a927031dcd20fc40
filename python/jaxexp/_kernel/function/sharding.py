"""Shardings in the one form that an Exported stores: a NamedSharding on an abstract mesh, or None for unspecified."""

from __future__ import annotations

import collections
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError, cause
from jaxexp._kernel.artifact.op_sharding import size_of


def line_of(sizes: tuple[int, ...], names: tuple[str, ...], types: Sequence[Any]) -> str:
    """The line of Python that makes a mesh of these axes."""
    listed = [f"jax.sharding.AxisType.{one.name}" for one in types]
    many = f" * {len(listed)}" if len(listed) > 1 else ""
    shown = f"({listed[0]},){many}" if len(set(listed)) == 1 else f"({', '.join(listed)})"
    return f"jax.make_mesh({sizes}, {names}, axis_types={shown})"


def on_mesh(sharding: Any, mesh: Any, axis_names: Mapping[str, str] | None = None) -> Any:
    """A stored sharding, moved to a mesh (Mesh or AbstractMesh) of the same axes; None leaves it where it is.

    `axis_names` has the name in `mesh` of each axis of the stored mesh, if the names differ.
    """
    if mesh is None and axis_names is not None:
        raise ExportError("axis_names= gives the names of the axes of a mesh: pass the mesh too")
    if mesh is not None and not hasattr(mesh, "abstract_mesh"):
        raise ExportTypeError(
            f"expected a jax.sharding.Mesh or AbstractMesh, such as make_mesh(devices) makes, found {type(mesh)}"
        )
    if sharding is None or mesh is None:
        return sharding
    stored, given = sharding.mesh, mesh.abstract_mesh
    spec = sharding.spec
    if axis_names is not None:
        _check_renaming(stored.axis_names, given.axis_names, axis_names)
        spec = _renamed(spec, axis_names)
    elif given.axis_names != stored.axis_names:
        raise ExportError(
            f"the function was exported with a mesh of axis_names {stored.axis_names}, and cannot be placed on one of "
            f"axis_names {given.axis_names}; if they stand for the same axes, pass axis_names={{exported: given, ...}}"
            f". Its make_mesh() makes one that fits, {line_of(stored.axis_sizes, stored.axis_names, stored.axis_types)}"
        )
    for what in ("axis_sizes", "axis_types"):
        if getattr(given, what) != getattr(stored, what):
            raise ExportError(
                f"the function was exported with a mesh of {what} {getattr(stored, what)}, "
                f"and cannot be placed on one of {what} {getattr(given, what)}. Its make_mesh() makes one that fits, "
                f"{line_of(stored.axis_sizes, given.axis_names, stored.axis_types)}"
            )
    return sharding.update(mesh=mesh, spec=spec)


def _check_renaming(stored: tuple[str, ...], given: tuple[str, ...], axis_names: Mapping[str, str]) -> None:
    names = list(axis_names.values())
    problems = {
        "lacks": [name for name in stored if name not in axis_names],
        "names axes that the function was not exported with:": [name for name in axis_names if name not in stored],
        "names axes that the given mesh does not have:": [name for name in names if name not in given],
        "leaves out axes of the given mesh:": [name for name in given if name not in names],
        "uses more than once:": sorted({name for name in names if names.count(name) > 1}),
    }
    if found := [f"{what} {', '.join(map(repr, which))}" for what, which in problems.items() if which]:
        raise ExportError(
            f"axis_names={dict(axis_names)} has to map the axes {stored}, which the function was exported with, "
            f"one to one to the axes of the given mesh, {given}; it {'; it '.join(found)}"
        )
    order = tuple(axis_names[name] for name in stored)
    # The module counts devices along the axes in the order that they had when it was exported.
    if order != given:
        raise ExportError(
            f"axis_names={dict(axis_names)} changes the order of the axes: the function was exported with {stored}, so "
            f"the given mesh must have its axes in the order {order}, not {given}"
        )


def _renamed(spec: Any, axis_names: Mapping[str, str]) -> Any:
    def renamed(entry: Any) -> Any:
        if isinstance(entry, tuple):
            return tuple(axis_names[name] for name in entry)
        return axis_names[entry] if isinstance(entry, str) else entry

    return spec.update(
        partitions=tuple(map(renamed, spec.partitions)),
        unreduced={axis_names[name] for name in spec.unreduced},
        reduced={axis_names[name] for name in spec.reduced},
    )


def meshes_of_call(stored: Sequence[Any], in_avals: Sequence[Any]) -> dict[Any, Any]:
    """The mesh of a call for each stored mesh, if they differ.

    With Explicit axes, meshes are part of the types of arrays: results have to be on the caller's mesh, like the
    arguments, even if its axes have other names, or its devices another kind.
    """
    candidates: dict[Any, set[Any]] = {}
    for sharding, aval in zip(stored, in_avals, strict=True):
        if sharding is not None and _like(sharding.mesh, aval.sharding.mesh):
            candidates.setdefault(sharding.mesh, set()).add(aval.sharding.mesh)
    context = jax.sharding.get_abstract_mesh()
    for sharding in stored:
        if sharding is not None and _like(sharding.mesh, context):
            candidates[sharding.mesh] = {context}
    return {mesh: given for mesh, (given, *others) in candidates.items() if not others}


def _like(stored: Any, given: Any) -> bool:
    return (
        not given.empty
        and _jax.AxisType.Explicit in given.axis_types
        and (given.axis_sizes, given.axis_types) == (stored.axis_sizes, stored.axis_types)
    )


def in_call(sharding: Any, meshes: dict[Any, Any]) -> Any:
    """A stored sharding on the mesh that replaces its own in a call; see `meshes_of_call`."""
    if sharding is None:
        return None
    mesh = meshes.get(sharding.mesh)
    if mesh is None or mesh is sharding.mesh:
        return sharding
    names = dict(zip(sharding.mesh.axis_names, mesh.axis_names, strict=True))
    return sharding.update(mesh=mesh, spec=_renamed(sharding.spec, names))


def for_jit(sharding: Any) -> Any:
    """A stored sharding for `jax.jit`; None if there is no mesh."""
    return None if sharding is None or sharding.mesh.empty else sharding


def of_cotangent(sharding: Any) -> Any:
    """The sharding of a cotangent: if a value is reduced over axes, its cotangent is unreduced, and vice versa."""
    return None if sharding is None else sharding.update(spec=sharding.spec.to_ct_spec())


def to_hlo(sharding: Any, aval: Any) -> Any:
    return None if sharding is None else _jax.hlo_of_named_sharding(sharding, aval.ndim)


def to_named(sharding: Any, aval: Any, mesh: Any) -> Any:
    """A sharding from a lowering, in the stored form; an ExportTypeError if no mesh expresses it. `mesh` is the
    abstract mesh of the function's NamedShardings, if it has some, for shardings without a mesh.
    """
    if isinstance(sharding, _jax.UnspecifiedValue):
        return None
    if isinstance(sharding, _jax.NamedSharding):
        spec = sharding.spec
        if isinstance(sharding.mesh, _jax.Mesh) and sharding.mesh.is_scalar:
            spec = _replicated(aval)
        return _jax.NamedSharding(sharding.mesh.abstract_mesh, spec, memory_kind=sharding.memory_kind)
    if isinstance(sharding, _jax.SingleDeviceSharding):
        return _nowhere(aval, sharding.memory_kind)
    if isinstance(sharding, _jax.GSPMDSharding):
        hlo = _jax.hlo_of_gspmd_sharding(sharding)
        if mesh is None:
            if hlo.is_replicated() and not hlo.tuple_elements():
                return _nowhere(aval, sharding.memory_kind)
            _check_tiles(hlo)
            sizes = tuple(hlo.get_axis_sizes())  # an axis for each factor in the sharding's order of devices
            mesh = _jax.abstract_mesh_like(sharding, sizes, _axis_names(sizes))
        (spec,) = _jax.partition_specs_of_hlo(hlo, mesh)
        return _jax.NamedSharding(mesh, spec, memory_kind=sharding.memory_kind)
    raise ExportTypeError(
        f"an argument or result of type {aval} has a {type(sharding).__name__}, which cannot be exported: "
        "use a NamedSharding"
    )


def from_proto(proto: bytes, aval: Any) -> Any:
    """The stored form of an xla.OpSharding, the only form in artifacts from before JAX 0.9.

    The mesh is made up: the proto knows how the devices are tiled, but not the names of the axes.
    """
    try:
        op_sharding = _jax.OpSharding()
        op_sharding.ParseFromString(proto)
        hlo = _jax.HloSharding.from_proto(op_sharding)
        memory_kind = _jax.memory_kind(aval)
        if hlo.is_replicated() or (hlo.is_maximal() and not hlo.is_tiled()):
            return _nowhere(aval, memory_kind)
        _check_tiles(hlo)
        sizes, spec = _axes_of_iota(op_sharding)
        # There were no Explicit axes when these artifacts were written.
        mesh = _jax.AbstractMesh(sizes, _axis_names(sizes), (_jax.AxisType.Auto,) * len(sizes))
        sharding = _jax.NamedSharding(mesh, spec, memory_kind=memory_kind)
        if len(sharding.spec) > aval.ndim:
            raise ValueError(f"a sharding of {len(sharding.spec)} dimensions for {aval}")
        return sharding
    except MemoryError:
        raise
    except Exception as error:
        raise DeserializationError("", "an HLO sharding that a mesh can express", f"another one: {error}") from cause(
            error
        )


def _axis_names(sizes: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"_axis_{i}" for i in range(len(sizes)))


def _check_tiles(hlo: Any) -> None:
    if hlo.tuple_elements() or not hlo.is_tiled() or not hlo.is_tile_assignment_iota():
        raise ExportTypeError(f"the HLO sharding {hlo} does not tile devices in the order of a mesh")


def _axes_of_iota(op_sharding: Any) -> tuple[tuple[int, ...], Any]:
    """The sizes of the axes of a mesh for an OpSharding, as `to_named` finds them, and its spec over these axes.

    This looks at the numbers that describe the order of the devices, not at the devices: a hostile OpSharding of a few
    bytes has billions of them. XLA itself would end the process if tiles have parts of an axis.
    """
    subgroups = list(op_sharding.last_tile_dims)
    if subgroups not in ([], [_jax.OpSharding.Type.REPLICATED]):
        raise ExportTypeError(f"subgroups of devices of the types {subgroups}")
    tiles = list(op_sharding.tile_assignment_dimensions)
    rank = len(tiles) - bool(op_sharding.replicate_on_last_tile_dim or subgroups)
    cuts = cuts_of(tiles, list(op_sharding.iota_reshape_dims), list(op_sharding.iota_transpose_perm))
    dimension_of = {cut: dimension for dimension, found in enumerate(cuts) for cut in found}
    sizes: list[int] = []
    names: dict[Cut, str] = {}
    last = None
    for low, high in sorted(dimension_of, reverse=True):
        dimension = dimension_of[low, high]
        if last == dimension == rank:  # the order of replicas does not matter
            sizes[-1] *= high // low
        else:
            sizes.append(high // low)
        names[low, high] = f"_axis_{len(sizes) - 1}"
        last = dimension
    specs = [tuple(names[cut] for cut in found) for found in cuts[:rank]]
    while specs and not specs[-1]:
        specs.pop()
    return tuple(sizes), _jax.PartitionSpec(*specs)


# A group of devices, whose numbers differ, so to speak, in the digit between two powers. (2, 8) out of eight devices
# are four groups of two: number // 2 % 4.
Cut = tuple[int, int]


def cuts_of(tiles: Sequence[int], lengths: Sequence[int], order: Sequence[int]) -> tuple[tuple[Cut, ...], ...]:
    """How tiles cut the sequence of devices along each of their dimensions, the coarsest cuts first. Devices are
    numbered along axes of these lengths in one order, and laid out in tiles along the axes in another one. Axes that
    follow each other in both become one. An ExportTypeError if the sizes do not fit each other.
    """
    if not size_of(tiles) == size_of(lengths) < 1 << 64:
        raise ExportTypeError("tiles of other sizes than their devices")
    ends = [*itertools.accumulate(reversed(lengths), operator.mul, initial=1)][::-1]
    left = collections.deque[Cut]()
    for low, high in ((ends[axis + 1], ends[axis]) for axis in order if lengths[axis] > 1):
        left.append((low, left.pop()[1]) if left and left[-1][0] == high else (low, high))
    found = []
    for tile in tiles:
        cuts: list[Cut] = []
        while tile > 1:
            low, high = left.popleft()
            length = high // low
            taken = math.gcd(tile, length)
            if taken not in (tile, length):
                raise ExportTypeError(f"an order of devices that divides an axis of {length} by {tile}")
            cuts.append((high // taken, high))
            tile //= taken
            if taken < length:
                left.appendleft((low, high // taken))
        found.append(tuple(cuts))
    return tuple(found)


def _nowhere(aval: Any, memory_kind: str | None) -> Any:
    """A sharding without a mesh."""
    return _jax.NamedSharding(_jax.empty_abstract_mesh, _replicated(aval), memory_kind=memory_kind)


def _replicated(aval: Any) -> Any:
    return _jax.PartitionSpec(*([None] * aval.ndim))
