"""Calls, branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from .loops import counted_loop
from .operation import Function, Many, Operation
from .program import Block


def _captures(*blocks: Block) -> tuple[tuple[int, ...], list[Callable[[Sequence[Any]], list[Any]]]]:
    """The values that blocks capture together, and for each block a function that picks its own."""
    captures = tuple(dict.fromkeys(number for block in blocks for number in block.captures))
    places = {number: place for place, number in enumerate(captures)}

    def picking(block: Block) -> Callable[[Sequence[Any]], list[Any]]:
        own = [places[number] for number in block.captures]
        return lambda values: [values[place] for place in own]

    return captures, [picking(block) for block in blocks]


def call(operation: Operation) -> Function:
    return operation.function(operation.symbol("callee"))


def while_(operation: Operation) -> Many:
    condition, body = operation.region(0), operation.region(1)
    counted = counted_loop(operation, condition, body)
    if counted is not None:
        return counted
    captures, (of_condition, of_body) = _captures(condition, body)
    n = len(operation.results)

    def run(*arguments: Any) -> Sequence[Any]:
        start, around = arguments[:n], arguments[n:]
        return lax.while_loop(
            lambda carry: condition(carry, of_condition(around))[0],
            lambda carry: tuple(body(carry, of_body(around))),
            tuple(start),
        )

    return Many(run, captures)


def case(operation: Operation) -> Many | Block:
    last = operation.region_count - 1
    known = operation.constant(0)
    if known is not None:
        return operation.only_region(int(known) if 0 <= known <= last else last)

    def inside(index: Any) -> Any:
        """The index for JAX. Outside the range, the operation takes its last branch, and JAX the nearest one."""
        is_inside = lax.bitwise_and(lax.ge(index, np.int32(0)), lax.le(index, np.int32(last)))
        return lax.select(is_inside, index, lax.full_like(index, last))

    return _branches(operation, [operation.region(i) for i in range(last + 1)], inside)


def if_(operation: Operation) -> Many:
    on_true, on_false = operation.region(0), operation.region(1)
    return _branches(operation, [on_false, on_true], lambda which: lax.convert_element_type(which, np.int32))


def _branches(operation: Operation, blocks: Sequence[Block], index: Callable[[Any], Any]) -> Many:
    captures, picks = _captures(*blocks)

    def run(which: Any, *around: Any) -> Sequence[Any]:
        branches = [
            lambda *values, block=block, pick=pick: tuple(block((), pick(values)))
            for block, pick in zip(blocks, picks, strict=True)
        ]
        return lax.switch(index(which), branches, *around)

    return Many(run, captures)


def barrier(operation: Operation) -> Many:
    return Many(lambda *values: tuple(lax.optimization_barrier(values)))
