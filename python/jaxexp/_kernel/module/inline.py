"""Lowers JAX functions into an existing module, in place of an operation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from jaxexp import _jax


def lower_inline(function: Callable[..., Any], module: Any, avals: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """Lowers `function` on `operands` at the current insertion point of `module`; returns its flat results.

    Symbolic dimensions of `avals` become sizes that are read from the operands at run time.
    """
    module_context = _jax.ModuleContext(
        backend=None,
        platforms=["cpu"],  # integer arithmetic on shapes: the same on every platform
        axis_context=_jax.ShardingContext(0),
        keepalives=[],
        channel_iterator=itertools.count(1),
        host_callbacks=[],
        module=module,
        context=module.context,
        lowering_parameters=_jax.lowering_parameters(None, global_constants=True),
    )
    context = _jax.LoweringRuleContext(
        avals_in=avals,
        avals_out=None,
        const_lowering={},
        module_context=module_context,
        name_stack=_jax.new_name_stack(),
        primitive=None,
        tokens_in=_jax.TokenSet(),
        tokens_out=None,
        traceback=None,
    )
    results, _ = _jax.flatten_ir(_jax.lower_as_function(function)(context, *operands))
    return list(results)
