"""Files of executables and of weights are verified as what they are."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp._cli import start

X = np.ones((4, 4), np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    weights = {"w": X}
    exported = jaxexp.export(jax.jit(lambda x: x @ weights["w"]), weights=weights)(X)
    exported.save(folder / "model.jaxexp")
    jaxexp.load(folder / "model.jaxexp").precompile(into=folder / "model.exe")
    return folder


def changed(path: Path, place: int) -> Path:
    written = bytearray(path.read_bytes())
    written[place] ^= 1
    copy = path.with_name(f"changed{path.suffix}")
    copy.write_bytes(written)
    return copy


def row(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The state of a file and the note on it, in `jaxexp verify`."""
    start.main(["verify", "--json", str(path)])
    (found,) = json.loads(capsys.readouterr().out)["files"]
    return found["state"], found["error"] or found["what"]


@pytest.mark.parametrize(
    ("name", "what"), [("model.exe", "compiled code of 1 call"), ("model.safetensors", "1 weight")]
)
def test_whole(folder: Path, name: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    jaxexp.verify(folder / name)
    assert not jaxexp.verify_many([folder / name])
    assert start.main(["verify", str(folder / name)]) == 0
    assert what in capsys.readouterr().out
    assert row(folder / name, capsys) == ("whole", what)


@pytest.mark.parametrize(
    ("name", "place", "where"),
    [
        ("model.exe", -100, "expected the bytes as they were written"),  # the code
        ("model.exe", 200, "expected"),  # the description
        ("model.safetensors", -1, "as its header says, found content "),
    ],
)
def test_damaged(folder: Path, name: str, place: int, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = changed(folder / name, place)
    with pytest.raises(jaxexp.DeserializationError, match=where) as caught:
        jaxexp.verify(file)
    assert caught.value.file == str(file)
    assert list(jaxexp.verify_many([file])) == [str(file)]
    state, error = row(file, capsys)
    assert state == "damaged" and where in error and str(file) not in error


def test_weights_of_another_program(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They have no digest."""
    data = X.tobytes()
    header = json.dumps({"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, len(data)]}}).encode()
    file = folder / "foreign.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)
    start.main(["verify", str(file)])
    assert "whole, without digests" in capsys.readouterr().out
    file.write_bytes(file.read_bytes()[:-1])
    assert row(file, capsys)[0] == "damaged"


def test_code_that_another_process_is_writing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "growing.exe"
    file.write_bytes((folder / "model.exe").read_bytes() + bytes(7))
    start.main(["verify", str(file)])
    assert "whole, and 7 bytes more" in capsys.readouterr().out


def test_what_to_do_with_a_file_of_executables(folder: Path) -> None:
    advice = r"a file of executables.*used with its artifact, by load\(path, executables=...\)"
    with pytest.raises(jaxexp.DeserializationError, match=advice):
        jaxexp.load(folder / "model.exe")
