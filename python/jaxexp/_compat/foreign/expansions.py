"""CHLO's functions that a module has expanded to operations of StableHLO, as portable artifacts have some of them.

An expansion chooses between numbers of which some are infinite, or come from roots of 0. JAX differentiates all of
them, and 0 times infinity is NaN: each derivative of `erf_inv`, for instance. JAX's own functions have rules for this.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

from jaxexp import _jax
from jaxexp._kernel.module import mlir

# Functions of one argument. Of the others, `polygamma` has NaN in its order 0, and JAX has no derivative of `zeta`.
_FUNCTIONS = "lgamma", "digamma", "bessel_i1e", "erfc", "erf_inv"
_ELEMENTS = {"f16", "bf16", "f32", "f64"}
_CONSTANT, _BROADCAST = "stablehlo.constant", "stablehlo.broadcast_in_dim"


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """An operation of an expansion, on arrays of one shape.

    Attributes:
        name: the operation's.
        said: its attributes; of a constant, its number.
        element: the type of the elements of its result.
        operands: which values it takes: 0 is the argument of the function, and 1 the result of the first step.
    """

    name: str
    said: tuple[str, ...]
    element: str
    operands: tuple[int, ...]


def read(module: Any) -> None:
    """Replaces what equals the expansion that the installed jaxlib makes by CHLO's operation, in place. Operations of
    these kinds that nothing uses are removed.
    """
    results = (value.type for operation in mlir.iter_operations(module) for value in operation.results)
    elements = {_element(type_) for type_ in results if isinstance(type_, _jax.ir.RankedTensorType)}
    names = set()
    for function, element in itertools.product(_FUNCTIONS, sorted(elements & _ELEMENTS)):
        if steps := _expansion(function, element):
            names |= {step.name for step in steps}
            _replace(module, function, steps)
    for operation in reversed(list(mlir.iter_operations(module))):
        if operation.name in names and not _is_used(operation):
            operation.erase()


def _is_used(operation: Any) -> bool:
    return any(True for result in operation.results for _ in result.uses)


def _replace(module: Any, function: str, steps: Sequence[_Step]) -> None:
    for operation in mlir.iter_operations(module):
        if operation.name != steps[-1].name or not _is_used(operation):  # a longer expansion had it
            continue
        if (argument := _argument(operation.results[0], steps)) is None:
            continue
        with _jax.ir.InsertionPoint(operation), operation.location:
            types = [operation.results[0].type]
            made = _jax.ir.Operation.create(f"chlo.{function}", results=types, operands=[argument])
        mlir.replace(operation, made.results)


def _argument(result: Any, steps: Sequence[_Step]) -> Any | None:
    """The value from which these steps compute a result; None if other ones compute it."""
    known: dict[int, Any] = {}
    left, shape = [(len(steps), result)], list(result.type.shape)
    while left:
        number, value = left.pop()
        step = steps[number - 1] if number else None
        if number in known:
            if known[number] == value:
                continue
            if step is None or step.name != _CONSTANT:  # a constant may be there several times
                return None
        known.setdefault(number, value)
        if list(value.type.shape) != shape:
            return None
        if step is not None:
            found = _step(value)
            if found is None or found[0] != (step.name, step.said, step.element):
                return None
            left += zip(step.operands, found[1], strict=True)
    return known[0] if _element(known[0].type) == _element(result.type) else None


def _step(value: Any) -> tuple[tuple[str, tuple[str, ...], str], list[Any]] | None:
    """What computes a value, as `_Step` has it, and from which values; None if no step does."""
    operation, type_ = _origin(value), value.type
    if operation is None or not isinstance(type_, _jax.ir.RankedTensorType):
        return None
    if operation.name == _BROADCAST and (of := _origin(operation.operands[0])) and of.name == _CONSTANT:
        operation = of
    name, element = operation.name, _element(type_)
    if name == _CONSTANT:
        number = operation.attributes["value"]
        if not isinstance(number, _jax.ir.DenseElementsAttr) or not number.is_splat:
            return None
        return (name, (str(number).rpartition(" : ")[0],), element), []
    if len(operation.regions) or len(operation.results) != 1:
        return None
    said = tuple(f"{key} = {attribute}" for key, attribute in mlir.items(operation.attributes))
    return (name, said, element), list(operation.operands)


def _origin(value: Any) -> Any | None:
    """The operation that has this result; None for an argument of a block."""
    owner = value.owner
    return None if isinstance(owner, _jax.ir.Block) else owner.operation


def _element(type_: Any) -> str:
    return str(_jax.ir.RankedTensorType(type_).element_type)


@functools.cache
def _expansion(function: str, element: str) -> Sequence[_Step] | None:
    """How the installed jaxlib expands a function; None if it does not."""
    type_ = f"tensor<2x{element}>"
    text = f"""func.func @main(%x: {type_}) -> {type_} {{
        %r = "chlo.{function}"(%x) : ({type_}) -> {type_}
        return %r : {type_}
    }}"""
    with _jax.make_ir_context() as context:
        module = mlir.parse(mlir.serialize(_jax.ir.Module.parse(text)), context)
        (block,) = _jax.ir.SymbolTable(module.operation)["main"].regions[0].blocks
        known, steps = list(block.arguments), []
        *operations, _ = block.operations
        for operation in operations:
            (result,) = operation.operation.results
            found = _step(result)
            if found is None or found[0][0] == "stablehlo.composite":  # which is read back as the function
                return None
            said, operands = found
            steps.append(_Step(*said, tuple(map(known.index, operands))))
            known.append(result)
        return tuple(steps)
