"""CHLO's functions that a module has expanded to operations of StableHLO, as portable artifacts have some of them.

An expansion chooses between numbers of which some are infinite, or come from roots of 0. JAX differentiates all of
them, and 0 times infinity is NaN: each derivative of `erf_inv`, for instance. JAX's own functions have rules for this.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxexp import _jax
from jaxexp._kernel.module import composites, mlir

# Functions of one argument. Of the others, `polygamma` has NaN in its order 0, and JAX has no derivative of `zeta`.
_FUNCTIONS = "lgamma", "digamma", "bessel_i1e", "erfc", "erf_inv"
_ELEMENTS = {"f16", "bf16", "f32", "f64"}
_CONSTANT, _BROADCAST, _COMPOSITE = "stablehlo.constant", "stablehlo.broadcast_in_dim", "stablehlo.composite"


class _Kind(NamedTuple):
    """What an operation does: two of one kind compute the same from the same arrays.

    Attributes:
        name: the operation's.
        said: its attributes; of a constant, its number.
        element: the type of the elements of its result.
    """

    name: str
    said: tuple[str, ...]
    element: str


class _Step(NamedTuple):
    """An operation of an expansion, on arrays of one shape.

    Attributes:
        kind: its kind.
        operands: which values it takes: 0 is the argument of the function, and 1 the result of the first step.
    """

    kind: _Kind
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
            names |= {step.kind.name for step in steps}
            _replace(module, function, steps)
    for operation in reversed(list(mlir.iter_operations(module))):
        if operation.name in names and not _is_used(operation):
            operation.erase()


def _is_used(operation: Any) -> bool:
    return any(map(mlir.is_used, operation.results))


def _replace(module: Any, function: str, steps: Sequence[_Step]) -> None:
    for operation in mlir.iter_operations(module):
        if operation.name != steps[-1].kind.name or not _is_used(operation):  # a longer expansion had it
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
            if step is None or step.kind.name != _CONSTANT:  # a constant may be there several times
                return None
        known.setdefault(number, value)
        if list(value.type.shape) != shape:
            return None
        if step is not None:
            kind, operands = _made_by(value)
            if kind != step.kind:
                return None
            left += zip(step.operands, operands, strict=True)
    return known[0] if known[0].type == result.type else None


def _made_by(value: Any) -> tuple[_Kind | None, Sequence[Any]]:
    """The kind of the operation that makes a value, and its operands; no kind if no step is such an operation."""
    operation, type_ = mlir.origin(value), value.type
    if operation is None or not isinstance(type_, _jax.ir.RankedTensorType):
        return None, []
    if operation.name == _BROADCAST and (of := mlir.origin(operation.operands[0])) and of.name == _CONSTANT:
        operation = of
    name, element = operation.name, _element(type_)
    if name == _CONSTANT:
        number = operation.attributes["value"]
        if not isinstance(number, _jax.ir.DenseElementsAttr) or not number.is_splat:
            return None, []
        return _Kind(name, (str(number).rpartition(" : ")[0],), element), []
    if name == _COMPOSITE or len(operation.regions) or len(operation.results) != 1:
        return None, []
    said = tuple(f"{key} = {attribute}" for key, attribute in mlir.items(operation.attributes))
    return _Kind(name, said, element), list(operation.operands)


def _element(type_: Any) -> str:
    return str(_jax.ir.RankedTensorType(type_).element_type)


@functools.cache
def _expansion(function: str, element: str) -> Sequence[_Step] | None:
    """How the installed jaxlib expands a function; None if it does not."""
    type_ = f"tensor<2x{element}>"
    with _jax.make_ir_context():
        module = composites.portable(f"chlo.{function}", "", type_, type_)
        (block,) = _jax.ir.SymbolTable(module.operation)["main"].regions[0].blocks
        known, steps = list(block.arguments), []
        *operations, _ = block.operations
        for operation in operations:
            (result,) = operation.operation.results
            kind, operands = _made_by(result)
            if kind is None:  # a composite, which is read back as the function
                return None
            steps.append(_Step(kind, tuple(map(known.index, operands))))
            known.append(result)
        return tuple(steps)
