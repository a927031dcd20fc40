"""Values that other functions than `deserialize` look at: the one error, or what `deserialize` says, too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import mlir_bytes
from kit.layout import aval, of_values, with_constraints


@pytest.fixture(autouse=True)
def _deep_trees() -> None:
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))


@pytest.mark.parametrize("digits", [2, 4301])
def test_variables_named_by_digits_of_other_scripts(digits: int) -> None:
    """They are digits for Python's `int`, and no names for Python."""
    name = "\u0663" * digits
    blob = of_values([aval(name)], [0])
    assert jaxexp.inspect(blob).arguments[0].shape == (name,)
    with pytest.raises(jaxexp.DeserializationError):
        jaxexp.deserialize(blob)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "[1, {\"a\": 1e999}]"])  # fmt: skip
def test_metadata_beyond_floats(number: str) -> None:
    blob = with_constraints((), [("k", number)])
    for read in (jaxexp.deserialize, jaxexp.inspect):
        with pytest.raises(jaxexp.DeserializationError, match="finite"):
            read(blob)


def test_metadata_within_floats() -> None:
    assert jaxexp.deserialize(with_constraints((), [("k", "[1e308, 0.5]")])).metadata == {"k": [1e308, 0.5]}


@pytest.mark.parametrize("dtype", [-1, -40, -128])
def test_negative_dtypes(dtype: int) -> None:
    module = mlir_bytes.module(["builtin"], [(0, [0])], [], b"\1")
    blob = of_values([aval("2", dtype=dtype)], [0], mlir_module_serialized=module)
    found = jaxexp.compatibility(blob)
    assert found.dtypes == (f"number {dtype}",)
    assert found.unreadable_here is not None
    assert not found.readers
    with pytest.raises(jaxexp.DeserializationError, match="dtype"):
        jaxexp.deserialize(blob)


def test_a_target_that_is_not_utf8(tmp_path: Path) -> None:
    """jaxlib parses it, and cannot say it. A pass over many artifacts goes on."""
    x = np.eye(3, dtype=np.float32)
    blob = jaxexp.export(jax.jit(jnp.linalg.cholesky))(x).serialize(trailer=False)
    blob[blob.index(b"lapack_spotrf_ffi")] = 0xE8
    (tmp_path / "bad").write_bytes(blob)
    (tmp_path / "good").write_bytes(jaxexp.export(jax.jit(jnp.sin))(x).serialize())
    with pytest.raises(jaxexp.DeserializationError, match="UTF-8"):
        jaxexp.deserialize(blob).call(x)
    reports: dict[str, Any] = dict(jaxexp.compatibility_many([tmp_path / "bad", tmp_path / "good"]))
    bad, good = (reports[str(tmp_path / name)] for name in ("bad", "good"))
    assert "UTF-8" in bad.unreadable_here
    assert good.unreadable_here is None


def test_memory_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """That memory is short says nothing about the artifact."""
    from jaxexp._kernel.function import sharding

    def short(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(sharding, "_check_tiles", short)
    proto = sharding._jax.OpSharding()
    proto.type = sharding._jax.OpSharding.Type.OTHER
    proto.tile_assignment_dimensions, proto.iota_reshape_dims, proto.iota_transpose_perm = [2], [2], [0]
    with pytest.raises(MemoryError):
        sharding.from_proto(proto.SerializeToString(), sharding._jax.ShapedArray((2,), "float32"))
