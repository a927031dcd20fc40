"""Functions to be mapped over batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import core

import jaxexp
from jaxexp._kernel.call.primitive import call_exported_p, pushforward_p
from jaxexp._readback.vmap import mapped_p


def reload(exported: Any, vjp_order: int = 0) -> jaxexp.Exported:
    return jaxexp.deserialize(bytes(exported.serialize(vjp_order=vjp_order)))


def loaded(fun: Callable[..., Any], *args: Any, **options: Any) -> jaxexp.Exported:
    """A function that was exported with its derivative, and read again."""
    return reload(jaxexp.export(jax.jit(fun), **options)(*args), 1)


def operations(fun: Callable[..., Any], *args: Any) -> list[str]:
    """The calls of exported functions, and the loops, in the jaxpr of a function."""
    found: list[str] = []

    def walk(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            if eqn.primitive in (call_exported_p, pushforward_p, mapped_p) or eqn.primitive.name in ("scan", "while"):
                found.append(eqn.primitive.name)
            for inner in core.jaxprs_in_params(eqn.params):
                walk(inner)

    walk(jax.make_jaxpr(fun)(*args).jaxpr)
    return sorted(found)


MAPPED, ONE = ["call_exported_mapped"], ["call_exported"]


def rows(x: Any, w: Any, n: Any) -> Any:
    """Rows are independent of one another: float32[b, 4], float32[4, 2], int32[b] -> {"y": [b, 2], "n": [b]}"""
    return {"y": jnp.tanh(x @ w) * n[:, None], "n": n + 1}
