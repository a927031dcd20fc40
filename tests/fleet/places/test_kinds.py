"""Which files of a folder are artifacts or archives, also damaged ones, and which have nothing to do with them."""

from __future__ import annotations

import os
import pickle
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from jaxexp._fleet.places.source import Kind, kind_in_folder, kind_of_file
from kit.archive_files import make
from kit.archives import blob, plain
from kit.places import GOLDEN

ARTIFACTS = sorted(GOLDEN.glob("*/*.bin"))


def test_every_artifact_is_one_by_its_beginning(tmp_path: Path) -> None:
    assert len(ARTIFACTS) > 100
    for artifact in ARTIFACTS:
        assert kind_of_file(str(artifact)) is Kind.ARTIFACT, artifact


@pytest.mark.parametrize("suffix", ["", ".bin", ".model", ".txt"])
def test_damage_hides_nothing(tmp_path: Path, suffix: str) -> None:
    """Cut anywhere but in the first bytes, or with any one byte changed that is not the root offset's."""
    data = bytes(blob())
    target = tmp_path / f"model{suffix}"
    for size in (12, 20, 100, len(data) // 2, len(data) - 1):
        target.write_bytes(data[:size])
        assert kind_in_folder(str(target)) is Kind.ARTIFACT, size
    chosen = random.Random(7)
    for at in [*range(4, 64), *(chosen.randrange(64, len(data)) for _ in range(100))]:
        target.write_bytes(data[:at] + bytes([data[at] ^ chosen.randrange(1, 256)]) + data[at + 1 :])
        assert kind_in_folder(str(target)) is Kind.ARTIFACT, at
    for at in range(4):  # what tells is the mark behind it
        target.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
        assert kind_in_folder(str(target)) is Kind.ARTIFACT, at
    data = plain()
    for at in [*range(4, 64), *(chosen.randrange(64, len(data)) for _ in range(100))]:
        target.write_bytes(data[:at] + bytes([data[at] ^ chosen.randrange(1, 256)]) + data[at + 1 :])
        assert kind_in_folder(str(target)) is Kind.ARTIFACT, at


def test_what_is_called_an_artifact_is_one(tmp_path: Path) -> None:
    for name, content in (
        ("a.jaxexp", b""),
        ("b.jaxexp", b"text"),
        ("c.jax_export", b"\x89PNG"),
        ("d", b""),
        ("e.bin", b""),
    ):
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
