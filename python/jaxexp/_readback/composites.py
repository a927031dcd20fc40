"""Composites: operations that come with a function that defines them, such as CHLO's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from jax import lax

from .elementwise import CHLO, check_kinds
from .operation import Function, Many, Operation


def composite(operation: Operation) -> Callable[..., Any] | Many | Function:
    name = operation.text("name")
    operation.integer("version", 0)  # of the name's meaning; the function below is the meaning
    function = operation.function(operation.symbol("decomposition"))
    if not name.startswith("chlo."):
        if operation.has("composite_attributes"):
            operation.ignore("composite_attributes")  # the function has them in it
        return function
    attributes = operation.values("composite_attributes")
    return by_name(operation, name.removeprefix("chlo."), attributes) or function


def by_name(operation: Operation, name: str, attributes: dict[str, Any]) -> Callable[..., Any] | Many | None:
    """JAX's function for an operation of CHLO; None if it has none."""
    if name == "top_k" and attributes.keys() <= {"k", "is_stable"}:
        return _top_k(int(attributes["k"]), bool(attributes.get("is_stable", True)))
    if name in CHLO and not attributes:
        function, kinds = CHLO[name]
        check_kinds(operation, kinds)
        return function
    return None


# Before JAX 0.11, its function is always stable.
_IS_STABLE_IS_SAID = "is_stable" in inspect.signature(lax.top_k).parameters


def _top_k(k: int, is_stable: bool) -> Many:
    options: dict[str, Any] = {"is_stable": is_stable} if _IS_STABLE_IS_SAID else {}
    return Many(lambda x: lax.top_k(x, k, **options))


def chlo_top_k(operation: Operation) -> Many:
    return _top_k(operation.integer("k"), operation.boolean("is_stable", True))
