"""Assertions about sizes that a module leaves open, in the form of those that JAX makes for dimension variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxexp import _jax


def insert(holds: Sequence[Any], message: str) -> None:
    """Adds an assertion that all of some truth values hold, at the current insertion point and location."""
    ir, hlo = _jax.ir, _jax.hlo
    all_hold, *others = holds
    for other in others:
        all_hold = hlo.and_(all_hold, other)
    attributes = {
        "call_target_name": ir.StringAttr.get("shape_assertion"),
        "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2),
        "has_side_effect": ir.BoolAttr.get(True),
        "error_message": ir.StringAttr.get(message),
    }
    ir.Operation.create("stablehlo.custom_call", results=[], operands=[all_hold], attributes=attributes)
