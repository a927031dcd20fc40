"""Files of tensors are read as the safetensors package reads them, and what is wrong is refused in one sentence; what
is of other programs is said to be so.
"""

from __future__ import annotations

import collections
import json
import os
import pickle
import random
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import jaxexp
from jaxexp._weights.files import reading
from jaxexp._weights.files.dtypes import BITS
from jaxexp.errors import DeserializationError, WeightsError
from kit import costs
from kit.each import each
from kit.safetensors_files import NO_PLAIN_NAMES, WRONG, a_file, entry
from kit.weighted import bound, params
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


OTHERS = {
    "leaves.eqx": "looks like NumPy's.*equinox.tree_deserialise_leaves, and pass the arrays or the module",
    "weights.npz": "looks like a ZIP file.*torch.save.*pass the arrays by their names",
    "weights.pkl": "looks like a pickle",
    "model.jaxexp": "looks like an artifact. Pass its file of weights",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bound()[0].save(tmp_path / "model.jaxexp")
    with open(tmp_path / "leaves.eqx", "wb") as file:
        np.save(file, np.ones(3))
        np.save(file, np.ones(4))
    np.savez(tmp_path / "weights.npz", head=np.ones(3))
    for name, member in (("weights.pt", "weights/data.pkl"), ("some.zip", "readme.txt")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(member, b"anything")
    (tmp_path / "model.exe").write_bytes(b"JAXEXPEX" + bytes(200))
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps({"head": [1.0] * 99}, protocol=4))
    return tmp_path


@each("name", OTHERS)
def test_in_the_place_of_weights(folder: Path, name: str) -> None:
    model = jaxexp.load(folder / "model.jaxexp")
    with pytest.raises(WeightsError, match=f"expected a safetensors file, found .*{OTHERS[name]}") as error:
        model.with_weights(folder / name)
    assert str(folder / name) in str(error.value)


INSTEAD_OF_ARTIFACTS = {
    "model.safetensors": "looks like a safetensors file.*only weights: 'jaxexp inspect' lists them. Load the artifact",
    "leaves.eqx": "looks like NumPy's file of arrays.*without a program",
    "weights.npz": "looks like a file of numpy.savez: other libraries keep weights",
    "weights.pt": "looks like a file of torch.save: other libraries keep weights",
    "some.zip": "jaxexp.Archive.open opens an archive of artifacts. A file of numpy.savez or torch.save",
    "model.exe": "found a file of executables, which has compiled code but no function",
    "weights.pkl": "looks like a pickle.*: other libraries keep weights or objects in such files",
}


@each("name", INSTEAD_OF_ARTIFACTS)
def test_in_the_place_of_an_artifact(folder: Path, name: str) -> None:
    for function in (jaxexp.load, jaxexp.inspect, jaxexp.verify, jaxexp.compatibility):
        if name in ("model.safetensors", "model.exe") and function is jaxexp.verify:
            continue  # which verifies them as what they are
        with pytest.raises(DeserializationError, match=INSTEAD_OF_ARTIFACTS[name]) as error:
            function(folder / name)
        assert error.value.file == str(folder / name)
        assert "root table" not in str(error.value), "what is known to be something else is not damaged"
        with pytest.raises(DeserializationError, match=INSTEAD_OF_ARTIFACTS[name]):
            function((folder / name).read_bytes())


def test_a_plain_artifact_that_was_cut(tmp_path: Path) -> None:
    """It has no trailer to say how long it was."""
    blob = jaxexp.export(jax.jit(lambda x: x + 1))(np.ones(3, np.float32)).serialize(trailer=False)
    said = "the file was cut or damaged; get another copy of it"
    for part in (0.3, 0.5, 0.8, 0.95):
        (tmp_path / "cut.bin").write_bytes(blob[: int(len(blob) * part)])
        for use in (jaxexp.load, jaxexp.verify, jaxexp.inspect):
            with pytest.raises(DeserializationError, match=f"{said}$"):
                use(tmp_path / "cut.bin")
        (error,) = jaxexp.verify_many([tmp_path / "cut.bin"]).values()
        assert str(error).endswith(said)


def test_one_weight_of_several() -> None:
    model, given = bound()
    with pytest.raises(WeightsError, match=r"pass \{\*\*loaded\.weights, \.\.\.\}$"):
        model.with_weights({"head": given["head"]})
    other = params(seed=1)["head"]
    assert model.with_weights({**model.weights, "head": other}).weights["head"] is other
    with pytest.raises(WeightsError, match="no such name among 1, of which 'heads' is not used") as error:
        model.with_weights({"heads": other, "name": "tagger", "size": 3, "activation": np.tanh})
    assert "loaded.weights" not in str(error.value)
