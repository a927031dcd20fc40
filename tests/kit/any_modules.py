"""Functions whose modules have any bytes, of any size."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import jaxexp

from .corpus import arr


def with_modules(seed: int, size: int) -> jaxexp.Exported:
    """A function and a VJP whose modules have any bytes."""

    def model(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    function = jaxexp.export(jax.jit(model))(arr(2))
    source = np.random.default_rng(seed)
    vjp = dataclasses.replace(function.vjp(), mlir_module_serialized=source.bytes(size // 3), _get_vjp=None)
    return dataclasses.replace(function, mlir_module_serialized=source.bytes(size), _get_vjp=lambda _: vjp)
