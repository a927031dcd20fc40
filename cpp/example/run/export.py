"""Writes what the programs here call: predict.jaxexp with x.npy, and step.jaxexp. This half needs JAX and jaxexp.

python export.py FOLDER

They are written for what the plugin of xla-cpu-pjrt 0.0.1 reads; a newer plugin reads what newer releases write, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxexp

READER = "jax-0.8.1"


def predict(x: jax.Array) -> jax.Array:
    weights = np.array([[1, -1], [0, 2], [-1, 0]], np.float32)
    return jax.nn.softmax(x @ weights)


def loss(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((x @ weights - y) ** 2)


def step(weights: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    value, gradient = jax.value_and_grad(loss)(weights, x, y)
    return weights - 0.3 * gradient, value


def main(folder: Path) -> None:
    x, weights, points, y = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2, 3), (2,), (4, 2), (4,)))
    jaxexp.export(jax.jit(predict))(x).save(folder / "predict.jaxexp", compatibility=READER)
    trained = jax.jit(step, donate_argnums=0)  # its memory becomes that of the new weights
    jaxexp.export(trained)(weights, points, y).save(folder / "step.jaxexp", compatibility=READER)
    np.save(folder / "x.npy", np.arange(6, dtype=np.float32).reshape(2, 3))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
