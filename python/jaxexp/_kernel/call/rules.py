"""The rules of JAX for the primitives of calls. The rule of `jax.vmap` is a method of the function's class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxexp import _jax

from . import derivatives, lowering  # noqa: F401  (they register rules)
from .primitive import call_exported_p, pushforward_p


def _batching_rule(primitive: Any) -> Callable[..., Any]:
    def rule(*mapped: Any, exported: Any, **params: Any) -> Any:
        return exported._batch(primitive, *mapped, exported=exported, **params)

    return rule


for _primitive in (call_exported_p, pushforward_p):
    _jax.fancy_primitive_batchers[_primitive] = _batching_rule(_primitive)
