"""Keys, and files that are signed with them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp._signing import reading
from kit.signing import SHAPES, Pair, program


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("release", "other"):
        Pair.make().write(folder, name)
    return folder


@pytest.fixture
def by(keys: Path) -> jaxexp.SignedBy:
    return jaxexp.SignedBy(public_key=keys / "release.pub")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Path:
    """A program with weights, its executables, and an archive; each with a signature. To be copied."""
    folder = tmp_path_factory.mktemp("made")
    exported = program()
    exported.save(folder / "model.jaxexp")
    exported.precompile(SHAPES, into=folder / "model.exe")
    with jaxexp.Archive.create(folder / "fleet.zip") as archive:
        archive.add("models/one", exported)
    names = ("model.jaxexp", "model.exe", "fleet.zip")
    jaxexp.sign([folder / name for name in names], key=keys / "release.pem")
    return folder


@pytest.fixture
def signed(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "signed"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the signed files that are read from now on. What was just written counts as old."""
    names: list[str] = []
    real = reading.files.file_bytes

    def read(path: Any, **how: bool) -> Any:
        if how.get("at_once"):
            names.append(os.path.basename(path))
        return real(path, **how)

    monkeypatch.setattr(reading.files, "file_bytes", read)
    monkeypatch.setattr(reading, "_SETTLED", 0)
    return names
