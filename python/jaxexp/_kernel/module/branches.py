"""Finds the custom calls of a module that run on one of its platforms.

The main function of a module for several platforms takes the index of the platform as its first argument, and passes it
on as the first argument of other functions. `stablehlo.case` chooses by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from jaxexp import _jax

# At most this many operations may lie between the platform index and the index of a branch; JAX needs a few for each
# `lax.platform_dependent`. If there are more, all branches count.
_MOST_STEPS = 64

# More than there are platforms. Each function is visited at most once for each.
_MOST_PLATFORMS = 8


def custom_calls_on(module: Any, platform: int | None) -> Iterator[Any]:
    """The custom calls that may run when main is called with a platform index; None if main takes none."""
    symbols = _jax.ir.SymbolTable(module.operation)
    pending: list[tuple[Any, int | None]] = [(symbols["main"].operation, platform)]
    seen = {("main", platform)}
    while pending:
        operation, first_argument = pending.pop()
        if operation.name == "stablehlo.custom_call":
            yield operation
        passed = None
        if operation.name == "func.call" and len(operation.operands):
            passed = _number(operation.operands[0], first_argument)
        for name in _references(operation):
            if (name, passed) not in seen and name in symbols:
                seen.add((name, passed))
                pending.append((symbols[name].operation, passed))
        for region in _regions(operation, first_argument):
            pending += [(inner.operation, first_argument) for block in region for inner in block]


def _regions(operation: Any, first_argument: int | None) -> Sequence[Any]:
    """The regions of an operation that may run."""
    regions = list(operation.regions)
    if operation.name != "stablehlo.case":
        return regions
    index = _number(operation.operands[0], first_argument)
    return regions if index is None else [regions[_branch(index, regions)]]


def _branch(index: int, regions: Sequence[Any]) -> int:
    """The branch of a case: the last one if no branch has this index."""
    return min(index, len(regions) - 1)


def _number(value: Any, first_argument: int | None) -> int | None:
    """The value of an integer that depends only on the first argument of its function; None for any other value."""
    waiting: list[tuple[Any, int]] = []  # the operations that lead to `value`, with the index of a result
    for _ in range(_MOST_STEPS):
        number = None
        if isinstance(value.owner, _jax.ir.Block):
            around = value.owner.owner.operation
            number = first_argument if around.name == "func.func" and value.arg_number == 0 else None
        else:
            operation = value.owner.operation
            if operation.name == "stablehlo.convert" and _is_index(value) and _is_index(operation.operands[0]):
                value = operation.operands[0]
                continue
            if operation.name in ("stablehlo.case", "stablehlo.clamp"):
                waiting.append((operation, value.result_number))
                value = operation.operands[1 if operation.name == "stablehlo.clamp" else 0]
                continue
            number = _constant(operation)
        while number is not None and waiting and waiting[-1][0].name == "stablehlo.clamp":
            least, _, most = waiting.pop()[0].operands
            number = _clamped(_constant(least.owner), number, _constant(most.owner))
        if number is None or not waiting:
            return number
        chosen, result = waiting.pop()
        branch = chosen.regions[_branch(number, chosen.regions)].blocks[0]
        value = branch.operations[len(branch.operations) - 1].operands[result]
    return None


def _clamped(least: int | None, number: int, most: int | None) -> int | None:
    return None if least is None or most is None else min(max(least, number), most)


def _is_index(value: Any) -> bool:
    """Whether a value has one of the types that JAX gives to the index of a platform."""
    return str(value.type) in ("tensor<i32>", "tensor<i64>")


def _constant(owner: Any) -> int | None:
    """The value of an operation that is a small integer scalar; None for any other operation or block."""
    if isinstance(owner, _jax.ir.Block) or owner.operation.name != "stablehlo.constant":
        return None
    operation = owner.operation
    value = operation.attributes["value"]
    if not _is_index(operation.results[0]) or not isinstance(value, _jax.ir.DenseIntElementsAttr):
        return None
    number = int(value[0])
    return number if 0 <= number < _MOST_PLATFORMS else None


def _references(operation: Any) -> Sequence[str]:
    """The functions that an operation calls."""
    attributes = operation.attributes
    names = (name for name in ("callee", "called_computations", "decomposition") if name in attributes)
    return re.findall(r'@"?([^",\]]+)', " ".join(str(attributes[name]) for name in names))
