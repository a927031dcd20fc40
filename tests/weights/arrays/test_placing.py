"""Arrays as bytes, and tensors of files on devices: a part at a time, nothing changed, and memory not taken twice."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxexp._errors import ExportError
from jaxexp._weights.arrays import weights as placing
from jaxexp._weights.arrays.weights import Weights, source
from jaxexp._weights.files import reading
from kit.devices import DEVICES
from kit.each import each
from kit.safetensors_files import a_file, entry
from kit.tensor_files import write

MESH = Mesh(np.array(jax.devices()).reshape(2, DEVICES // 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
HOST = np.arange(16 * 24 * 8, dtype=np.float32).reshape(16, 24, 8)


def joined(array: Any) -> bytes:
    return b"".join(piece.tobytes() for piece in placing.pieces(array))


SPECS = [P(), P("a"), P(None, "b"), P(None, None, "b"), P("b", None, "a"), P(("a", "b")), P(None, ("b", "a"))]


@each("spec", SPECS)
def test_of_many_devices(spec: P, monkeypatch: pytest.MonkeyPatch) -> None:
    array = jax.device_put(HOST, NamedSharding(MESH, spec))
    for piece in (100, 1 << 10, 1 << 24):
        monkeypatch.setattr(placing, "PIECE", piece)
        assert joined(array) == HOST.tobytes()
        assert max(p.nbytes for p in placing.pieces(array)) <= piece
        # Places of a tied weight are compared piece by piece, wherever each is.
        assert [p.nbytes for p in placing.pieces(array)] == [p.nbytes for p in placing.pieces(HOST)]
        assert b"".join(p.tobytes() for p in placing.source("x", array).pieces()) == HOST.tobytes()


OF_THE_HOST = [
    HOST, HOST[::2], HOST.T, HOST[:, ::-3, 1:5], np.asfortranarray(HOST), np.broadcast_to(HOST[0], (3, 24, 8)),
    np.float32(3), np.zeros((4, 0, 3)), np.zeros(0), np.array([True, False]), np.arange(70).astype(ml_dtypes.bfloat16),
    np.arange(5) * (1 + 2j), np.arange(100).astype(ml_dtypes.int4),
]  # fmt: skip


@each("array", OF_THE_HOST)
def test_of_the_host(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for piece in (64, 1 << 24):
        monkeypatch.setattr(placing, "PIECE", piece)
        assert joined(array) == np.asarray(array).tobytes()
        assert joined(jnp.asarray(array)) == np.asarray(jnp.asarray(array)).tobytes()


def test_what_no_file_can_hold() -> None:
    with pytest.raises(
        ExportError, match=r"the weight 'x' has dtype key<fry>, which a file of tensors cannot hold: take jax"
    ):
        placing.source("x", jax.random.key(0))


def test_devices_of_other_processes() -> None:
    parts = {0: (slice(0, 8),), 1: (slice(8, 16),)}
    sharding = SimpleNamespace(devices_indices_map=lambda shape: parts)
    array = SimpleNamespace(shape=(16,), dtype=np.dtype(np.float32), sharding=sharding)
    array.addressable_shards = [SimpleNamespace(index=parts[0])]
    assert not placing._is_here(array)


DEVICES_IN_A_ROW = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Auto,))
ARRAYS = {
    "f32": np.arange(256, dtype=np.float32).reshape(16, 16),
    "bf16": np.arange(64).astype(ml_dtypes.bfloat16).reshape(8, 8),
    "e4m3": np.arange(64).astype(ml_dtypes.float8_e4m3fn),
    "e3m4": np.arange(64).astype(ml_dtypes.float8_e3m4).reshape(8, 8),
    "e4m3b11": np.arange(8).astype(ml_dtypes.float8_e4m3b11fnuz),
    "c64": (np.arange(32) * (1 + 2j)).astype(np.complex64),
    "c128": (np.arange(32) * (1 + 2j)).reshape(8, 4),
    "i4": np.arange(-8, 8).astype(ml_dtypes.int4),
    "u4": np.arange(16).astype(ml_dtypes.uint4).reshape(8, 2),
    "f4": np.arange(16).astype(ml_dtypes.float4_e2m1fn).reshape(8, 2),
    "f4 of odd size": np.arange(3).astype(ml_dtypes.float4_e2m1fn),
    "bool": np.array([True, False, True]),
    "scalar": np.array(3, np.int16),
    "empty": np.zeros((0, 3), np.uint32),
    "f64": np.linspace(0, 1, 24).reshape(8, 3),
}


def written_to(tmp_path: Path) -> reading.TensorFiles:
    write(tmp_path / "x.safetensors", [source(name, array) for name, array in ARRAYS.items()])
    return reading.open_tensors(tmp_path / "x.safetensors")


@pytest.fixture
def files(tmp_path: Path) -> reading.TensorFiles:
    return written_to(tmp_path)


def placed(tensors: reading.TensorFiles, name: str, sharding: Any = None) -> jax.Array:
    aval = jax.typeof(jax.ShapeDtypeStruct(ARRAYS[name].shape, ARRAYS[name].dtype))
    placing.check(tensors[name], aval)
    return placing.placed(tensors[name], aval, sharding)


@each("name", ARRAYS)
def test_every_dtype_comes_back(files: reading.TensorFiles, name: str) -> None:
    with jax.enable_x64(True):
        array = placed(files, name)
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
        assert np.asarray(array).tobytes() == ARRAYS[name].tobytes()


@each("name", ["f32", "bf16", "e4m3", "e3m4", "c64"])
def test_no_copy_on_a_cpu(tmp_path: Path, name: str) -> None:
    """The array is the mapped file; it stays when nobody has the file any more."""
    files = written_to(tmp_path)
    mapped = placing.view(files[name], ARRAYS[name])
    array = placed(files, name)
    assert array.unsafe_buffer_pointer() == mapped.ctypes.data
    files.files.clear()
    del files, mapped
    np.testing.assert_array_equal(np.asarray(array), ARRAYS[name])


def foreign(path: Path, padding: int) -> Path:
    """A file of another tool, whose tensors begin so many bytes behind a multiple of 64."""
    whole = np.arange(64, dtype=np.float32)
    header = {name: entry("F32", [64], i * 256, (i + 1) * 256) for i, name in enumerate("ab")}
    text = json.dumps(header).encode()
    text += b" " * ((padding - 8 - len(text)) % 64)
    path.write_bytes(a_file(text, whole.tobytes() * 2))
    return path


def test_the_log_names_a_file_that_is_copied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, and the guide says how to avoid it. Not those of `save`; some of their tensors are copied, too."""
    array = np.zeros(64, np.float32)
    weights = Weights(dict.fromkeys("ab", jax.typeof(array)), dict.fromkeys("ab", array))
    scalar = Weights({"scalar": jax.typeof(ARRAYS["scalar"])}, {"scalar": ARRAYS["scalar"]})
    caplog.set_level("INFO", logger="jaxexp.weights")
    written_to(tmp_path)
    scalar.with_values(tmp_path / "x.safetensors").arrays()
    for padding in (0, 8):
        assert not caplog.records
        found = weights.with_values(foreign(tmp_path / "hub\x1b.safetensors", padding))
        for name in "ab":
            view = np.frombuffer(found._files.find(name).data(), np.float32)
            assert (found[name].unsafe_buffer_pointer() == view.ctypes.data) == (not padding)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "hub\\x1b.safetensors': a CPU copies 2 of its 2 tensors to memory (512 bytes)" in said
    assert said.isprintable()


def test_donation_does_not_write_to_the_file(files: reading.TensorFiles) -> None:
    donated = jax.jit(lambda x: x + 1, donate_argnums=0)(placed(files, "f32"))
    np.testing.assert_array_equal(donated, ARRAYS["f32"] + 1)
    np.testing.assert_array_equal(placed(files, "f32"), ARRAYS["f32"])


def test_shards(files: reading.TensorFiles) -> None:
    for name in ("f32", "bf16", "e3m4"):
        for spec in (P(), P("d"), P(None, "d")):
            sharding = NamedSharding(DEVICES_IN_A_ROW, spec)
            array = placed(files, name, sharding)
            assert array.sharding == sharding
            np.testing.assert_array_equal(np.asarray(array), ARRAYS[name])


def test_each_device_reads_its_part(files: reading.TensorFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []

    class Watched(np.ndarray):
        def __getitem__(self, index: Any) -> Any:
            read.append(index[0].indices(16)[:2])
            return np.asarray(super().__getitem__(index))

    monkeypatch.setattr(placing, "view", lambda *args, whole=placing.view: whole(*args).view(Watched))
    np.testing.assert_array_equal(placed(files, "f32", NamedSharding(DEVICES_IN_A_ROW, P("d"))), ARRAYS["f32"])
    rows = 16 // DEVICES
    assert sorted(read) == [(i * rows, (i + 1) * rows) for i in range(DEVICES)]


def test_a_signal_handler_uses_weights_that_are_being_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, found = Weights({"w": jax.ShapeDtypeStruct(HOST.shape, HOST.dtype)}, {"w": HOST}), []
    place, left = Weights._placed, [1]

    def interrupted(*args: Any) -> Any:
        if left:
            left.pop()
            signal.raise_signal(signal.SIGINT)
        return place(*args)

    monkeypatch.setattr(Weights, "_placed", interrupted)
    before = signal.signal(signal.SIGINT, lambda *_: found.append(weights["w"]))
    try:
        assert weights["w"] is found[0]
    finally:
        signal.signal(signal.SIGINT, before)
    np.testing.assert_array_equal(found[0], HOST)
