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
KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
every_artifact = pytest.mark.parametrize(("version", "name"), ARTIFACTS)


def blob_of(version: str, name: str) -> bytes:
    return (RELEASES[version] / f"{name}.bin").read_bytes()


def stored(path: Path, kind: str) -> list[np.ndarray]:
    """The arrays of a kind in a file: `in_0`, `in_1` and so on."""
    with np.load(path) as file:
        return [file[f"{kind}_{i}"] for i in range(sum(name.startswith(f"{kind}_") for name in file))]


def as_taken(value: np.ndarray, aval: Any) -> Any:
    """A stored array in the type that a function takes."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(value), impl=KEYS[str(aval.dtype)])
    return value.astype(aval.dtype)


def arguments(exported: Any, version: str, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The stored arguments as the function takes them."""
    leaves = list(map(as_taken, stored(RELEASES[version] / f"{name}.npz", "in"), exported.in_avals))
    if exported.nr_devices > 1:
        everywhere = NamedSharding(mesh((4, 2), ("x", "y")), P())  # as where the artifact was made
        leaves = [jax.device_put(leaf, everywhere) for leaf in leaves]
    return exported.in_tree.unflatten(leaves)


def assert_runs(exported: Any, version: str, name: str) -> None:
    args, kwargs = arguments(exported, version, name)
    found = jax.tree.leaves(exported.call(*args, **kwargs))
    results = zip(stored(RELEASES[version] / f"{name}.npz", "out"), exported.out_avals, strict=True)
    assert_same_values(found, [value.astype(aval.dtype) for value, aval in results])
