"""Collective operations in which a device reads or writes behind an array, since others have arrays of other sizes."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from jaxexp import _jax
from jaxexp._kernel.artifact.operations import COLLECTIVES, RESIZING

_OF_MESH = re.compile(r"#stablehlo\.replica_group_mesh_axes<mesh = @(?P<mesh>\w+), axes = \[(?P<axes>[^\[\]]*)\]>")
_AXIS = re.compile(r'#stablehlo\.axis_ref<name = "(\w+)">')


def why_wrong(operation: Any, symbols: Any, *, has_branches: bool) -> str | None:
    """What of an operation may differ between the devices that meet in it, in words; None if nothing may.

    Args:
        operation: any operation.
        symbols: the symbol table of its module.
        has_branches: whether the module has branches or loops.
    """
    name = operation.name
    if name not in COLLECTIVES:
        return None
    if has_branches and not all(_type_of(value).has_static_shape for value in operation.operands):
        # What runs has a channel for each collective operation. Of one with open sizes, there may be several.
        return f"branches and {name} of open sizes, where devices may meet with arrays of other sizes"
    if name in RESIZING:
        axis = _jax.ir.IntegerAttr(operation.attributes[RESIZING[name]]).value
        pairs = list(zip(operation.operands, operation.results, strict=True))
        for operand, result in pairs:
            if not _has_size_of_groups(operation, operand, result, axis, symbols):
                return f"{name} from {operand.type} to {result.type}, which are not the sizes for its groups of devices"
        # XLA takes the number of parts from the first array.
        if len({operand.type == result.type for operand, result in pairs}) > 1:
            return f"{name} that changes the sizes of some of its arrays only"
    return None


def _has_size_of_groups(operation: Any, operand: Any, result: Any, axis: int, symbols: Any) -> bool:
    """Whether the larger one of two arrays has the parts of all devices in a group, or has once its size is known."""
    part, whole = (operand, result) if operation.name == "stablehlo.all_gather" else (result, operand)
    members = _members(operation.attributes["replica_groups"], symbols)
    if any(_type_of(array).is_dynamic_dim(axis) for array in (part, whole)):  # it is computed from the groups
        return members is not None and _type_of(result).is_dynamic_dim(axis)
    sizes = _type_of(part).get_dim_size(axis), _type_of(whole).get_dim_size(axis)
    return sizes[0] == sizes[1] or (members is not None and sizes[0] * members == sizes[1])


def _members(groups: Any, symbols: Any) -> int | None:
    """How many devices each group has; None where that is not known."""
    if isinstance(groups, _jax.ir.DenseIntElementsAttr):
        numbers = np.array(groups)
        return numbers.shape[1] if numbers.size else None
    said = _OF_MESH.fullmatch(str(groups))
    if said is None or said["mesh"] not in symbols:
        return None
    sizes = _axis_sizes(symbols[said["mesh"]].attributes)
    axes = [_AXIS.fullmatch(axis) for axis in said["axes"].split(", ") if axis]
    found = [sizes.get(axis[1], 0) if axis else 0 for axis in axes]
    return math.prod(found) or None


def _axis_sizes(attributes: Any) -> dict[str, int]:
    """The sizes of a mesh's axes; none if it says others for Shardy than for StableHLO."""
    ir, sdy = _jax.ir, _jax.sdy
    try:
        mesh = [(axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, sdy.MeshAttr(attributes["mesh"]).axes)]
        axes = map(ir.DictAttr, ir.ArrayAttr(ir.DictAttr(attributes["stablehlo.mesh"])["axes"]))
        again = [(ir.StringAttr(axis["name"]).value, ir.IntegerAttr(axis["size"]).value) for axis in axes]
    except (KeyError, ValueError):  # it is no mesh, or not in this form
        return {}
    return dict(mesh) if mesh == again else {}


def _type_of(value: Any) -> Any:
    return _jax.ir.RankedTensorType(value.type)
