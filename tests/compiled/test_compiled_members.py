"""Members of an archive whose code is in a file."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import jaxexp

X = np.arange(4, dtype=np.float32)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.zip"
    with jaxexp.Archive.create(path) as writer:
        writer.add("double", jaxexp.export(jax.jit(lambda x: 2 * x))(X))
        writer.add("triple", jaxexp.export(jax.jit(lambda x: 3 * x))(X))
    return path


def test_one_file_has_the_code_of_all_members(archive: Path, tmp_path: Path) -> None:
    exe = tmp_path / "fleet.exe"
    with jaxexp.Archive.open(archive) as opened:
        assert list(opened.precompile(into=exe)) == ["double", "triple"]
        double, triple = (opened[name].load(executables=exe) for name in ("double", "triple"))
        np.testing.assert_array_equal(double.call(X), 2 * X)
        np.testing.assert_array_equal(triple.call(X), 3 * X)
        for function in (double, triple):
            assert sum(one.used for one in function.executables) == 1
        assert opened["double"].load().executables == (), "who names no file gets none"


def test_some_members_only(archive: Path, tmp_path: Path) -> None:
    with jaxexp.Archive.open(archive) as opened:
        assert list(opened.precompile(["triple"], into=tmp_path / "one.exe")) == ["triple"]
        with pytest.raises(KeyError):
            opened.precompile(["missing"], into=tmp_path / "none.exe")
    assert not (tmp_path / "none.exe").exists()


def test_never_with_a_policy(archive: Path, tmp_path: Path) -> None:
    with jaxexp.Archive.open(archive) as opened, pytest.raises(jaxexp.ExportError, match="native code"):
        opened["double"].load(policy=jaxexp.Policy(), executables=tmp_path / "missing")
