"""Functions of one element, for batches: each with the arguments of one element, and which of them a batch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Arguments = tuple[Any, ...]


def _normal(seed: int, *shape: int) -> jax.Array:
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return jnp.asarray(values / np.sqrt(np.prod(shape[:-1]) or 1))


def _layers(width: int) -> list[tuple[jax.Array, jax.Array]]:
    return [(_normal(i, width, width), jnp.full(width, 0.1 * i)) for i in range(3)]


def mlp(layers: Any, x: jax.Array) -> jax.Array:
    for w, b in layers:
        x = jnp.tanh(x @ w + b)
    return x


def convnet(kernels: Any, image: jax.Array) -> jax.Array:
    x = image[None]
    for kernel in kernels:
        x = jax.nn.relu(
            jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        )
    return x.mean((0, 1, 2))


def transformer(layers: Any, x: jax.Array) -> jax.Array:
    """Layers of attention and a feed-forward network, one after the other in a scan."""

    def layer(x: jax.Array, weights: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        query, key, value, up, down = weights
        scores = jax.nn.softmax((x @ query) @ (x @ key).T / 8)
        x = x + scores @ (x @ value)
        return x + jax.nn.gelu(x @ up) @ down, None

    return jax.lax.scan(layer, x, layers)[0]


def recurrent(w: jax.Array, steps: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda state, x: (jnp.tanh(state @ w + x), state.sum()), jnp.zeros(len(w)), steps)[1]


def sorted_rows(table: jax.Array, keys: jax.Array) -> jax.Array:
    """Rows of a table in the order of the largest keys."""
    order = jnp.argsort(-keys)
    return table[order[:16]] * jnp.sort(keys)[:16, None]


def solve(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.linalg.solve(a + 8 * jnp.eye(len(a)), b)


def loss(layers: Any, x: jax.Array) -> jax.Array:
    return jnp.mean(mlp(layers, x) ** 2)


def long(x: jax.Array) -> jax.Array:
    """5,000 operations."""
    for _ in range(1250):
        x = jnp.sin(x) + x - jnp.cos(x)
    return x


_SQUARE, _UP = (6, 64, 64), (6, 64, 256)

# By name: the function, its arguments for one element, and which of them a batch has.
BATCHES: dict[str, tuple[Callable[..., Any], Callable[[], Arguments], tuple[bool, ...]]] = {
    "MLP": (mlp, lambda: (_layers(256), _normal(3, 256)), (False, True)),
    "small convnet": (
        convnet,
        lambda: ([_normal(0, 3, 3, 3, 16), _normal(1, 3, 3, 16, 32)], _normal(2, 24, 24, 3)),
        (False, True),
    ),
    "transformer with scan": (
        transformer,
        lambda: (
            (*(_normal(i, *_SQUARE) for i in range(3)), _normal(3, *_UP), _normal(4, *_UP).transpose(0, 2, 1)),
            _normal(5, 16, 64),
        ),
        (False, True),
    ),
    "recurrent": (recurrent, lambda: (_normal(0, 64, 64), _normal(1, 32, 64)), (False, True)),
    "sort and gather": (sorted_rows, lambda: (_normal(0, 128, 8), _normal(1, 128)), (False, True)),
    "solve": (solve, lambda: (_normal(0, 12, 12), _normal(1, 12)), (True, True)),
    "gradients of each": (loss, lambda: (_layers(128), _normal(3, 128)), (False, True)),
}
