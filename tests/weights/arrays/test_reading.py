"""Files of tensors are read as the safetensors package reads them, and what is wrong is refused in one sentence."""

from __future__ import annotations

import json
import os
import random
import time
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from jaxexp._errors import DeserializationError, WeightsError
from jaxexp._weights.files import reading
from jaxexp._weights.files.dtypes import BITS
from kit.safetensors_files import NO_PLAIN_NAMES, WRONG, a_file, entry
from kit.tensor_files import array_of

pytestmark = pytest.mark.once(reason="files without JAX")


def test_what_the_package_writes(tmp_path: Path) -> None:
    tensors = {
        "layers/0/w": np.arange(12, dtype=np.float32).reshape(3, 4),
        "scalar": np.array(2.5, np.float64),
        "empty": np.zeros((0, 7), np.int8),
        "half": np.arange(5).astype(ml_dtypes.bfloat16),
        "eight": np.arange(3).astype(ml_dtypes.float8_e4m3fn),
        "truth": np.array([True, False]),
        "complex": np.array([1 + 2j], np.complex64),
        "ünï": np.array([7], np.uint16),
    }
    safetensors.numpy.save_file(tensors, tmp_path / "x.safetensors", {"from": "a test"})
    found = reading.open_tensors(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    assert found.files[0].header.metadata == {"from": "a test"}
    assert found.files[0].content is None
    for name, tensor in tensors.items():
        assert array_of(found, name).dtype == tensor.dtype
        assert array_of(found, name).shape == tensor.shape
        np.testing.assert_array_equal(array_of(found, name), tensor)
        assert not array_of(found, name).flags.writeable


def test_dtypes_are_those_of_the_package() -> None:
    """A file with eight elements of each is one for the package, too."""
    for dtype, bits in BITS.items():
        ((_, tensor),) = safetensors.deserialize(a_file({"x": entry(dtype, [8], 0, bits)}, bytes(bits)))
        assert tensor["dtype"] == dtype


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files(name: str, tmp_path: Path) -> None:
    content, message = WRONG[name]
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=message) as error:
        reading.open_tensors(tmp_path / "x.safetensors")
    assert isinstance(error.value, DeserializationError)
    assert error.value.file == str(tmp_path / "x.safetensors")
    assert str(error.value).startswith(f"cannot read the weights {str(tmp_path / 'x.safetensors')!r}: ")
    assert len(str(error.value)) < 700


def test_what_is_read_the_package_reads_too(tmp_path: Path) -> None:
    """Any change of a header is refused, or both readers find the same tensors."""
    tensors = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": np.zeros(0, np.float32), "c": np.array(1.0)}
    good = safetensors.numpy.save(tensors, {"who": "me"})
    path = tmp_path / "x.safetensors"
    source = random.Random(0)
    end = 8 + int.from_bytes(good[:8], "little")
    accepted = 0
    for _ in range(3000):
        changed = bytearray(good)
        for _ in range(source.randrange(1, 3)):
            at = source.randrange(end)
            new = source.choice([*b'0123456789{}[]",:abFU \\', source.randrange(256)])
            changed[at : at + source.choice([0, 1, 1, 1, 2])] = bytes([new])
        if source.random() < 0.5:  # the length is right again
            changed[:8] = (len(changed) - len(good) + end - 8).to_bytes(8, "little")
        path.write_bytes(changed)
        try:
            found = reading.open_tensors(path)
        except WeightsError:
            continue
        accepted += 1
        theirs = dict(safetensors.deserialize(bytes(changed)))
        ours = {
            name: (tensor.dtype, list(tensor.shape), bytes(found.files[0].bytes_of(tensor)))
            for name, tensor in found.items()
        }
        assert ours == {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in theirs.items()}
    assert accepted > 50


def test_costs_grow_with_the_header(tmp_path: Path) -> None:
    """A header of 20,000 tensors of nothing: seconds at most, and memory in proportion."""
    header = b"{" + b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(20_000)) + b"}"
    (tmp_path / "x.safetensors").write_bytes(a_file(header))
    start = time.process_time()
    tracemalloc.start()
    found = reading.open_tensors(tmp_path / "x.safetensors")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 20_000
    assert peak < 40 * len(header)
    assert time.process_time() - start < 60


# --- several files --------------------------------------------------------------------------------------------------


def write_index(folder: Path, weight_map: object, **more: object) -> Path:
    path = folder / "x.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 2.0}, "weight_map": weight_map, **more}))
    return path


def shard(path: Path, *names: str) -> Path:
    path.write_bytes(
        a_file({name: entry("U8", [1], i, i + 1) for i, name in enumerate(names)}, bytes(range(len(names))))
    )
    return path


def test_several_files(tmp_path: Path) -> None:
    shard(tmp_path / "1.safetensors", "a", "b")
    shard(tmp_path / "2.safetensors", "c")
    index = write_index(tmp_path, {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"})
    found = reading.open_tensors(index)
    assert {name: int(array_of(found, name)[0]) for name in found} == {"a": 0, "b": 1, "c": 0}
    assert found.file_of("c").name == str(tmp_path / "2.safetensors")


@pytest.mark.parametrize("name", NO_PLAIN_NAMES)
def test_names_that_lead_out_of_the_folder(name: str, tmp_path: Path) -> None:
    """An index is data of others: what ONNX's external data allowed, time after time."""
    (tmp_path / "here" / "folder").mkdir(parents=True)
    for place in (tmp_path, tmp_path / "here", tmp_path / "here" / "folder"):
        shard(place / "x.safetensors", "a")
    index = write_index(tmp_path / "here", {"a": name})
    with pytest.raises(
        WeightsError, match=r"expected the name of a .safetensors file in the same folder, found"
    ) as error:
        reading.open_tensors(index)
    assert error.value.file == str(index)


@pytest.mark.skipif(os.name == "nt", reason="makes links, and POSIX's kinds of files")
class TestLinks:
    def test_out_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "here").mkdir()
        shard(tmp_path / "secret.safetensors", "a")
        (tmp_path / "here" / "1.safetensors").symlink_to(tmp_path / "secret.safetensors")
        index = write_index(tmp_path / "here", {"a": "1.safetensors"})
        with pytest.raises(WeightsError, match=r"found a link to '.*secret.safetensors'"):
            reading.open_tensors(index)

    def test_by_a_link_to_the_folder(self, tmp_path: Path) -> None:
        """Through a link in the folder that leads to a file behind another link, too."""
        (tmp_path / "here").mkdir()
        (tmp_path / "there").mkdir()
        shard(tmp_path / "there" / "1.safetensors", "a")
        (tmp_path / "here" / "up").symlink_to(tmp_path / "there")
        (tmp_path / "here" / "1.safetensors").symlink_to(Path("up") / "1.safetensors")
        index = write_index(tmp_path / "here", {"a": "1.safetensors"})
        with pytest.raises(WeightsError, match="found a link to"):
            reading.open_tensors(index)

    def test_inside_the_folder(self, tmp_path: Path) -> None:
        shard(tmp_path / "real.safetensors", "a")
        (tmp_path / "1.safetensors").symlink_to("real.safetensors")
        assert list(reading.open_tensors(write_index(tmp_path, {"a": "1.safetensors"}))) == ["a"]

    def test_of_a_cache_of_downloads(self, tmp_path: Path) -> None:
        """All files are links to one folder of contents, the index too."""
        blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
        blobs.mkdir()
        snapshot.mkdir()
        shard(blobs / "0123", "a")
        write_index(blobs, {"a": "1.safetensors"}).rename(blobs / "4567")
        (snapshot / "1.safetensors").symlink_to(Path("..") / "blobs" / "0123")
        (snapshot / "x.safetensors.index.json").symlink_to(Path("..") / "blobs" / "4567")
        assert list(reading.open_tensors(snapshot / "x.safetensors.index.json")) == ["a"]

    def test_in_a_circle(self, tmp_path: Path) -> None:
        (tmp_path / "1.safetensors").symlink_to("1.safetensors")
        with pytest.raises(WeightsError, match="expected a regular file, found a link"):
            reading.open_tensors(write_index(tmp_path, {"a": "1.safetensors"}))

    @pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
    def test_to_no_file(self, kind: str, tmp_path: Path) -> None:
        """A pipe that nobody writes to does not make the reader wait."""
        path = tmp_path / "1.safetensors"
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path = Path("/dev/null")
        with pytest.raises(WeightsError, match="expected a regular file"):
            reading.open_tensors(path)


def test_indices_that_are_wrong(tmp_path: Path) -> None:
    shard(tmp_path / "1.safetensors", "a", "b")
    shard(tmp_path / "2.safetensors", "b", "c")
    both = {"a": "1.safetensors", "b": "1.safetensors"}
    for weight_map, message in [
        ({"a": "1.safetensors"}, "tensor 'b': expected every tensor of its files in the weight_map"),
        ({**both, "d": "1.safetensors"}, "tensor 'd': expected this tensor in '1.safetensors', found none"),
        ({**both, "c": "2.safetensors"}, "tensor 'b': expected a tensor of this name in one file"),
        ({"a": "0.safetensors"}, "0.safetensors': expected a file that 'x.safetensors.index.json' names"),
        ({"a": 1}, "a weight_map that maps tensors to files"),
        ([], "a weight_map that maps tensors to files"),
    ]:
        with pytest.raises(WeightsError, match=message):
            reading.open_tensors(write_index(tmp_path, weight_map))
    shard(tmp_path / "3.safetensors", "c")
    with pytest.raises(WeightsError, match=r"tensor 'a': expected this tensor in '3.safetensors', found it in"):
        reading.open_tensors(write_index(tmp_path, {"a": "3.safetensors", "b": "1.safetensors", "c": "3.safetensors"}))
    (tmp_path / "x.safetensors.index.json").write_text('{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}')
    with pytest.raises(WeightsError, match="found 'a' twice"):
        reading.open_tensors(tmp_path / "x.safetensors.index.json")
    with open(tmp_path / "x.safetensors.index.json", "wb") as file:
        file.truncate((32 << 20) + 1)
    with pytest.raises(WeightsError, match="an index of at most 33,554,432 bytes"):
        reading.open_tensors(tmp_path / "x.safetensors.index.json")


def test_digests(tmp_path: Path) -> None:
    from jaxexp import _native

    (file,) = reading.open_tensors(shard(tmp_path / "x.safetensors", "a", "b")).files
    reading.check_digest(file, file.header.tensors["b"], _native.digest(b"\1"))
    with pytest.raises(WeightsError, match=r"tensor 'a': expected bytes with the digest .*, found the digest") as error:
        reading.check_digest(file, file.header.tensors["a"], _native.digest(b"\1"))
    assert error.value.file == str(tmp_path / "x.safetensors")
