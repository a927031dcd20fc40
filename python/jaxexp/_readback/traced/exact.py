"""An operation once more, in float64: with the same operands, and with what it does inside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxexp import _jax
from jaxexp._errors import UnsupportedError
from jaxexp._kernel.module import mlir

# What depends on the bits of floats, rounds on purpose, or runs code of its own; and what tells devices apart.
_OTHERS = (
    "bitcast_convert",
    "reduce_precision",
    "custom_call",
    "composite",
    "rng",
    "rng_bit_generator",
    "partition_id",
)
# Of which precision, by which parts of floats.
_OF_PRECISION = ("algorithm", "precision_config", "result_accuracy")


def results_of(operation: Any) -> list[Any]:
    """The results in float64, computed at the insertion point.

    Raises:
        UnsupportedError: the operation has no floats that are narrower, or depends on how they are held.
    """
    name = operation.name.removeprefix("stablehlo.")
    attributes = {one for one, _ in mlir.items(operation.attributes)}
    is_plain = operation.name.startswith(("stablehlo.", "chlo.")) and name not in _OTHERS
    if not is_plain or "channel_handle" in attributes or all(_wide(one.type) == one.type for one in operation.operands):
        raise UnsupportedError(f"{operation.name} in float64")
    return _copied(operation, {})


def _copied(operation: Any, known: dict[Any, Any]) -> list[Any]:
    """The results of a copy of an operation, whose operands were replaced by these, or are converted."""
    ir = _jax.ir
    if operation.name == "stablehlo.constant":
        copy = operation.clone()
        return [_converted(copy.results[0])]
    attributes = {name: value for name, value in mlir.items(operation.attributes) if name not in _OF_PRECISION}
    new = ir.Operation.create(
        operation.name,
        results=[_wide(result.type) for result in operation.results],
        operands=[known[one] if one in known else _converted(one) for one in operation.operands],
        attributes=attributes,
        regions=len(operation.regions),
    )
    for old_region, region in zip(operation.regions, new.regions, strict=True):
        for old in old_region.blocks:
            types = [_wide(argument.type) for argument in old.arguments]
            block = region.blocks.append(*types, arg_locs=[ir.Location.unknown()] * len(types))
            inside = {**known, **dict(zip(old.arguments, block.arguments, strict=True))}
            with ir.InsertionPoint(block):
                _copy_all(old.operations, inside)
    return list(new.results)


def _copy_all(operations: Iterable[Any], known: dict[Any, Any]) -> None:
    for one in operations:
        operation = one.operation
        known.update(zip(operation.results, _copied(operation, known), strict=True))


def _converted(value: Any) -> Any:
    type_ = _wide(value.type)
    return value if type_ == value.type else _jax.hlo.convert(type_, value)


def _wide(type_: Any) -> Any:
    """The type with floats of 64 bits in place of fewer."""
    ir = _jax.ir
    if not isinstance(type_, ir.RankedTensorType):
        return type_
    element = type_.element_type
    if isinstance(element, ir.ComplexType):
        return ir.RankedTensorType.get(type_.shape, ir.ComplexType.get(ir.F64Type.get()))
    return ir.RankedTensorType.get(type_.shape, ir.F64Type.get()) if isinstance(element, ir.FloatType) else type_
