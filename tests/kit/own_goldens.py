"""Artifacts that jaxexp wrote earlier, in tests/golden."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from . import corpus, goldens  # noqa: F401  (registers the node types and effects that the artifacts use)
from .places import GOLDEN

FOLDERS = {path.name: path for path in sorted(GOLDEN.glob("*_jaxexp-*_jax-*"))}
CASES = {name: json.loads((path / "cases.json").read_text()) for name, path in FOLDERS.items()}
every_artifact = pytest.mark.parametrize(
    ("folder", "name"), [(folder, name) for folder, cases in CASES.items() for name in cases]
)


def blob_of(folder: str, name: str) -> bytes:
    return (FOLDERS[folder] / f"{name}.bin").read_bytes()


def around(folder: str, name: str) -> Any:
    return jax.enable_x64(True) if CASES[folder][name]["x64"] else contextlib.nullcontext()


def stored(folder: str, name: str, kind: str) -> list[np.ndarray]:
    return goldens.stored(FOLDERS[folder] / f"{name}.npz", kind)


def arguments(exported: Any, folder: str, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The stored arguments, where the function wants them."""
    shardings = exported.in_shardings_jax()
    meshes = [s.mesh for s in shardings if s is not None and not s.mesh.empty]
    leaves = []
    for value, aval, sharding in zip(stored(folder, name, "in"), exported.in_avals, shardings, strict=True):
        leaf = goldens.as_taken(value, aval)
        if exported.nr_devices > 1:
            stored_mesh = meshes[0]
            mesh = jax.make_mesh(stored_mesh.axis_sizes, stored_mesh.axis_names, axis_types=stored_mesh.axis_types)
            leaf = jax.device_put(leaf, NamedSharding(mesh, P() if sharding is None else sharding.spec))
        leaves.append(leaf)
    return exported.in_tree.unflatten(leaves)
