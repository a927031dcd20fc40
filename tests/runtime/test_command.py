"""jaxexp-run: files of NumPy, options, and what it says when something is wrong."""

from __future__ import annotations

import io
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from kit import runtime

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
    pytest.mark.usefixtures("plugin"),
]


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """{"x": float32[2, 3]}, float32[3] -> {"sum": float32[2, 3]}"""
    specs = ({"x": jax.ShapeDtypeStruct((2, 3), np.float32)}, jax.ShapeDtypeStruct((3,), np.float32))
    exported = jaxexp.export(jax.jit(lambda tree, b: {"sum": tree["x"] + b}))(*specs)
    path = tmp_path / "f.jaxexp"
    path.write_bytes(exported.serialize(vjp_order=1, compatibility=runtime.READER))
    return path


X = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([10, 20, 30], np.float32)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "b.npy", B)
    return tmp_path / "x.npy", tmp_path / "b.npy"


def result(path: Path) -> Any:
    if path.suffix == ".npy":
        return np.load(path)
    with np.load(path) as file:
        return dict(file)


def succeeds(*arguments: object) -> str:
    done = runtime.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fails(*arguments: object, status: int = 1) -> str:
    done = runtime.run(*arguments)
    assert done.returncode == status
    assert done.stderr.startswith("jaxexp-run: ")
    return done.stderr


def test_ways_to_give_arguments(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    x, b = files
    np.savez(tmp_path / "positions.npz", X, B)
    np.savez(tmp_path / "paths.npz", **{"args[1]": B, "args[0]['x']": X})
    for given in (
        (x, b),
        (tmp_path / "positions.npz",),
        (tmp_path / "paths.npz",),
        (x, "--argument", f"args[1]={b}"),
        ("--argument", f"args[1]={b}", "--argument", f"args[0]['x']={x}"),
    ):
        succeeds(artifact, *given, "--out", tmp_path / "y.npy")
        np.testing.assert_array_equal(result(tmp_path / "y.npy"), X + B)
    succeeds(artifact, x, b, "--out", tmp_path / "y.npz")
    assert result(tmp_path / "y.npz").keys() == {"result['sum']"}
    assert succeeds(artifact, x, b) == "result['sum']: float32[2, 3]\n"


def test_forms_of_files(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    """Fortran's order, and later versions of the head."""
    x, b = files
    np.save(x, np.asfortranarray(X))
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(b, "wb") as file:
            np.lib.format.write_array(file, B, version=version)
        succeeds(artifact, x, b, "--out", tmp_path / "y.npy")
        np.testing.assert_array_equal(result(tmp_path / "y.npy"), X + B)


def test_files_that_are_refused(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    x, b = files
    good = x.read_bytes()
    for bad, message in {
        b"": "it is no .npy file",
        b"nothing at all": "it is no .npy file",
        good[:-1]: "it ends before its last number",
        good.replace(b"<f4", b">f4"): "its dtype is '>f4', where a little-endian number is expected",
        good.replace(b"<f4", b"|O8"): "its dtype is '|O8'",
        good.replace(b"(2, 3)", b"(2, x)"): "its head is not one that NumPy writes",
        good.replace(b"(2, 3)", b"(9, 9)"): "it ends before its last number",
        good.replace(b"(2, 3)", b"(3, 2)"): r"args\[0\]\['x'\] is float32\[2, 3\], and not float32\[3, 2\]",
        good[:8] + b"\xff\xff" + good[10:]: "its head is damaged, or newer",
    }.items():
        x.write_bytes(bad)
        assert re.search(message, fails(artifact, x, b)), bad[:80]
    np.savez_compressed(tmp_path / "c.npz", X, B)
    assert "it is compressed: save it with np.savez" in fails(artifact, tmp_path / "c.npz")
    (tmp_path / "c.npz").write_bytes(b"PK")
    assert "it is no .npz file" in fails(artifact, tmp_path / "c.npz")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("readme.txt", "text")
    (tmp_path / "c.npz").write_bytes(buffer.getvalue())
    assert "its member 'readme.txt' is no array" in fails(artifact, tmp_path / "c.npz")


def test_arguments_that_do_not_fit(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    x, b = files
    assert "no file gives args[1], float32[3]" in fails(artifact, x)
    assert "takes 2 arguments" in fails(artifact, x, b, b)
    assert "gives args[0]['x'] a second time" in fails(artifact, x, "--argument", f"args[0]['x']={x}")
    assert "has no argument args[2]" in fails(artifact, x, "--argument", f"args[2]={x}")
    np.savez(tmp_path / "in.npz", X, B, X)
    assert "'arr_2' is one more" in fails(artifact, tmp_path / "in.npz")
    np.savez(tmp_path / "in.npz", arr_0=X, arr_1x=B)
    assert "'arr_1x' names no argument" in fails(artifact, tmp_path / "in.npz")
    assert "No such file" in fails(artifact, tmp_path / "none.npy", b)
    assert "No such file" in fails(artifact, x, b, "--out", tmp_path / "none" / "y.npy")


def test_options(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    said = succeeds(artifact, *files, "--repeat", 3)
    assert re.search(
        r"compiled in [\d.]+ ms\n.*first call: [\d.]+ ms\n3 calls: median [\d.]+ ms, fastest", said, re.DOTALL
    )
    np.save(tmp_path / "ct.npy", np.ones_like(X))
    succeeds(artifact, *files, tmp_path / "ct.npy", "--vjp", 1, "--out", tmp_path / "y.npz")
    found = result(tmp_path / "y.npz")
    np.testing.assert_array_equal(found["result[1]"], [2, 2, 2])
    assert "it has 1 VJPs, and not 2" in fails(artifact, *files, "--vjp", 2)
    assert "there are 2 results" in fails(
        artifact, *files, tmp_path / "ct.npy", "--vjp", 1, "--out", tmp_path / "y.npy"
    )
    assert "different numbers below 1, and not [1]" in fails(artifact, *files, "--device", 1)
    for wrong in (["--nothing", 1], ["--repeat", "x"], ["--out", "y.txt"], ["--argument", "x"], ["--vjp"]):
        assert "usage: jaxexp-run" in fails(artifact, *wrong, status=2)


def test_archives(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    with jaxexp.Archive.create(tmp_path / "all.zip") as archive:
        archive.add("add/2", artifact.read_bytes())
    succeeds(tmp_path / "all.zip", "--member", "add/2", *files, "--out", tmp_path / "y.npy")
    np.testing.assert_array_equal(result(tmp_path / "y.npy"), X + B)
    assert "there is no member 'add/3' in the archive" in fails(tmp_path / "all.zip", "--member", "add/3", *files)


def test_inspect_needs_no_plugin(artifact: Path) -> None:
    done = subprocess.run([runtime.RUN, "--inspect", artifact], capture_output=True, text=True, check=True)
    inspection = jaxexp.inspect(artifact)
    for value in (*inspection.arguments, *inspection.results):
        assert f"  {value.path}: {value.dtype}[{', '.join(map(str, value.shape))}]\n" in done.stdout
    assert "VJPs: 1\n" in done.stdout
    assert "custom calls" not in done.stdout


def test_a_module_that_lies_about_itself_is_refused(artifact: Path, files: tuple[Path, Path]) -> None:
    blob = bytearray(artifact.read_bytes())
    blob[bytes(blob).index(b"StableHLO_v")] ^= 1
    artifact.write_bytes(blob)
    assert "at mlir_module_serialized" in fails(artifact, *files)
