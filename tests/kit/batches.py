"""Functions to be mapped over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import core

import jaxexp
from jaxexp._kernel.call.primitive import call_exported_p, pushforward_p
from jaxexp._readback.vmap import mapped_p


def eager(fun: Any) -> Any:
    """Beside `jax.jit`."""
    return fun


def reload(exported: Any, vjp_order: int = 0) -> jaxexp.Exported:
    return jaxexp.deserialize(bytes(exported.serialize(vjp_order=vjp_order)))


def loaded(fun: Callable[..., Any], *args: Any, **options: Any) -> jaxexp.Exported:
    """A function that was exported with its derivative, and read again."""
    return reload(jaxexp.export(jax.jit(fun), **options)(*args), 1)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All of a jaxpr, and of those inside."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in core.jaxprs_in_params(eqn.params):
            yield from equations(inner)


def operations(fun: Callable[..., Any], *args: Any) -> list[str]:
    """The calls of exported functions, and the loops, in the jaxpr of a function."""
    names = [eqn.primitive.name for eqn in equations(jax.make_jaxpr(fun)(*args).jaxpr)]
    return sorted(name for name in names if name in CALLS_AND_LOOPS)


CALLS_AND_LOOPS = {call_exported_p.name, pushforward_p.name, mapped_p.name, "scan", "while"}
MAPPED, ONE = ["call_exported_mapped"], ["call_exported"]


def rows(x: Any, w: Any, n: Any) -> Any:
    """Rows are independent of one another: float32[b, 4], float32[4, 2], int32[b] -> {"y": [b, 2], "n": [b]}"""
    return {"y": jnp.tanh(x @ w) * n[:, None], "n": n + 1}
