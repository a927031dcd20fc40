"""The weights of a function: in memory or in files, on one device or on many, looked at and swapped."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxexp._errors import ExportError, WeightsError
from jaxexp._weights.arrays.weights import Weights
from jaxexp._weights.files.header import Table
from jaxexp._weights.files.reading import StoredTensors
from kit.each import each
from kit.tensor_files import write

MESH = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Auto,))
ARRAYS = {
    "layers/0/w": np.arange(256, dtype=np.float32).reshape(16, 16),
    "layers/0/b": jnp.arange(16, dtype=jnp.bfloat16),
    "head": np.arange(32, dtype=np.int32),
}
TYPES = {name: jax.typeof(array) for name, array in ARRAYS.items()}


def save(path: Path, arrays: dict[str, Any] = ARRAYS, **options: Any) -> Table:
    """Writes files beside a program of this name, and returns what its trailer would say."""
    weights = Weights({name: jax.typeof(array) for name, array in arrays.items()}, arrays)
    return write(path.with_suffix(".safetensors"), weights.sources(), **options)


def loaded(path: Path, table: Table, **options: Any) -> Weights:
    return Weights(TYPES, StoredTensors(path, Table.of_trailer(*table)), **options)


def same(weights: Weights, arrays: dict[str, Any] = ARRAYS) -> None:
    assert list(weights) == list(arrays)
    for name, array in arrays.items():
        assert isinstance(weights[name], jax.Array)
        assert weights[name].dtype == array.dtype
        np.testing.assert_array_equal(weights[name], array)


@each("max_file_size", [None, 64])
def test_from_files(tmp_path: Path, max_file_size: int | None) -> None:
    table = save(tmp_path / "model", max_file_size=max_file_size)
    assert len(table.files) == (1 if max_file_size is None else 3)
    weights = loaded(tmp_path / "model", table)
    same(weights)
    weights.check_digests()
    assert weights["head"] is weights["head"]
    assert repr(weights) == f"Weights(3 arrays in files: beside {str(tmp_path / 'model')!r})"
    with pytest.raises(KeyError):
        weights["other"]
    in_memory = Weights(TYPES, ARRAYS)
    same(in_memory)
    assert in_memory["layers/0/b"] is ARRAYS["layers/0/b"]
    with pytest.raises(ExportError, match="no digests to compare with"):
        in_memory.check_digests()


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = save(tmp_path / "model", max_file_size=64)
    opened = []
    monkeypatch.setattr(os, "open", lambda path, *a, whole=os.open, **k: opened.append(path) or whole(path, *a, **k))
    weights = loaded(tmp_path / "model", table)
    assert not opened
    weights["head"]
    *second, name = [os.path.basename(path) for path in opened]
    assert name == table.files[2].name
    assert all(tried.startswith(".model-00003") for tried in second)


def test_on_many_devices(tmp_path: Path) -> None:
    shardings = [NamedSharding(MESH, P("d")), None, NamedSharding(MESH, P())]
    for weights in (loaded(tmp_path / "model", save(tmp_path / "model")), Weights(TYPES, ARRAYS)):
        moved = weights.on(shardings)
        same(moved)
        assert [moved[name].sharding for name in ("layers/0/w", "head")] == [shardings[0], shardings[2]]
        assert moved.with_values(ARRAYS)["layers/0/w"].sharding == shardings[0]


def test_hostile_tables(tmp_path: Path) -> None:
    """What a trailer says is as hostile as what a header says."""
    files, tensors, _ = save(tmp_path / "model")
    missing = Table.of_trailer(files, [("else", *tensor[1:]) for tensor in tensors], [])
    with pytest.raises(WeightsError, match=r"tensor 'else': expected a tensor of .* found none of this name"):
        StoredTensors(tmp_path / "model", missing).check_digests()


def test_a_mapping_and_no_pytree(tmp_path: Path) -> None:
    """Trees with weights in them are looked at without reading files; an error says what makes a pytree of them."""
    weights = loaded(tmp_path / "model", save(tmp_path / "model"))
    assert jax.tree.leaves({"a": weights}) == [weights]
    assert not weights._on_devices, "nothing was read"
    with pytest.raises(
        AttributeError, match=r"'Weights' object has no attribute 'astype'.*dict\(weights\) makes a pytree"
    ):
        jax.tree.map(lambda array: array.astype("float32"), weights)
    with pytest.raises(AttributeError, match=r"no attribute '_of_somebody'$"):
        weights._of_somebody  # noqa: B018
    doubled = jax.tree.map(lambda array: array * 2, dict(weights))
    np.testing.assert_array_equal(weights.with_values(doubled)["head"], ARRAYS["head"] * 2)
    assert not hasattr(weights, "shape")
    copied = copy.copy(weights)
    assert list(copied) == list(weights)
