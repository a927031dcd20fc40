"""Step 1 of the demo: train a digit classifier, export it, and save it beside the live model's results.

    python demo/train.py FOLDER

FOLDER then holds `predict.jaxexp` (the trained classifier), `loss.jaxexp` (its loss with derivatives to order 2) and
`reference.npz` (held-out digits and the live model's answers). check.py reads them in another process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import jaxexp as export

PLATFORMS = ("cpu", "cuda", "tpu")
LAYERS = (64, 128, 64, 10)
HELD_OUT = 360
EPOCHS, BATCH, STEP, MOMENTUM = 60, 64, 0.05, 0.9

Params = dict[str, dict[str, jax.Array]]
State = tuple[Params, Params]  # parameters and their velocity


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The 1797 images, f32[1797, 64] within 0 to 1, and their labels, i32[1797], in a fixed random order."""
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    return (bunch.data[order] / 16).astype(np.float32), bunch.target[order].astype(np.int32)


def init(key: jax.Array) -> Params:
    shapes = list(pairwise(LAYERS))
    return {
        f"layer_{i}": {"w": jax.random.normal(k, (n, m)) / jnp.sqrt(n), "b": jnp.zeros(m)}
        for i, (k, (n, m)) in enumerate(zip(jax.random.split(key, len(shapes)), shapes, strict=True))
    }


def logits(params: Params, images: jax.Array) -> jax.Array:
    """f32[b, 64] -> f32[b, 10]."""
    *hidden, last = params.values()
    for layer in hidden:
        images = jnp.tanh(images @ layer["w"] + layer["b"])
    return images @ last["w"] + last["b"]


def loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy of f32[b, 64] images and i32[b] labels: f32[]."""
    log_p = jax.nn.log_softmax(logits(params, images))
    return -jnp.mean(jnp.take_along_axis(log_p, labels[:, None], axis=1))


def train(params: Params, images: np.ndarray, labels: np.ndarray) -> Params:
    """Stochastic gradient descent with momentum; each epoch is a jitted scan."""

    def step(state: State, batch: tuple[jax.Array, jax.Array]) -> tuple[State, jax.Array]:
        params, velocity = state
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v - STEP * g, velocity, gradient)
        return (jax.tree.map(jnp.add, params, velocity), velocity), value

    epoch = jax.jit(partial(jax.lax.scan, step))
    state = params, jax.tree.map(jnp.zeros_like, params)
    rng = np.random.default_rng(1)
    for _ in range(EPOCHS):
        order = rng.permutation(len(labels))[: len(labels) // BATCH * BATCH].reshape(-1, BATCH)
        state, _ = epoch(state, (images[order], labels[order]))
    return state[0]


def hessian_vector_product(f: Callable[..., jax.Array], params: Params, direction: Params, *rest: np.ndarray) -> Params:
    """Reverse mode over reverse mode, which needs VJPs to order 2."""

    def slope(params: Params) -> jax.Array:
        gradient = jax.grad(f)(params, *rest)
        return sum(jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))

    return jax.grad(slope)(params)


def main(folder: Path) -> None:
    images, labels = digits()
    held_out = images[-HELD_OUT:], labels[-HELD_OUT:]
    start = time.perf_counter()
    params = train(init(jax.random.key(0)), images[:-HELD_OUT], labels[:-HELD_OUT])
    jax.block_until_ready(params)
    print(f"trained on {len(labels) - HELD_OUT} digits, {EPOCHS} epochs, in {time.perf_counter() - start:.1f} s")

    scope = export.SymbolicScope()
    image_spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, 64", scope=scope), np.float32)
    label_spec = jax.ShapeDtypeStruct(export.symbolic_shape("b", scope=scope), np.int32)
    param_specs = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), params)

    start = time.perf_counter()
    predict = jax.jit(lambda images: logits(params, images))
    export.export(predict, platforms=PLATFORMS)(image_spec).save(folder / "predict.jaxexp")
    exported_loss = export.export(jax.jit(loss), platforms=PLATFORMS)(param_specs, image_spec, label_spec)
    exported_loss.save(folder / "loss.jaxexp", vjp_order=2)
    print(f"exported and saved for {', '.join(PLATFORMS)}, any batch size, in {time.perf_counter() - start:.1f} s")

    rng = np.random.default_rng(2)
    direction = jax.tree.map(lambda p: rng.standard_normal(p.shape, np.float32), params)
    trees = {
        "params": params,
        "direction": direction,
        "gradient": jax.jit(jax.grad(loss))(params, *held_out),
        "hvp": jax.jit(partial(hessian_vector_product, loss))(params, direction, *held_out),
    }
    flat = {
        f"{title}/{layer}/{name}": x
        for title, tree in trees.items()
        for layer, arrays in tree.items()
        for name, x in arrays.items()
    }
    np.savez(
        folder / "reference.npz",
        images=held_out[0],
        labels=held_out[1],
        logits=predict(held_out[0]),
        loss=jax.jit(loss)(params, *held_out),
        **flat,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
