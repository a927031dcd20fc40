"""Writes artifacts in each calling convention below 9 that the installed release of JAX, 0.4.22 to 0.4.25, can write.

usage: generate.py FOLDER

`FOLDER/jax-VERSION/CASE_CONVENTION.bin` is the artifact, `CASE.npz` its arguments (`in_0`, ...) and what the function
computed there (`out_0`, ...). Needs no part of jaxexp.
"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import export as jax_export

if not hasattr(jax_export, "serialize"):  # before 0.4.24
    from jax.experimental.export import export as jax_export
    from jax.experimental.export.serialization import serialize
else:
    serialize = jax_export.serialize


def constant(x, y):
    return {"sum": x + 1, "product": jnp.tanh(x) @ y}


def symbolic(x, y):
    return jnp.tanh(x) @ y, jnp.sum(x, axis=1) * x.shape[0], jnp.concatenate([x, x], axis=0)


def platforms(x, y):
    return jax.lax.platform_dependent(x, cpu=lambda x: x * 2, tpu=lambda x: x * 3, cuda=lambda x: x * 5) @ y


def symbolic_platforms(x, y):
    return platforms(x, y) + x.shape[0]


def dropped(x, y):
    return jnp.cos(y)


def main():
    folder = f"{sys.argv[1]}/jax-{jax.__version__}"
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(3)
    args = rng.standard_normal((4, 3)).astype(np.float32), rng.standard_normal((3, 2)).astype(np.float32)
    for function in (constant, symbolic, platforms, symbolic_platforms, dropped):
        jitted = jax.jit(function)
        specs = args
        if "symbolic" in function.__name__:
            specs = jax.ShapeDtypeStruct(jax_export.symbolic_shape("2*b, 3"), np.float32), args[1]
        options = {}
        if "platforms" in function.__name__:
            options["lowering_platforms"] = ("tpu", "cpu", "cuda")
        for convention in (6, 7, 8):
            jax.config.update("jax_serialization_version", convention)
            exported = jax_export.export(jitted, **options)(*specs)
            with open(f"{folder}/{function.__name__}_{convention}.bin", "wb") as file:
                file.write(bytes(serialize(exported, vjp_order=int(function is constant))))
        leaves = jax.tree_util.tree_leaves(jitted(*args))
        stored = {f"in_{i}": x for i, x in enumerate(args)} | {f"out_{i}": np.asarray(x) for i, x in enumerate(leaves)}
        np.savez_compressed(f"{folder}/{function.__name__}.npz", **stored)


if __name__ == "__main__":
    main()
