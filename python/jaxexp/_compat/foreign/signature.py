"""The signature of `main`: abstract values and shardings, from its types and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxexp import _jax
from jaxexp._errors import ForeignModuleError, UnsupportedError
from jaxexp._kernel.codec.dtypes import has_number
from jaxexp._kernel.module import mlir
from jaxexp._kernel.module.meshes import of_operation
from jaxexp._readback.array_type import DTYPES

Shape = tuple[Any, ...]


def check(types: Sequence[Any], what: str) -> None:
    """Compares types of `main` with what an artifact can have.

    Args:
        types: the types.
        what: "argument" or "result", for the message.

    Raises:
        UnsupportedError: a value is no array, or JAX has no such array.
    """
    for index, type_ in enumerate(types):
        value = f"{what} {index} of the module"
        if not isinstance(type_, _jax.ir.RankedTensorType):
            raise UnsupportedError(f"{value} has the type {type_}, and {_advice(type_)}")
        if type_.encoding is not None:
            raise UnsupportedError(
                f"{value} has the type {type_}: JAX has no bounds and no layouts in types. Let its producer write "
                "constant shapes, or dimensions without bounds"
            )
        dtype = DTYPES.get(str(type_.element_type))
        if dtype is None or not has_number(dtype):
            raise UnsupportedError(f"{value} has elements of type {type_.element_type}, which no artifact can have")


def _advice(type_: Any) -> str:
    if str(type_).startswith("tuple"):
        return "a call takes and returns arrays: let the producer return several results instead of a tuple"
    if type_ == _jax.token_type():
        return "only JAX's own effects have tokens: leave out what is printed, sent or received"
    return "a call takes and returns arrays"


def shape_of(type_: Any) -> tuple[int | None, ...]:
    """The shape of an array type; None for each dimension that is not known."""
    return tuple(None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank))


def avals(types: Sequence[Any], shapes: Sequence[Shape]) -> tuple[Any, ...]:
    """Abstract values of these types with shapes that may be symbolic."""
    return tuple(
        _jax.ShapedArray(shape, DTYPES[str(type_.element_type)]) for type_, shape in zip(types, shapes, strict=True)
    )


def shardings(module: Any, in_avals: Sequence[Any], out_avals: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The shardings of main's arguments and of its results by their attributes; None where there is none."""
    meshes = {
        operation.attributes["sym_name"].value: _mesh(operation)
        for operation in module.body.operations
        if operation.operation.name == "sdy.mesh"
    }

    def of(attributes: Sequence[Any], avals: Sequence[Any], what: str) -> list[Any]:
        return [
            _sharding(meshes, _jax.ir.DictAttr(entry), aval, f"{what} {i} of the module")
            for i, (entry, aval) in enumerate(zip(attributes, avals, strict=True))
        ]

    results = mlir.result_attributes(_jax.ir.SymbolTable(module.operation)["main"])
    return of(mlir.argument_attributes(module), in_avals, "argument"), of(results, out_avals, "result")


def _mesh(operation: Any) -> Any:
    if (mesh := of_operation(operation)) is not None:
        return mesh
    if len(_jax.sdy.MeshAttr(operation.attributes["mesh"]).device_ids) > 1:
        raise UnsupportedError(
            f"the mesh @{operation.attributes['sym_name'].value} says in which order it takes devices, which the "
            "meshes in an artifact cannot"
        )
    return _jax.AbstractMesh((), ())


def _sharding(meshes: dict[str, Any], attributes: Any, aval: Any, what: str) -> Any:
    if "sdy.sharding" not in attributes:
        return None
    sharding = _jax.sdy.TensorShardingAttr(attributes["sdy.sharding"])
    mesh = meshes.get(str(sharding.mesh_or_ref).removeprefix("@"))
    if mesh is None or len(sharding.dimension_shardings) != aval.ndim:
        raise ForeignModuleError("", f"a sharding for {what}, of type {aval}", str(sharding))
    if len(sharding.unreduced_axes):
        raise UnsupportedError(f"{what} is still to be reduced over devices: {sharding}")
    if mesh.size == 1:
        return None
    entries = [_entry(_jax.sdy.DimensionShardingAttr(d), what) for d in sharding.dimension_shardings]
    return _jax.NamedSharding(mesh, _jax.PartitionSpec(*entries))


def _entry(dimension: Any, what: str) -> Any:
    axes = [_jax.sdy.AxisRefAttr(axis) for axis in dimension.axes]
    if any(axis.sub_axis_info is not None for axis in axes):
        raise UnsupportedError(f"{what} is sharded over a part of a mesh axis, as no artifact can say")
    names = tuple(axis.name for axis in axes)
    return (names[0] if len(names) == 1 else names) if names else None
