"""Arrays as bytes: from NumPy, from a device, from many devices; a part of them at a time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxexp._errors import ExportError
from jaxexp._weights.arrays import pieces as of
from kit.devices import DEVICES

MESH = Mesh(np.array(jax.devices()).reshape(2, DEVICES // 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
HOST = np.arange(16 * 24 * 8, dtype=np.float32).reshape(16, 24, 8)


def joined(array: Any) -> bytes:
    return b"".join(piece.tobytes() for piece in of.pieces(array))


@pytest.mark.parametrize("piece", [64, 100, 1 << 10, 1 << 24])
@pytest.mark.parametrize(
    "spec", [P(), P("a"), P(None, "b"), P(None, None, "b"), P("b", None, "a"), P(("a", "b")), P(None, ("b", "a"))]
)
def test_of_many_devices(spec: P, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of, "PIECE", piece)
    array = jax.device_put(HOST, NamedSharding(MESH, spec))
    assert joined(array) == HOST.tobytes()
    assert max(p.nbytes for p in of.pieces(array)) <= piece
    assert b"".join(p.tobytes() for p in of.source("x", array).pieces()) == HOST.tobytes()


@pytest.mark.parametrize("piece", [64, 1 << 24])
@pytest.mark.parametrize(
    "array",
    [
        HOST,
        HOST[::2],
        HOST.T,
        HOST[:, ::-3, 1:5],
        np.asfortranarray(HOST),
        np.broadcast_to(HOST[0], (3, 24, 8)),
        np.float32(3),
        np.zeros((4, 0, 3)),
        np.zeros(0),
        np.array([True, False]),
        np.arange(70).astype(ml_dtypes.bfloat16),
        np.arange(5) * (1 + 2j),
        np.arange(100).astype(ml_dtypes.int4),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}{getattr(array, 'strides', '')}",
)
def test_of_the_host(array: Any, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of, "PIECE", piece)
    assert joined(array) == np.asarray(array).tobytes()
    assert joined(jnp.asarray(array)) == np.asarray(jnp.asarray(array)).tobytes()


def test_on_the_host_nothing_is_copied() -> None:
    for array in (HOST, jnp.asarray(HOST)):
        (piece,) = of.pieces(array)
        assert piece.ctypes.data == np.asarray(array).ctypes.data


def test_four_bits() -> None:
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    array = values.astype(ml_dtypes.float4_e2m1fn).reshape(4, 4)
    source = of.source("x", array)
    assert (source.dtype, source.shape) == ("F4", (4, 4))
    held = np.concatenate([np.asarray(piece) for piece in source.pieces()])
    assert held.tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    np.testing.assert_array_equal(of.unpacked(held).view(array.dtype).reshape(4, 4), array)


def test_what_no_file_can_hold() -> None:
    with pytest.raises(ExportError, match=r"the weight 'x' has dtype key<fry>, which a file of tensors cannot hold"):
        of.source("x", jax.random.key(0))


def test_devices_of_other_processes() -> None:
    class Elsewhere:
        """A sharding with a part that no device of this process has."""

        def devices_indices_map(self, shape: Any) -> Any:
            return {0: (slice(0, 8),), 1: (slice(8, 16),)}

    class Array:
        shape, dtype, sharding = (16,), np.dtype(np.float32), Elsewhere()
        addressable_shards = [type("Shard", (), {"index": (slice(0, 8),)})]  # noqa: RUF012

    assert not of._is_here(Array())
