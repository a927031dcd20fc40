"""Artifacts that jaxexp wrote earlier: each is read, runs, matches, and is written again byte for byte."""

from __future__ import annotations

import contextlib
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

import corpus  # noqa: F401  (registers the node types and effects that the artifacts use)
import jaxexp
import wire
from compare import assert_same_fields, assert_same_values
from jaxexp._artifact import module_head as _bytecode
from jaxexp._releases.table import number, release

GOLDEN = Path(__file__).parent / "golden"
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


def test_there_are_some() -> None:
    assert sum(map(len, CASES.values())) >= 30


@every_artifact
def test_runs_and_matches(folder: str, name: str) -> None:
    with around(folder, name):
        exported = jaxexp.deserialize(blob_of(folder, name))
        args, kwargs = arguments(exported, folder, name)
        try:
            results = jax.tree.leaves(exported.call(*args, **kwargs))
        except jaxexp.DeserializationError:  # it says which JAX is needed
            wanted = _bytecode.stablehlo_of(_bytecode.producer(exported.mlir_module_serialized))
            assert number(wanted or "") > number(release(jax.__version__).stablehlo)
            return
        expected = [
            value if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key) else value.astype(aval.dtype)
            for value, aval in zip(stored(folder, name, "out"), exported.out_avals, strict=True)
        ]
        found = [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in results]
        assert_same_values(found, expected)


@every_artifact
def test_read_as_jax_export_does(folder: str, name: str) -> None:
    ours, theirs = jaxexp.deserialize(blob_of(folder, name)), jax_export.deserialize(bytearray(blob_of(folder, name)))
    for order in range(CASES[folder][name]["vjp_order"] + 1):
        assert_same_fields(ours, theirs, as_written=wire.has_trailer(blob_of(folder, name)))  # weak types
        assert ours.has_vjp() == theirs.has_vjp() == (order < CASES[folder][name]["vjp_order"])
        if ours.has_vjp():
            ours, theirs = ours.vjp(), theirs.vjp()


@every_artifact
def test_written_again_byte_for_byte(folder: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By any version of JAX: the bytes name the one that writes them, and nothing else may depend on it."""
    blob = blob_of(folder, name)
    exported = jaxexp.deserialize(blob)
    monkeypatch.setattr(jax, "__version__", folder.rpartition("_jax-")[2])
    # The first ones were written before there were trailers.
    assert bytes(exported.serialize(CASES[folder][name]["vjp_order"], trailer=wire.has_trailer(blob))) == blob
