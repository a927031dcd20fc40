"""Artifacts for tests of archives: quick to make, of equal and of different modules."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxexp


def scaled(x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    return jnp.tanh(x @ w["kernel"]) + w["bias"]


ARGS = (
    jax.ShapeDtypeStruct((2, 4), np.float32),
    {"kernel": jax.ShapeDtypeStruct((4, 3), np.float32), "bias": jax.ShapeDtypeStruct((3,), np.float32)},
)


@functools.cache
def platforms(factor: float) -> dict[str, jaxexp.Exported]:
    """Made in one place: modules say where their function was called."""

    def model(x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
        return scaled(x, w) * factor

    jitted, made = jax.jit(model), {}
    for name in ("cpu", "cuda", "tpu"):
        made[name] = jaxexp.export(jitted, platforms=[name])(*ARGS)
        made[name].vjp().vjp()
    return made


def exported(platform: str = "cpu", factor: float = 1.0) -> jaxexp.Exported:
    """Of one module for all platforms, and of another one for each factor."""
    return platforms(factor)[platform]


@functools.cache
def blob(platform: str = "cpu", factor: float = 1.0, vjp_order: int = 0, version: int | None = None) -> bytes:
    """Of other bytes for each version, and the same module."""
    metadata = None if version is None else {"version": version}
    return bytes(exported(platform, factor).serialize(vjp_order, metadata=metadata))


@functools.cache
def plain(factor: float = 1.0) -> bytes:
    """What `jax.export` writes."""
    return bytes(jax.export.export(jax.jit(lambda x: jnp.cos(x) * factor))(ARGS[0]).serialize())


def unzip(*arguments: str | Path) -> str:
    """What the program says."""
    done = subprocess.run(["unzip", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
