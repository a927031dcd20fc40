"""Members of an archive whose code is in a file."""

from __future__ import annotations

import io
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxexp
from kit import weighted
from kit.weighted import bound, close

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


def test_members_with_weights(tmp_path: Path) -> None:
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as writer:
        writer.add("model", bound()[0])
    with jaxexp.Archive.open(tmp_path / "fleet.zip") as opened:
        opened.precompile(into=tmp_path / "fleet.exe")
        model = opened["model"].load(executables=tmp_path / "fleet.exe")
        close(model.call(weighted.X), bound()[0].call(weighted.X))
        assert [one.used for one in model.executables] == [True]


def test_some_members_only(archive: Path, tmp_path: Path) -> None:
    with jaxexp.Archive.open(archive) as opened:
        assert list(opened.precompile(["triple"], into=tmp_path / "one.exe")) == ["triple"]
        with pytest.raises(KeyError):
            opened.precompile(["missing"], into=tmp_path / "none.exe")
    assert not (tmp_path / "none.exe").exists()


def test_members_with_symbolic_dimensions(archive: Path, tmp_path: Path) -> None:
    (batch,) = jaxexp.symbolic_shape("batch")
    with jaxexp.Archive.append(archive) as writer:
        writer.add("any", jaxexp.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((batch, 2), np.float32)))
    exe = tmp_path / "fleet.exe"
    with jaxexp.Archive.open(archive) as opened:
        with pytest.raises(jaxexp.ExportError, match=r"fleet\.zip::any'.*symbolic dimensions batch.*\{'any': args\}"):
            opened.precompile(into=exe)
        sizes = {"any": (jax.ShapeDtypeStruct((3, 2), np.float32),), "double": None}
        assert list(opened.precompile(sizes, into=exe)) == ["any", "double"]
        function = opened["any"].load(executables=exe)
        np.testing.assert_array_equal(function.call(np.ones((3, 2), np.float32)), np.full((3, 2), 2))
        assert sum(one.used for one in function.executables) == 1


def test_never_with_a_policy(archive: Path, tmp_path: Path) -> None:
    with jaxexp.Archive.open(archive) as opened, pytest.raises(jaxexp.ExportError, match="native code"):
        opened["double"].load(policy=jaxexp.Policy(), executables=tmp_path / "missing")
    with pytest.raises(jaxexp.ExportError, match=r"fleet\.zip::double'.*native code"):
        jaxexp.load(f"{archive}::double", policy=jaxexp.Policy(), executables=tmp_path / "missing")
    with pytest.raises(jaxexp.ExportError, match=r"^a policy .* native code"):
        jaxexp.load(jaxexp.Archive.open(archive)["double"].read(), policy=jaxexp.Policy(), executables="missing")


def test_wherever_the_artifact_is(archive: Path, tmp_path: Path) -> None:
    exe = tmp_path / "fleet.exe"
    with jaxexp.Archive.open(archive) as opened:
        opened.precompile(["double"], into=exe)
        handle = opened["double"]
        for artifact in (f"{archive}::double", handle, handle.read(), io.BytesIO(handle.read())):
            function = jaxexp.load(artifact, executables=exe)
            np.testing.assert_array_equal(function.call(X), 2 * X)
            assert [one.used for one in function.executables] == [True]
