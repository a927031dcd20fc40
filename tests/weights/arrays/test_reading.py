"""Files of tensors are read as the safetensors package reads them, and what is wrong is refused in one sentence."""

from __future__ import annotations

import collections
import json
import os
import random
from pathlib import Path

import pytest
import safetensors
import safetensors.numpy

from jaxexp._errors import DeserializationError, WeightsError
from jaxexp._weights.files import reading
from jaxexp._weights.files.dtypes import BITS
from kit import costs
from kit.each import each
from kit.safetensors_files import NO_PLAIN_NAMES, WRONG, a_file, entry
from tools import tensors_fuzz


def test_dtypes_are_those_of_the_package() -> None:
    """A file with eight elements of each is one for the package, too."""
    for dtype, bits in BITS.items():
        ((_, tensor),) = safetensors.deserialize(a_file({"x": entry(dtype, [8], 0, bits)}, bytes(bits)))
        assert tensor["dtype"] == dtype


@each("name", WRONG)
def test_wrong_files(name: str, tmp_path: Path) -> None:
    content, message = WRONG[name]
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=message) as error:
        reading.open_tensors(tmp_path / "x.safetensors")
    assert isinstance(error.value, DeserializationError)
    assert error.value.file == str(tmp_path / "x.safetensors")
    assert str(error.value).startswith(f"cannot read the weights {str(tmp_path / 'x.safetensors')!r}: ")
    assert len(str(error.value)) < 700


def write_index(folder: Path, weight_map: object, **more: object) -> Path:
    path = folder / "x.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 2.0}, "weight_map": weight_map, **more}))
    return path


def shard(path: Path, *names: str) -> Path:
    path.write_bytes(
        a_file({name: entry("U8", [1], i, i + 1) for i, name in enumerate(names)}, bytes(range(len(names))))
    )
    return path


@each("name", NO_PLAIN_NAMES)
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
def test_links(tmp_path: Path) -> None:
    """Inside of the folder, and as a cache of downloads has them: the index and the files in one folder of contents."""
    inside, blobs, snapshot = (tmp_path / name for name in ("inside", "blobs", "snapshot"))
    for folder in (inside, blobs, snapshot):
        folder.mkdir()
    shard(inside / "real.safetensors", "a")
    (inside / "1.safetensors").symlink_to("real.safetensors")
    assert list(reading.open_tensors(write_index(inside, {"a": "1.safetensors"}))) == ["a"]
    shard(blobs / "0123", "a")
    write_index(blobs, {"a": "1.safetensors"}).rename(blobs / "4567")
    (snapshot / "1.safetensors").symlink_to(Path("..") / "blobs" / "0123")
    (snapshot / "x.safetensors.index.json").symlink_to(Path("..") / "blobs" / "4567")
    assert list(reading.open_tensors(snapshot / "x.safetensors.index.json")) == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="makes links, and POSIX's kinds of files")
def test_links_that_lead_elsewhere(tmp_path: Path) -> None:
    """Out of the folder, also through a link to another one; in a circle; to a pipe, for whose writer nobody waits."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    shard(there / "1.safetensors", "a")
    (here / "up").symlink_to(there)
    index, link = write_index(here, {"a": "1.safetensors"}), here / "1.safetensors"
    for target, said in (
        (there / "1.safetensors", r"found a link to '.*there/1.safetensors'"),
        (Path("up") / "1.safetensors", "found a link to"),
        (Path("1.safetensors"), "expected a regular file, found a link"),
    ):
        link.symlink_to(target)
        with pytest.raises(WeightsError, match=said):
            reading.open_tensors(index)
        link.unlink()
    os.mkfifo(here / "pipe")
    for path in (there, here / "pipe", Path("/dev/null")):
        with pytest.raises(WeightsError, match="expected a regular file"):
            reading.open_tensors(path)


def test_indices_that_are_wrong(tmp_path: Path) -> None:
    shard(tmp_path / "1.safetensors", "a", "b")
    shard(tmp_path / "2.safetensors", "b", "c")
    both = {"a": "1.safetensors", "b": "1.safetensors"}
    for weight_map, message in [
        ({"a": "1.safetensors"}, "tensor 'b': expected an entry for this tensor in the weight_map"),
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


@each("seed", range(2))
def test_changed_files(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    outcomes = collections.Counter(
        tensors_fuzz.look_at(tmp_path / "x.safetensors", tensors_fuzz.changed_file(source)) for _ in range(400)
    )
    assert outcomes["read"] > 50
    assert outcomes["refused"] > 150


def test_costs(tmp_path: Path) -> None:
    """Headers that say much in few bytes: the promise is the one for artifacts."""
    path = tmp_path / "x.safetensors"
    count = 20_000
    for text in (
        "{" + ",".join(f'"{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(count)) + "}",
        '{"__metadata__":{' + ",".join(f'"{i}":""' for i in range(count)) + "}}",
        '{"a":{"dtype":"U8","shape":[' + ",".join(["1"] * count) + '],"data_offsets":[0,1]}}',
        '{"' + "n" * count + '":{"dtype":"U8","shape":[0],"data_offsets":[0,1]}}',
        "{" * count,
        '{"a":' + "[" * count,
        '{"a":' + "9" * count + "}",
    ):
        blob = len(text).to_bytes(8, "little") + text.encode()
        slowness = costs.slowness()
        found, seconds, memory = costs.measured(lambda blob=blob: tensors_fuzz.look_at(path, blob))
        assert found in ("read", "refused")
        assert seconds <= costs.allowed_seconds(len(blob), slowness), text[:100]
        assert memory <= costs.allowed_memory(len(blob)), text[:100]
