"""Functions that close over arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.program import Program

WIDTH = 4096  # a square array of 64 MiB


@dataclasses.dataclass(frozen=True)
class Chain:
    """A chain of layers. It closes over its weights; `apply` takes them as an argument."""

    params: dict[str, jax.Array]

    def __call__(self, x: Any) -> Any:
        return self.apply(self.params, x)

    @staticmethod
    def apply(params: dict[str, Any], x: Any) -> Any:
        for w in params.values():
            x = jnp.tanh(x @ w)
        return x


def chain(layers: int, width: int = WIDTH) -> Program:
    """So many square layers; no two have the same weights."""
    base = np.random.default_rng(0).standard_normal((width, width), np.float32) / np.float32(np.sqrt(width))
    params = {f"layer{i:03}": jnp.asarray(base + np.float32(i * 1e-4)) for i in range(layers)}
    x = np.ones((8, width), np.float32)
    return Program(Chain(params), (jax.ShapeDtypeStruct(x.shape, x.dtype),), (x,))


@dataclasses.dataclass(frozen=True)
class Sum(Chain):
    """It adds its weights, which takes next to no time."""

    @staticmethod
    def apply(params: dict[str, Any], x: Any) -> Any:
        return sum(params.values(), x)


def total(count: int) -> Program:
    """A sum of so many small arrays."""
    params = {f"term{i:03}": jnp.full(8, float(i)) for i in range(count)}
    x = np.ones(8, np.float32)
    return Program(Sum(params), (jax.ShapeDtypeStruct(x.shape, x.dtype),), (x,))


def params_of(program: Program) -> dict[str, jax.Array]:
    """The arrays that one of these functions closes over."""
    assert isinstance(program.function, Chain)
    return program.function.params
