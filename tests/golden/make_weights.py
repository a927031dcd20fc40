"""Writes a model with weights in a file beside it, and an archive with the same, into a new folder of
tests/golden/weights/. Run it when such files are written in another way; earlier folders stay.

    python tests/golden/make_weights.py NAME
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxexp


def apply(params: Any, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ params["w"] + params["b"]) @ params["w"].T * params["scale"]


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    params: dict[str, Any] = {"w": random.normal(size=(8, 16)).astype(np.float32), "b": np.arange(16, dtype=np.float32)}
    params["scale"] = np.float16(0.5)
    x = random.normal(size=(3, 8)).astype(np.float32)
    bound = jaxexp.export(jax.jit(apply), reproducible=True)(params, jax.ShapeDtypeStruct(x.shape, x.dtype)).bind(
        params
    )
    bound.save(folder / "model.jaxexp", vjp_order=1, cases=[(x,)])
    with jaxexp.Archive.create(folder / "fleet.zip") as archive:
        archive.add_file("from/files", folder / "model.jaxexp")
        archive.add("alone", bound, vjp_order=1)
    np.savez(folder / "model.npz", x=x, y=np.asarray(apply(params, x)), **params)
    print(*sorted(file.name for file in folder.iterdir()))


if __name__ == "__main__":
    main(Path(__file__).parent / "weights" / sys.argv[1])
