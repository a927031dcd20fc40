"""Recognizes regions that apply one operation."""

from __future__ import annotations

from .program import Block


def only_operation(block: Block, *, in_order: bool = False) -> str:
    """The name of the one operation that a block of two parameters applies to them; "" if it does anything else.

    Args:
        block: the block.
        in_order: whether the operation must take them in order.
    """
    if len(block.steps) != 1 or len(block.parameters) != 2 or block.steps[0].outputs != block.results:
        return ""
    (step,) = block.steps
    orders = [block.parameters] if in_order else [block.parameters, block.parameters[::-1]]
    return step.name if step.inputs in orders else ""
