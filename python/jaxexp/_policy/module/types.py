"""Types of results that XLA does not compare with what it computes. All other checks believe what a module says."""

from __future__ import annotations

from typing import Any

from jaxexp import _jax
from jaxexp._kernel.artifact.operations import REDUCTIONS, UNTYPED, UNTYPED_IF_CONSTANT
from jaxexp._kernel.module import mlir

# Custom calls that become operations when sizes are known. Sizes are their last operands.
_OPERATIONS_OF_CALLS = {
    f"stablehlo.dynamic_{name}": f"stablehlo.{name}" for name in ("reduce_window", "rng_bit_generator")
}
_EXPANDING = ("known_expanding_dimensions", "known_nonexpanding_dimensions")


def why_wrong(operation: Any, *, is_refined: bool) -> str | None:
    """What of an operation has types that XLA does not compare, in words; None if it has such types as JAX writes.

    Args:
        operation: any operation.
        is_refined: whether open sizes are computed for each call, where all types are compared.
    """
    name = operation.name
    if name == "stablehlo.custom_call":
        name = _OPERATIONS_OF_CALLS.get(mlir.target_of(operation), name)
    if name in UNTYPED:
        return f"the operation {name}"
    if name in UNTYPED_IF_CONSTANT and not is_refined:
        return f"the operation {name} without dimension variables"
    if name == "stablehlo.dynamic_broadcast_in_dim":
        said = [one for one in _EXPANDING if one in operation.attributes]
        return f"{name} with {said[0]}" if said else None
    if name == "stablehlo.bitcast_convert":
        is_wrong = _shape(operation.results[0].type) != _shape_of_bits(operation)
        return f"{name} from {operation.operands[0].type} to {operation.results[0].type}" if is_wrong else None
    if name == "stablehlo.rng_bit_generator":
        return _why_wrong_random_bits(operation, name)
    if name == "stablehlo.remainder" and isinstance(_element_of(operation.results[0].type), _jax.ir.ComplexType):
        return f"{name} of complex numbers"
    if name in REDUCTIONS and not _keeps_elements(operation):
        return f"{name} to other elements than it takes"
    return None


def _element_of(type_: Any) -> Any:
    """The type of an array's elements."""
    return _jax.ir.RankedTensorType(type_).element_type


def bits_of(element: Any) -> int | None:
    """How many bits an element takes; None for a type that is not understood.

    Numbers of two bits are not: on CPUs, XLA has too little memory for arrays of them.
    """
    ir = _jax.ir
    if isinstance(element, ir.ComplexType):
        half = bits_of(ir.ComplexType(element).element_type)
        return None if half is None else 2 * half
    if isinstance(element, ir.IntegerType):
        width = int(ir.IntegerType(element).width)
        return None if width == 2 else width
    if isinstance(element, ir.FloatType):
        return int(ir.FloatType(element).width)
    return 64 if isinstance(element, ir.IndexType) else None


def _shape(type_: Any) -> list[int | None]:
    tensor = _jax.ir.RankedTensorType(type_)
    return [None if tensor.is_dynamic_dim(axis) else tensor.get_dim_size(axis) for axis in range(tensor.rank)]


def _shape_of_bits(operation: Any) -> list[int | None] | None:
    """The shape that the bits of an array have as elements of another type; None if they cannot be that."""
    operand, result = operation.operands[0].type, operation.results[0].type
    before, after = bits_of(_element_of(operand)), bits_of(_element_of(result))
    shape = _shape(operand)
    if before is None or after is None or max(before, after) % min(before, after):
        return None
    if before > after:
        return [*shape, before // after]
    if before < after:
        return shape[:-1] if shape[-1:] == [after // before] else None
    return shape


def _why_wrong_random_bits(operation: Any, name: str) -> str | None:
    if len(operation.results) != 2:
        return f"{name} with {len(operation.results)} results"
    state, bits = operation.results
    if state.type != operation.operands[0].type:
        return f"{name} from the state {operation.operands[0].type} to {state.type}"
    element = _element_of(bits.type)
    is_unsigned = isinstance(element, _jax.ir.IntegerType) and _jax.ir.IntegerType(element).is_unsigned
    return None if is_unsigned else f"{name} of other elements than unsigned integers"


def _keeps_elements(operation: Any) -> bool:
    """Whether arrays have the elements of the results: first those that are reduced, last initial values or updates."""
    results = [_element_of(result.type) for result in operation.results]
    values = list(operation.operands)
    if operation.name == "stablehlo.custom_call":
        if len(values) < 2 * len(results):
            return False
        values = values[: 2 * len(results)]  # behind them are sizes
    operands = [_element_of(value.type) for value in values]
    return operands[: len(results)] == results == operands[-len(results) :]
