"""First and second derivatives of any function of a pytree, for comparing a loaded function with the live one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_inexact(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def cotangents(results: Any) -> Any:
    """Cotangents for results: a different weight for each, float0 for integers."""

    def one(i: int, r: Any) -> Any:
        if not is_inexact(r):
            return np.zeros(r.shape, jax.dtypes.float0)
        return jnp.full_like(r, 0.5 + 0.25 * i)

    leaves, tree = jax.tree.flatten(results)
    return tree.unflatten([one(i, r) for i, r in enumerate(leaves)])


def pull_back(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The cotangents of (args, kwargs), integers included, under `cotangents` of the results."""
    results, pullback = jax.vjp(lambda a, k: fun(*a, **k), args, kwargs)
    return pullback(cotangents(results))


def second_order(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The gradient of a weighted sum of the gradient of a weighted sum of `fun`, by its inexact arguments."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    where = [i for i, x in enumerate(leaves) if is_inexact(x)]

    def weighted(values: Any) -> Any:
        chosen = [v for v in jax.tree.leaves(values) if is_inexact(v)]
        return sum(jnp.real(jnp.sum(v * (0.5 + 0.25 * i)) + jnp.sum(v * v)) for i, v in enumerate(chosen))

    def value(*xs: Any) -> Any:
        filled = list(leaves)
        for i, x in zip(where, xs, strict=True):
            filled[i] = x
        a, k = tree.unflatten(filled)
        return weighted(fun(*a, **k))

    def gradient_of(f: Callable[..., Any]) -> Callable[..., Any]:
        def gradient(*xs: Any) -> Any:
            result, pullback = jax.vjp(f, *xs)
            return pullback(jnp.ones_like(result))

        return gradient

    outer = gradient_of(lambda *xs: weighted(gradient_of(value)(*xs)))
    return list(jax.jit(outer)(*(leaves[i] for i in where)))
