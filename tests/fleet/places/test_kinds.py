"""Which files are artifacts, archives or other files of jaxexp, also damaged ones, and which are none of its own."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp._cli import start
from jaxexp._fleet.places.source import Kind, kind_in_folder, kind_of_file
from jaxexp.errors import DeserializationError
from kit.archive_files import make
from kit.archives import blob, plain
from kit.each import each
from kit.flips import flip
from kit.places import GOLDEN

ARTIFACTS = sorted(GOLDEN.glob("*/*.bin"))


def test_every_artifact_is_one_by_its_beginning() -> None:
    assert len(ARTIFACTS) > 100
    for artifact in ARTIFACTS:
        assert kind_of_file(str(artifact)) is Kind.ARTIFACT, artifact


@each("suffix", ["", ".txt"])
def test_damage_hides_nothing(tmp_path: Path, suffix: str) -> None:
    """Cut anywhere but in the first bytes, or with any one byte changed that is not the root offset's; if the mark
    behind it tells, any byte."""
    target, chosen = tmp_path / f"model{suffix}", random.Random(7)

    def assert_artifact(content: bytes, what: int) -> None:
        target.write_bytes(content)
        assert kind_in_folder(str(target)) is Kind.ARTIFACT, what

    data = bytes(blob())
    for size in (12, 20, 100, len(data) // 2, len(data) - 1):
        assert_artifact(data[:size], size)
    for content, first in ((data, 0), (plain(), 4)):
        for at in [*range(first, 64), *(chosen.randrange(64, len(content)) for _ in range(100))]:
            other = 0xFF if at < 4 else content[at] ^ chosen.randrange(1, 256)
            assert_artifact(content[:at] + bytes([other]) + content[at + 1 :], at)


def test_what_is_called_an_artifact_is_one(tmp_path: Path) -> None:
    contents = {"a.jaxexp": b"", "b.jaxexp": b"text", "c.jax_export": b"\x89PNG", "d": b"", "e.bin": b""}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert kind_in_folder(str(tmp_path / name)) is Kind.ARTIFACT, name


def test_archives(tmp_path: Path) -> None:
    data = make(tmp_path / "new.zip", {"a": blob()}).read_bytes()
    for name in ("fleet.zip", "fleet", "fleet.bak"):
        target = tmp_path / name
        for cut in (len(data), len(data) - 5, 200):
            target.write_bytes(data[:cut])
            assert kind_in_folder(str(target)) is Kind.ARCHIVE
        for at in range(64):
            target.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
            assert kind_in_folder(str(target)) is Kind.ARCHIVE, at


def test_what_is_neither(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a", b"b")
    np.save(tmp_path / "a.npy", np.ones(100))
    np.savez(tmp_path / "a.npz", np.ones(100))
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  '
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    contents = {
        "README.md": b"# Models\n\nThey are good.",
        "config.json": b'{"layers": 12}',
        "no_suffix_but_text": b"no artifact at all, but long enough to be looked at",
        "model.pt": pickle.dumps({"a": list(range(100))}),
        "image.png": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "log.gz": b"\x1f\x8b\x08\x00" + bytes(100),
        "model.tflite": struct.pack("<I", 28) + b"TFL3" + bytes(100),
        "empty.py": b"",
        "short.txt": b"hi",
        "module.mlirbc": b"ML\xefR" + bytes(100),
        "zeros.dat": bytes(1000),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for file in tmp_path.iterdir():
        assert kind_in_folder(str(file)) is None, file.name


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        kind_in_folder(str(tmp_path / "missing"))
    assert kind_of_file(str(tmp_path / "missing")) is None
    assert kind_of_file(os.fspath(tmp_path)) is None


X = np.ones((4, 4), np.float32)


@pytest.fixture(scope="module")
def other_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    other_files = tmp_path_factory.mktemp("files")
    weights = {"w": X}
    exported = jaxexp.export(jax.jit(lambda x: x @ weights["w"]), weights=weights)(X)
    exported.save(other_files / "model.jaxexp")
    jaxexp.load(other_files / "model.jaxexp").precompile(into=other_files / "model.exe")
    return other_files


def row(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The state of a file and the note on it, in `jaxexp verify`."""
    start.main(["verify", "--json", str(path)])
    (found,) = json.loads(capsys.readouterr().out)["files"]
    return found["state"], found["error"] or found["what"]


@each("name, what", [("model.exe", "compiled code of 1 call"), ("model.safetensors", "1 weight")])
def test_whole(other_files: Path, name: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    jaxexp.verify(other_files / name)
    assert not jaxexp.verify_many([other_files / name])
    assert row(other_files / name, capsys) == ("whole", what)
    assert start.main(["verify", str(other_files / name)]) == 0
    assert what in capsys.readouterr().out


@each(
    "name, place, where",
    [
        ("model.exe", -100, "expected the bytes as they were written"),  # the code
        ("model.exe", 200, "expected"),  # the description
        ("model.safetensors", -1, "as its header says, found content "),
    ],
)
def test_damaged(other_files: Path, name: str, place: int, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(shutil.copy(other_files / name, other_files / f"changed_{name}"))
    flip(file, place)
    with pytest.raises(DeserializationError, match=where) as caught:
        jaxexp.verify(file)
    assert caught.value.file == str(file)
    assert list(jaxexp.verify_many([file])) == [str(file)]
    state, error = row(file, capsys)
    assert state == "damaged" and where in error and str(file) not in error


def test_weights_of_another_program(other_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = X.tobytes()
    header = json.dumps({"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, len(data)]}}).encode()
    file = other_files / "foreign.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)
    start.main(["verify", str(file)])
    assert "whole, without digests" in capsys.readouterr().out
    file.write_bytes(file.read_bytes()[:-1])
    assert row(file, capsys)[0] == "damaged"


@each("end, behind", [(7, 7), (-100, None)])
def test_code_that_was_not_finished(
    other_files: Path, end: int, behind: int | None, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    """It is used without its last record."""
    whole = (other_files / "model.exe").read_bytes()
    file = other_files / "cut.exe"
    file.write_bytes(whole + bytes(end) if end > 0 else whole[:end])
    behind = file.stat().st_size - 64 if behind is None else behind
    with pytest.raises(DeserializationError, match=rf"a whole record, found {behind:,} bytes of one: the file"):
        jaxexp.verify(file)
    assert row(file, capsys)[0] == "damaged" and start.main(["verify", str(file)]) == 1
    capsys.readouterr()
    assert start.main(["inspect", str(file)]) == 0
    assert f"{behind:,} bytes of an unfinished record, which is not used" in capsys.readouterr().out
    with caplog.at_level("INFO", logger="jaxexp.executables"):
        jaxexp.load(other_files / "model.jaxexp", executables=file)
    assert f"ends with {behind:,} bytes of a record that was not finished" in caplog.text
