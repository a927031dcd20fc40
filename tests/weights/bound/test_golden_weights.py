"""Weights that earlier versions of jaxexp wrote: beside a program, and in an archive."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import jaxexp
from jaxexp._cli import start
from kit.places import GOLDEN

FOLDERS = sorted((GOLDEN / "weights").iterdir())


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.param, tmp_path / "golden"))


def assert_is_it(loaded: jaxexp.Exported, golden: Path) -> None:
    arrays = np.load(golden / "model.npz")
    np.testing.assert_allclose(loaded.call(arrays["x"]), arrays["y"], rtol=1e-5)
    assert loaded.check().ok or not loaded.cases  # an archive has those of files only
    for name in loaded.weights:
        np.testing.assert_array_equal(loaded.weights[name], arrays[name])


def test_beside(golden: Path) -> None:
    for file in ("model.jaxexp", "model.safetensors"):
        jaxexp.verify(golden / file)
    loaded = jaxexp.load(golden / "model.jaxexp")
    assert_is_it(loaded, golden)
    loaded.save(golden / "model.jaxexp", vjp_order=1)  # in place of itself, with what this version writes
    assert_is_it(jaxexp.load(golden / "model.jaxexp"), golden)
    jaxexp.verify(golden / "model.safetensors")


def test_in_an_archive(golden: Path) -> None:
    with jaxexp.Archive.open(golden / "fleet.zip") as archive:
        assert archive.verify() == {}
        for name in archive:
            assert_is_it(archive[name].load(), golden)
    assert start.main(["unpack", str(golden / "fleet.zip"), "-d", str(golden / "out")]) == 0
    assert_is_it(jaxexp.load(golden / "out" / "from" / "files.jaxexp"), golden)
    assert_is_it(jaxexp.load(golden / "out" / "alone.jaxexp"), golden)
    with jaxexp.Archive.append(golden / "fleet.zip") as archive:
        archive.add_file("again", golden / "out" / "alone.jaxexp")
    with jaxexp.Archive.open(golden / "fleet.zip") as archive:
        assert archive.verify() == {}
        assert_is_it(archive["again"].load(), golden)
