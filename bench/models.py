"""Models of the usual kinds. A new process that runs one imports nothing but JAX for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any


def _weights(*shapes: tuple[int, ...]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[:-1]))) for shape in shapes]


def _images(count: int, size: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).standard_normal((count, size, size, 3), np.float32))


def convnet(weights: list[jax.Array], images: jax.Array) -> jax.Array:
    """Eight convolutions, every other one with a stride of two, and a layer of logits."""
    *convolutions, last = weights
    for i, kernel in enumerate(convolutions):
        strides = (1 + i % 2,) * 2
        images = jax.nn.relu(
            jax.lax.conv_general_dilated(images, kernel, strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        )
    return jax.nn.log_softmax(images.mean((1, 2)) @ last)


def _convnet() -> tuple[Any, ...]:
    channels = (3, 16, 16, 32, 32, 48, 48, 64, 64)
    kernels = [(3, 3, before, after) for before, after in itertools.pairwise(channels)]
    return _weights(*kernels, (64, 10)), _images(4, 32)


HEADS, WIDTH = 4, 256


def transformer(layers: list[dict[str, jax.Array]], tokens: jax.Array) -> jax.Array:
    return encoder(layers, jax.nn.one_hot(tokens, WIDTH))


def encoder(layers: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    """Twelve layers of attention and a feed-forward network, one after the other."""
    for layer in layers:
        q, k, v = (
            (normalized(x) @ layer[name]).reshape(*x.shape[:-1], HEADS, WIDTH // HEADS) for name in ("q", "k", "v")
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(WIDTH // HEADS)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
        x = x + mixed @ layer["out"]
        x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
    return normalized(x)


def normalized(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def _transformer() -> tuple[Any, ...]:
    square, up = (WIDTH, WIDTH), (WIDTH, 4 * WIDTH)
    names = ("q", "k", "v", "out", "up", "down")
    layer = dict(zip(names, _weights(square, square, square, square, up, up[::-1]), strict=True))
    tokens = jnp.asarray(np.random.default_rng(2).integers(0, WIDTH, (2, 64)))
    return [jax.tree.map(lambda w, i=i: w * (1 + i / 100), layer) for i in range(12)], tokens


def train_step(weights: Tree, moments: Tree, images: jax.Array, labels: jax.Array) -> tuple[Tree, Tree, jax.Array]:
    """A step of gradient descent with momentum on the convolutional network."""

    def loss(weights: Tree) -> jax.Array:
        return -jnp.take_along_axis(convnet(weights, images), labels[:, None], 1).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    moments = jax.tree.map(lambda moment, gradient: 0.9 * moment + gradient, moments, gradients)
    return jax.tree.map(lambda weight, moment: weight - 0.01 * moment, weights, moments), moments, value


def _train_step() -> tuple[Any, ...]:
    weights, images = _convnet()
    return weights, jax.tree.map(jnp.zeros_like, weights), images, jnp.arange(len(images)) % 10


def tiny(x: jax.Array) -> jax.Array:
    return jnp.tanh(x) @ x.T


def _tokens() -> jax.Array:
    return jnp.asarray(np.random.default_rng(3).standard_normal((2, 64, WIDTH), np.float32))


# Models that are served, by name: the function, and what makes its weights and its other argument.
SERVED: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, jax.Array]]]] = {
    "16 numbers": (lambda _, x: x + 1, lambda: ((), jnp.arange(16.0))),
    "convnet": (convnet, _convnet),
    "transformer": (encoder, lambda: (_transformer()[0], _tokens())),
}

# By name: the function, and what makes its arguments.
MODELS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "tiny": (tiny, lambda: (_images(1, 4)[0, 0],)),
    "convnet": (convnet, _convnet),
    "transformer": (transformer, _transformer),
    "train_step": (train_step, _train_step),
}
