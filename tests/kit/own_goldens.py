"""Artifacts that jaxexp wrote earlier, in tests/golden."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from . import corpus  # noqa: F401  (registers the node types and effects that the artifacts use)
from .places import GOLDEN

FOLDERS = {path.name: path for path in sorted(GOLDEN.glob("*_jaxexp-*_jax-*"))}
CASES = {name: json.loads((path / "cases.json").read_text()) for name, path in FOLDERS.items()}
KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
every_artifact = pytest.mark.parametrize(
    ("folder", "name"), [(folder, name) for folder, cases in CASES.items() for name in cases]
)


def blob_of(folder: str, name: str) -> bytes:
    return (FOLDERS[folder] / f"{name}.bin").read_bytes()


def around(folder: str, name: str) -> Any:
    return jax.enable_x64(True) if CASES[folder][name]["x64"] else contextlib.nullcontext()


def stored(folder: str, name: str, kind: str) -> list[np.ndarray]:
    arrays = np.load(FOLDERS[folder] / f"{name}.npz")
    return [arrays[f"{kind}_{i}"] for i in range(sum(file.startswith(kind) for file in arrays.files))]


def arguments(exported: Any, folder: str, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The stored arguments, where the function wants them."""
    shardings = exported.in_shardings_jax()
    meshes = [s.mesh for s in shardings if s is not None and not s.mesh.empty]
    leaves = []
    for value, aval, sharding in zip(stored(folder, name, "in"), exported.in_avals, shardings, strict=True):
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
            leaf = jax.random.wrap_key_data(jnp.asarray(value), impl=KEYS[str(aval.dtype)])
        else:
            leaf = value.astype(aval.dtype)
        if exported.nr_devices > 1:
            stored_mesh = meshes[0]
            mesh = jax.make_mesh(stored_mesh.axis_sizes, stored_mesh.axis_names, axis_types=stored_mesh.axis_types)
            leaf = jax.device_put(leaf, NamedSharding(mesh, P() if sharding is None else sharding.spec))
        leaves.append(leaf)
    return exported.in_tree.unflatten(leaves)
