"""Tensors of files on devices: what is there is what was saved, and memory is not taken twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxexp._errors import WeightsError
from jaxexp._weights.arrays import pieces, placing
from jaxexp._weights.files import reading
from kit.devices import DEVICES
from kit.safetensors_files import a_file, entry
from kit.tensor_files import write

MESH = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Auto,))
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


@pytest.fixture
def files(tmp_path: Path) -> reading.Tensors:
    write(tmp_path / "x.safetensors", [pieces.source(name, array) for name, array in ARRAYS.items()])
    return reading.open_tensors(tmp_path / "x.safetensors")


def placed(tensors: reading.Tensors, name: str, sharding: Any = None) -> jax.Array:
    file, aval = tensors.file_of(name), jax.typeof(jax.ShapeDtypeStruct(ARRAYS[name].shape, ARRAYS[name].dtype))
    placing.check(file, tensors[name], aval)
    return placing.placed(file, tensors[name], aval, sharding)


@pytest.mark.parametrize("name", ARRAYS)
def test_every_dtype_comes_back(files: reading.Tensors, name: str) -> None:
    with jax.enable_x64(True):
        array = placed(files, name)
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
        assert np.asarray(array).tobytes() == ARRAYS[name].tobytes()


@pytest.mark.parametrize("name", ["f32", "bf16", "e4m3", "e3m4", "c64"])
def test_no_copy_on_a_cpu(files: reading.Tensors, name: str) -> None:
    """The array is the mapped file; it stays when nobody has the file any more."""
    mapped = placing.view(files.file_of(name), files[name], ARRAYS[name])
    array = placed(files, name)
    assert array.unsafe_buffer_pointer() == mapped.ctypes.data
    files.files.clear()
    del files, mapped
    np.testing.assert_array_equal(np.asarray(array), ARRAYS[name])


def foreign(path: Path, padding: int) -> reading.Tensors:
    """A file of another tool, whose tensors begin so many bytes behind a multiple of 64."""
    whole = np.arange(64, dtype=np.float32)
    header = {name: entry("F32", [64], i * 256, (i + 1) * 256) for i, name in enumerate("ab")}
    text = json.dumps(header).encode()
    text += b" " * ((padding - 8 - len(text)) % 64)
    path.write_bytes(a_file(text, whole.tobytes() * 2))
    return reading.open_tensors(path)


@pytest.mark.parametrize("padding", [0, 8])
def test_the_log_names_a_file_that_is_copied(padding: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, and the guide says how to avoid it."""
    tensors = foreign(tmp_path / "hub\x1b.safetensors", padding)
    aval = jax.typeof(jax.ShapeDtypeStruct((64,), np.float32))
    with caplog.at_level("INFO", logger="jaxexp.weights"):
        for name in "ab":
            file = tensors.file_of(name)
            array = placing.placed(file, tensors[name], aval, None)
            view = np.frombuffer(file.bytes_of(tensors[name]), np.float32)
            assert (array.unsafe_buffer_pointer() == view.ctypes.data) == (not padding)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (1 if padding else 0)
    if padding:
        assert "hub\\x1b.safetensors': a CPU copies 2 of its 2 tensors to memory (512 bytes)" in said[0]
        assert said[0].isprintable()


def test_the_log_does_not_name_files_of_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Some of their tensors are copied, too: those behind one of an odd size."""
    write(tmp_path / "x.safetensors", [pieces.source(name, array) for name, array in ARRAYS.items()])
    tensors = reading.open_tensors(tmp_path / "x.safetensors")
    with caplog.at_level("INFO", logger="jaxexp.weights"):
        placed(tensors, "scalar")
    assert not caplog.records


def test_donation_does_not_write_to_the_file(files: reading.Tensors) -> None:
    donated = jax.jit(lambda x: x + 1, donate_argnums=0)(placed(files, "f32"))
    np.testing.assert_array_equal(donated, ARRAYS["f32"] + 1)
    np.testing.assert_array_equal(placed(files, "f32"), ARRAYS["f32"])


@pytest.mark.parametrize("spec", [P(), P("d"), P(None, "d")])
@pytest.mark.parametrize("name", ["f32", "bf16", "e3m4"])
def test_shards(files: reading.Tensors, name: str, spec: P) -> None:
    sharding = NamedSharding(MESH, spec)
    array = placed(files, name, sharding)
    assert array.sharding == sharding
    np.testing.assert_array_equal(np.asarray(array), ARRAYS[name])


def test_each_device_reads_its_part(files: reading.Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Watched(np.ndarray):
        def __getitem__(self, index: Any) -> Any:
            asked.append(index)
            return np.asarray(super().__getitem__(index))

    view = placing.view
    monkeypatch.setattr(placing, "view", lambda *args: view(*args).view(Watched))
    array = placed(files, "f32", NamedSharding(MESH, P("d")))
    rows = 16 // DEVICES
    assert sorted(index[0].indices(16)[:2] for index in asked) == [(i * rows, (i + 1) * rows) for i in range(DEVICES)]
    np.testing.assert_array_equal(array, ARRAYS["f32"])


def test_what_does_not_fit(files: reading.Tensors) -> None:
    for name, aval, message in [
        ("f32", jax.ShapeDtypeStruct((16, 15), jnp.float32), r"expected float32\[16,15\], found F32\[16,16\]"),
        ("f32", jax.ShapeDtypeStruct((16, 16), jnp.bfloat16), r"expected bfloat16\[16,16\], found F32"),
        ("f64", jax.ShapeDtypeStruct((8, 3), np.complex128), r"complex128\[8,3\], held as F64\[8,3,2\], found F64"),
        ("f32", jax.typeof(jax.random.key(0)), r"expected key<fry>\[\], found F32"),
    ]:
        with pytest.raises(WeightsError, match=rf"tensor '{name}': .*{message}") as error:
            placing.check(files.file_of(name), files[name], aval)
        assert error.value.file == files.files[0].name
