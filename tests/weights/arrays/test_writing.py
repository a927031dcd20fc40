"""Files of tensors that are written: the safetensors package reads them, and they can be used where they are."""

from __future__ import annotations

import dataclasses
import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import jaxexp
from jaxexp import _native
from jaxexp._errors import ExportError, WeightsError
from jaxexp._kernel.io import files
from jaxexp._weights.files import dtypes, reading, writing
from jaxexp._weights.files.header import ALIGNMENT
from jaxexp._weights.files.writing import Source
from kit.tensor_files import array_in, array_of, write

pytestmark = pytest.mark.once(reason="files without JAX")


def source(name: str, array: np.ndarray) -> Source:
    held = dtypes.held_as(array.dtype.name, array.shape)
    assert held is not None
    return Source(name, *held, lambda: [np.ascontiguousarray(array).reshape(-1).view(np.uint8)])


ARRAYS = {
    "odd": np.arange(7, dtype=np.uint8),
    "w": np.arange(64, dtype=np.float32).reshape(8, 8),
    "bf16": np.arange(33).astype(ml_dtypes.bfloat16),
    "scalar": np.array(2.5),
    "e5m2": np.arange(4).astype(ml_dtypes.float8_e5m2).reshape(2, 2),
    "complex": np.array([1 + 2j, 3], np.complex64),
    "empty": np.zeros((3, 0), np.int64),
    "bool": np.array([True, False, True]),
    "ünï/x": np.arange(16, dtype=np.int32),
}


def test_the_package_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    (written,) = write(path, [source(name, array) for name, array in ARRAYS.items()])
    assert (written.name, written.size) == ("x.safetensors", path.stat().st_size)
    found = dict(safetensors.deserialize(path.read_bytes()))  # which knows dtypes that its NumPy functions do not
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (found[name]["dtype"], tuple(found[name]["shape"])) == dtypes.held_as(array.dtype.name, array.shape)
        assert found[name]["data"] == array.tobytes()
        assert written.digests[name] == _native.digest(np.ascontiguousarray(array).tobytes())
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata()["content"] == written.content.hex()


def test_every_dtype_of_the_format(tmp_path: Path) -> None:
    sizes = {name: 8 * bits // 8 for name, bits in dtypes.BITS.items()}
    sources = [Source(name, name, (2, 4), lambda n=size: [bytes(range(n))]) for name, size in sizes.items()]
    write(tmp_path / "x.safetensors", sources)
    theirs = dict(safetensors.deserialize((tmp_path / "x.safetensors").read_bytes()))
    for name, size in sizes.items():
        assert theirs[name] == {"dtype": name, "shape": [2, 4], "data": bytes(range(size))}


def test_all_but_small_rests_are_aligned(tmp_path: Path) -> None:
    """Memory begins at a page where a file does: so a position in the file says how an array lies in memory."""
    sizes = [1, 64, 8, 100, 4096, 2, 128, 96, 0, 12]
    sources = [Source(str(i), "U8", (size,), lambda n=size: [bytes(n)]) for i, size in enumerate(sizes)]
    write(tmp_path / "x.safetensors", sources)
    (file,) = reading.open_tensors(tmp_path / "x.safetensors").files
    assert file.header.size % ALIGNMENT == 0
    for tensor in file.header.tensors.values():
        need = ALIGNMENT if tensor.size % ALIGNMENT == 0 else tensor.size & -tensor.size
        assert (file.header.size + tensor.start) % need == 0, tensor
        assert array_in(file, tensor).ctypes.data % need == 0


def test_how_dtypes_are_held() -> None:
    """What the format has no name for is held under another one, which has its bytes."""
    held = {name: dtypes.held_as(name, (3, 4)) for name in ("int4", "uint2", "float8_e3m4", "complex128", "bfloat16")}
    assert held == {
        "int4": ("I8", (3, 4)),
        "uint2": ("U8", (3, 4)),
        "float8_e3m4": ("U8", (3, 4)),
        "complex128": ("F64", (3, 4, 2)),
        "bfloat16": ("BF16", (3, 4)),
    }
    assert dtypes.held_as("float4_e2m1fn", (3, 4)) == ("F4", (3, 4))
    assert dtypes.held_as("float4_e2m1fn", (3, 3)) == ("U8", (3, 3))
    assert dtypes.held_as("key<fry>", ()) is None
    assert dtypes.held_as("float0", ()) is None


def test_several_files(tmp_path: Path) -> None:
    """As other tools name them, with the index that these read."""
    arrays = {f"layers/{i}": np.full(100, i, np.float32) for i in range(5)}
    path = tmp_path / "x.safetensors"
    written = write(path, [source(name, array) for name, array in arrays.items()], max_file_size=900)
    assert [file.name for file in written] == [f"x-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(os.listdir(tmp_path)) == [*(file.name for file in written), "x.safetensors.index.json"]
    index = json.loads((tmp_path / "x.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 2000, "writer": files.WRITER}
    for name, file in index["weight_map"].items():
        np.testing.assert_array_equal(safetensors.numpy.load_file(tmp_path / file)[name], arrays[name])
    found = reading.open_tensors(tmp_path / "x.safetensors.index.json")
    assert {name: array_of(found, name)[0] for name in found} == {name: array[0] for name, array in arrays.items()}
    assert all((tmp_path / file.name).stat().st_size == file.size for file in written)


def test_a_tensor_larger_than_a_file_may_be_has_one_to_itself(tmp_path: Path) -> None:
    sources = [Source(name, "U8", (size,), lambda n=size: [bytes(n)]) for name, size in [("a", 1), ("b", 99), ("c", 1)]]
    written = write(tmp_path / "x.safetensors", sources, max_file_size=10)
    assert [list(file.digests) for file in written] == [["a"], ["b"], ["c"]]


def test_memory_does_not_grow_with_tensors(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(256):
            yield bytes(1 << 20)

    tracemalloc.start()
    (written,) = write(tmp_path / "x.safetensors", [Source("x", "U8", (256 << 20,), pieces)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert (tmp_path / "x.safetensors").stat().st_size == written.size > 256 << 20


def test_what_cannot_be_written(tmp_path: Path) -> None:
    def writing(*sources: Source) -> None:
        write(tmp_path / "x.safetensors", sources)

    for name in ("__metadata__", "\ud800"):
        with pytest.raises(ExportError, match="cannot be called"):
            writing(Source(name, "U8", (), lambda: [b"1"]))
    with pytest.raises(ExportError, match="rank 65"):
        writing(Source("x", "U8", (1,) * 65, lambda: [b"1"]))
    with pytest.raises(ExportError, match=r"'x': expected 1 bytes, found 2"):
        writing(Source("x", "U8", (), lambda: [b"1", b"2"]))
    with pytest.raises(ExportError, match=r"would have a header of .* with a smaller max_weights_file_size"):
        writing(*(Source(f"{i}{'x' * 4000}", "U8", (0,), list) for i in range(4200)))
    assert not list(tmp_path.iterdir())


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(ExportError):
        write(path, [Source("x", "U8", (), list)])
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize(
    "other",
    [source("v", np.zeros((4, 4), np.float32)), source("w", np.zeros((2, 8), np.float32)),
     source("w", np.zeros((4, 4), np.int32))],
    ids=["name", "shape", "dtype"],
)  # fmt: skip
def test_the_content_is_of_all_that_makes_a_tensor(other: Source, tmp_path: Path) -> None:
    """Two files of the same bytes are not taken for each other."""
    (one,) = write(tmp_path / "one.safetensors", [source("w", np.zeros((4, 4), np.float32))])
    (two,) = write(tmp_path / "two.safetensors", [other])
    assert one.size == two.size
    assert one.content != two.content


def test_files_of_the_first_content(tmp_path: Path) -> None:
    """It was the digest of the tensors' digests. Such files are verified, and made again with it."""
    tensors = [dataclasses.replace(source(name, array), digest=_native.digest(array.tobytes()))
               for name, array in (("b", np.ones(4, np.float32)), ("a", np.zeros(4, np.float32)))]  # fmt: skip
    first = _native.digest(b"".join(t.digest or b"" for t in sorted(tensors, key=lambda t: t.name)))
    path = tmp_path / "x.safetensors"
    (written,) = write(path, tensors)
    assert written.content != first
    path.write_bytes(path.read_bytes().replace(written.content.hex().encode(), first.hex().encode()))
    jaxexp.verify(path)
    writing.write_again(os.fspath(tmp_path / "again.safetensors"), tensors, written.size, first)
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    with pytest.raises(WeightsError, match="content"):
        writing.write_again(os.fspath(path), tensors[:1], written.size, first)
