"""Functions with what they do to rounding errors: each with another way to compute the same, as a compiler might."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_random = np.random.RandomState(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    """Random numbers of float32."""
    return _random.standard_normal(shape).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Computed:
    """A function, its arguments, and another function that differs from it in rounding only.

    Attributes:
        is_ill: whether the two differ by more than a constant allows that suits other functions.
    """

    function: Callable[..., Any]
    arguments: Sequence[Any]
    other: Callable[..., Any]
    is_ill: bool = False


def in_turn(x: jax.Array) -> jax.Array:
    """A sum of the last axis from left to right."""
    return lax.scan(lambda total, one: (total + one, None), jnp.zeros(x.shape[:-1], x.dtype), jnp.moveaxis(x, -1, 0))[0]


def _variance(total: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    return total(x * x) / x.size - (total(x) / x.size) ** 2


def _power(times: Callable[[jax.Array, jax.Array], jax.Array], a: jax.Array, v: jax.Array) -> jax.Array:
    def turn(_: Any, v: jax.Array) -> jax.Array:
        w = times(a, v)
        return w / jnp.sqrt(jnp.sum(w * w))

    return lax.fori_loop(0, 20, turn, v)


def _orders(x: jax.Array) -> jax.Array:
    return jnp.sum(x * jnp.where(jnp.arange(x.size) % 2 == 0, 1.0, -1.0))


def _mlp(total: Callable[[jax.Array], jax.Array], x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    def times(x: jax.Array, w: jax.Array) -> jax.Array:
        return total(x[:, None, :] * w.T[None])

    return jnp.tanh(times(jnp.tanh(times(x, a)), b))


_HILBERT = (1 / (np.arange(6)[:, None] + np.arange(6) + 1)).astype(np.float32)
_MATRIX = np.abs(normal(20, 20)), np.abs(normal(20))
_LAYERS = normal(8, 64), normal(64, 64) / 8, normal(64, 64) / 8


ILL = {
    "hilbert": Computed(
        jnp.linalg.solve, (_HILBERT, np.ones(6, np.float32)), lambda a, b: jnp.linalg.inv(a) @ b, is_ill=True
    ),
    "alternating sum": Computed(
        _orders, (1e6 + 1e3 * normal(1000),), lambda x: jnp.sum(x[::2]) - jnp.sum(x[1::2]), is_ill=True
    ),
    "absorbed": Computed(
        lambda x: (1e8 + x) - lax.optimization_barrier(jnp.float32(1e8)), (3 * normal(5),), lambda x: x, is_ill=True
    ),
    "variance": Computed(
        lambda x: _variance(jnp.sum, x), (1000 + normal(1000),), lambda x: _variance(in_turn, x), is_ill=True
    ),
    "softmax of large sums": Computed(
        lambda x, y: jax.nn.softmax(x @ y),
        (100 + normal(8, 64), 1 + 1e-3 * normal(64, 8)),
        lambda x, y: jax.nn.softmax(in_turn(x[:, None] * y.T)),
        is_ill=True,
    ),
    "power iteration": Computed(
        lambda a, v: _power(lambda a, v: a @ v, a, v), _MATRIX, lambda a, v: _power(lambda a, v: in_turn(a * v), a, v)
    ),
}
WELL = {
    "sine": Computed(jnp.sin, (1.5 + np.tanh(normal(100)),), lambda x: jnp.cos(x - jnp.pi / 2)),
    "mlp": Computed(lambda x, a, b: jnp.tanh(jnp.tanh(x @ a) @ b), _LAYERS, lambda *args: _mlp(in_turn, *args)),
    "matmul": Computed(jnp.matmul, (normal(16, 512), normal(512, 64)), lambda a, b: in_turn(a[:, None] * b.T)),
}
