"""Artifacts that released versions of JAX wrote, in tests/golden."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from .compare import assert_same_values
from .corpus import mesh
from .places import GOLDEN

Pt = collections.namedtuple("Pt", "x y")
jax_export.register_namedtuple_serialization(Pt, serialized_name="corpus.Pt")


def release(path: Path) -> tuple[int, ...]:
    return tuple(map(int, path.name.removeprefix("jax-").split(".")))


RELEASES = {p.name.removeprefix("jax-"): p for p in sorted(GOLDEN.glob("jax-*"), key=release)}
ARTIFACTS = [
    (version, name)
    for version, folder in RELEASES.items()
    for name, entry in json.loads((folder / "cases.json").read_text()).items()
    if "error" not in entry
]
every_artifact = pytest.mark.parametrize(("version", "name"), ARTIFACTS)


def blob_of(version: str, name: str) -> bytes:
    return (RELEASES[version] / f"{name}.bin").read_bytes()


def arguments(exported: Any, version: str, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The stored arguments as the function takes them."""
    with np.load(RELEASES[version] / f"{name}.npz") as file:
        stored = dict(file)
    leaves = []
    for i, aval in enumerate(exported.in_avals):
        value = stored[f"in_{i}"]
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
            leaves.append(jax.random.wrap_key_data(jnp.asarray(value), impl="threefry2x32"))
        else:
            leaves.append(value.astype(aval.dtype))
    if exported.nr_devices > 1:
        everywhere = NamedSharding(mesh((4, 2), ("x", "y")), P())  # as where the artifact was made
        leaves = [jax.device_put(leaf, everywhere) for leaf in leaves]
    return exported.in_tree.unflatten(leaves)


def assert_runs(exported: Any, version: str, name: str) -> None:
    stored = np.load(RELEASES[version] / f"{name}.npz")
    args, kwargs = arguments(exported, version, name)
    found = jax.tree.leaves(exported.call(*args, **kwargs))
    expected = [stored[f"out_{i}"].astype(aval.dtype) for i, aval in enumerate(exported.out_avals)]
    assert_same_values(found, expected)
