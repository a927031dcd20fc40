"""Files of tensors are written for other tools, saved together with a program, and made again from an archive."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import jaxexp
from jaxexp import _native
from jaxexp._errors import ExportError, WeightsError
from jaxexp._kernel.io import files as io_files
from jaxexp._weights.arrays.weights import Weights
from jaxexp._weights.files import dtypes, header, reading, saving
from jaxexp._weights.files.header import ALIGNMENT, Source, Table
from jaxexp._weights.files.reading import StoredTensors
from jaxexp._weights.files.saving import Unpacking
from kit.archive_files import make
from kit.compare import assert_same_values
from kit.each import each
from kit.tensor_files import array_of, write


def weights_of(value: float = 0, names: str = "ab") -> Weights:
    arrays = {name: np.full(16, value, np.float32) for name in names}
    return Weights({name: jax.typeof(array) for name, array in arrays.items()}, arrays)


def save(folder: Path, value: float, **options: int) -> Table:
    tables: list[Table] = []
    saving.save(folder / "x", "x.safetensors", weights_of(value, "w").sources(), tables.append, **options)
    return tables[0]


def value(folder: Path, table: Table) -> float:
    return float(array_of(StoredTensors(folder / "x", table).find("w"))[0])


def of_safetensors(path: Path) -> None:
    safetensors.numpy.save_file({"w": np.ones(16, np.float32)}, path, {"format": "pt"})


def an_index(path: Path) -> None:
    path.write_text(
        json.dumps({"metadata": {"total_size": 64}, "weight_map": {"w": "model-00001-of-00001.safetensors"}})
    )


INDEX = "x.safetensors.index.json"
OF_OTHERS: list[tuple[str, Callable[[Path], object]]] = [
    ("x.safetensors", of_safetensors),
    ("x.safetensors", lambda path: path.write_bytes(b"something else")),
    ("x.safetensors", Path.mkdir),
    ("x-00002-of-00002.safetensors", of_safetensors),
    (INDEX, an_index),
    (INDEX, lambda path: path.write_text('{"weight_map":{}}')),
    (INDEX, lambda path: path.write_text("[]")),
    (INDEX, lambda path: path.write_text("[" * 100_000)),
    (INDEX, lambda path: path.write_bytes(b"\xff\xfe\xfd")),
]


@each("name, make", OF_OTHERS)
def test_files_of_others_are_not_replaced(tmp_path: Path, name: str, make: Callable[[Path], object]) -> None:
    make(tmp_path / name)
    before = [(path.name, path.stat().st_ino, path.stat().st_mtime_ns) for path in tmp_path.iterdir()]
    options = {} if name == "x.safetensors" else {"max_file_size": 16}
    said = rf"expected '.*{re.escape(name)}' to be missing, or a file that jaxexp wrote"
    with pytest.raises(ExportError, match=said):
        saving.save(tmp_path / "x", "x.safetensors", weights_of().sources(), lambda table: None, **options)
    assert [(path.name, path.stat().st_ino, path.stat().st_mtime_ns) for path in tmp_path.iterdir()] == before


def test_what_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files, those of jaxexp, and indices; also where a file system has no links."""
    (tmp_path / "x.safetensors").touch()
    assert value(tmp_path, save(tmp_path, 1)) == 1
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", Mock(side_effect=OSError("not supported")))
        assert value(tmp_path, save(tmp_path, 2)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
    (tmp_path / "x.safetensors").unlink()
    for weights in (weights_of(0), weights_of(1)):
        saving.save(tmp_path / "x", "x.safetensors", weights.sources(), lambda table: None, max_file_size=16)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_second_name_of_another_content_is_not_believed(tmp_path: Path) -> None:
    table = save(tmp_path, 1)
    save(tmp_path / ".." / tmp_path.name, 1)
    (file,) = table.files
    (tmp_path / file.second_name).write_bytes(b"hostile")
    assert value(tmp_path, table) == 1


def source(name: str, array: np.ndarray) -> Source:
    held: Any = dtypes.held_as(array.dtype.name, array.shape)
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
    (written,), tensors, _ = write(path, [source(name, array) for name, array in ARRAYS.items()])
    digests = {tensor.name: tensor.digest for tensor in tensors}
    assert (written.name, written.size) == ("x.safetensors", path.stat().st_size)
    found = dict(safetensors.deserialize(path.read_bytes()))  # which knows dtypes that its NumPy functions do not
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (found[name]["dtype"], tuple(found[name]["shape"])) == dtypes.held_as(array.dtype.name, array.shape)
        assert found[name]["data"] == array.tobytes()
        assert digests[name] == _native.digest(np.ascontiguousarray(array).tobytes())
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata()["content"] == written.content.hex()


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
        assert array_of(file.source(tensor.name)).ctypes.data % need == 0


def test_several_files(tmp_path: Path) -> None:
    arrays = {f"layers/{i}": np.full(100, i, np.float32) for i in range(5)}
    path = tmp_path / "x.safetensors"
    written = write(path, [source(name, array) for name, array in arrays.items()], max_file_size=900).files
    assert [file.name for file in written] == [f"x-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(os.listdir(tmp_path)) == [*(file.name for file in written), "x.safetensors.index.json"]
    index = json.loads((tmp_path / "x.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 2000, "writer": io_files.WRITER}
    for name, file in index["weight_map"].items():
        np.testing.assert_array_equal(safetensors.numpy.load_file(tmp_path / file)[name], arrays[name])
    found = reading.open_tensors(tmp_path / "x.safetensors.index.json")
    assert {name: array_of(found[name])[0] for name in found} == {name: array[0] for name, array in arrays.items()}
    assert all((tmp_path / file.name).stat().st_size == file.size for file in written)


def test_memory_does_not_grow_with_tensors(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(256):
            yield bytes(1 << 20)

    tracemalloc.start()
    (written,) = write(tmp_path / "x.safetensors", [Source("x", "U8", (256 << 20,), pieces)]).files
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


def test_the_content_is_of_all_that_makes_a_tensor(tmp_path: Path) -> None:
    """Two files of the same bytes are not taken for each other."""
    (one,) = write(tmp_path / "one.safetensors", [source("w", np.zeros((4, 4), np.float32))]).files
    for name, shape, dtype in (("v", (4, 4), np.float32), ("w", (2, 8), np.float32), ("w", (4, 4), np.int32)):
        (two,) = write(tmp_path / "two.safetensors", [source(name, np.zeros(shape, dtype))]).files
        assert one.size == two.size
        assert one.content != two.content


def test_files_of_the_first_content(tmp_path: Path) -> None:
    """It was the digest of the tensors' digests. Such files are verified, and made again with it."""
    tensors = [dataclasses.replace(source(name, array), digest=_native.digest(array.tobytes()))
               for name, array in (("b", np.ones(4, np.float32)), ("a", np.zeros(4, np.float32)))]  # fmt: skip
    first = _native.digest(b"".join(t.digest or b"" for t in sorted(tensors, key=lambda t: t.name)))
    path = tmp_path / "x.safetensors"
    (written,) = write(path, tensors).files
    assert written.content != first
    path.write_bytes(path.read_bytes().replace(written.content.hex().encode(), first.hex().encode()))
    jaxexp.verify(path)
    saving.write_again(os.fspath(tmp_path / "again.safetensors"), tensors, written.size, first)
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    with pytest.raises(WeightsError, match="content"):
        saving.write_again(os.fspath(path), tensors[:1], written.size, first)


X = np.ones(4, np.float32)


def archive(folder: Path, weights: np.ndarray) -> jaxexp.Archive:
    """An archive of a function that multiplies by its weights, which are in the file model.safetensors."""
    folder.mkdir()
    exported = jaxexp.export(jax.jit(lambda p, x: x * p["w"]))({"w": weights}, X).bind({"w": weights})
    exported.save(folder / "model.jaxexp")
    return jaxexp.Archive.open(make(folder / "a.zip", {"model": folder / "model.jaxexp"}))


def unpack(opened: jaxexp.Archive, folder: Path) -> int:
    unpacking, weights = Unpacking(), opened["model"].stored_weights()
    return unpacking.write(unpacking.plan(str(folder), weights, lambda path: None), weights)


def test_a_file_of_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody can make other bytes of the same digests; here, the digests are not looked at."""
    monkeypatch.setattr(reading, "check_digest", lambda *_: None)
    first, second = np.arange(4, dtype=np.float32), np.full(4, 7, np.float32)
    (tmp_path / "out").mkdir()
    with archive(tmp_path / "theirs", first) as theirs, archive(tmp_path / "ours", second) as ours:
        assert unpack(theirs, tmp_path / "out") > 0
        assert unpack(theirs, tmp_path / "out") == 0
        (written,) = (tmp_path / "out").glob("*.safetensors")
        said = (tmp_path / "ours" / "model.safetensors").read_bytes()
        size = header.size_of_header(said[:8], len(said))
        forged = said[:size] + written.read_bytes()[size:]  # it says that it has the content of ours
        path = tmp_path / "out" / ours["model"].stored_weights().table.files[0].name
        path.write_bytes(forged)
        with pytest.raises(jaxexp.errors.WeightsError, match="one of the same digest with other bytes"):
            unpack(ours, tmp_path / "out")
        assert path.read_bytes() == forged


def test_a_damaged_file_is_written_again(tmp_path: Path) -> None:
    weights = np.arange(4, dtype=np.float32)
    (tmp_path / "out").mkdir()
    with archive(tmp_path / "in", weights) as opened:
        assert unpack(opened, tmp_path / "out") > 0
        (path,) = (tmp_path / "out").glob("*.safetensors")
        whole = path.read_bytes()
        path.unlink()
        path.write_bytes(whole[:-1] + b"\x00")
        assert unpack(opened, tmp_path / "out") == len(whole)
        assert path.read_bytes() == whole
        assert_same_values(opened["model"].load().call(X), X * weights)
