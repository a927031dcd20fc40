"""Keys, and files that are signed with them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import jaxexp
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
