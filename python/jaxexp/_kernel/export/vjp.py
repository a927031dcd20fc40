"""The VJP of a lowered function, as a function that can be exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._kernel.function import sharding


def vjp_function(
    jaxpr: Any,
    in_avals: Sequence[Any],
    in_shardings: Sequence[Any],
    out_avals: Sequence[Any],
    out_shardings: Sequence[Any],
) -> tuple[Callable[..., Any], list[Any]]:
    """The jitted VJP of a jaxpr, and the abstract values to export it with.

    The VJP takes the flat primal arguments and one cotangent per result, and returns one cotangent per argument.
    A cotangent has the shape, the dtype and the sharding of its primal value, but dtype float0 if the primal is not
    differentiable.
    """
    primal = _jax.jaxpr_as_fun(jaxpr)

    def fun_vjp_jax(*primals_and_cotangents: Any) -> Any:  # named as jax.export names it: the name is in the artifact
        primals, cotangents = primals_and_cotangents[: len(in_avals)], primals_and_cotangents[len(in_avals) :]
        _, pullback = jax.vjp(primal, *primals)
        return pullback(list(cotangents))

    of_primals, of_results = (tuple(map(sharding.for_jit, s)) for s in (in_shardings, out_shardings))
    of_cotangents = tuple(map(sharding.of_cotangent, of_results))
    jitted = jax.jit(fun_vjp_jax, in_shardings=of_primals + of_cotangents, out_shardings=of_primals)
    return jitted, [*in_avals, *(aval.to_ct_aval() for aval in out_avals)]
