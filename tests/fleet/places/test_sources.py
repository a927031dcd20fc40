"""Whatever takes an artifact takes a path, a file object, a buffer, or a member of an archive."""

from __future__ import annotations

import io
import mmap
import os
import pathlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp

X = np.linspace(0, 1, 3, dtype=np.float32)
FUNCTIONS = {
    "load": lambda artifact: jaxexp.load(artifact).fun_name,
    "load with a policy": lambda artifact: jaxexp.load(artifact, policy=jaxexp.Policy(), verify=True).fun_name,
    "inspect": lambda artifact: jaxexp.inspect(artifact, check_modules=True).fun_name,
    "compatibility": lambda artifact: jaxexp.compatibility(artifact).fun_name,
    "migrate": lambda artifact: jaxexp.deserialize(jaxexp.migrate(artifact)).fun_name,
    "verify": lambda artifact: jaxexp.verify(artifact) or "sine",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One function: in a file, and in an archive."""
    folder = tmp_path_factory.mktemp("sources")

    def sine(x):
        return jnp.sin(x)

    exported = jaxexp.export(jax.jit(sine))(X)
    exported.save(folder / "sine.jaxexp", vjp_order=1)
    with jaxexp.Archive.create(folder / "fleet.zip") as archive:
        archive.add("inner/sine", exported, vjp_order=1, metadata={"run": 7})
    return folder


class Pipe(io.RawIOBase):
    """Gives a few bytes at a time, and cannot go back."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part, self._left = self._left[: min(len(buffer), 100)], self._left[min(len(buffer), 100) :]
        buffer[: len(part)] = part
        return len(part)


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


FORMS = {
    "path": lambda folder: folder / "sine.jaxexp",
    "str": lambda folder: str(folder / "sine.jaxexp"),
    "member": lambda folder: f"{folder / 'fleet.zip'}::inner/sine",
    "path of a member": lambda folder: folder / "fleet.zip::inner/sine",
    "handle": lambda folder: jaxexp.Archive.open(folder / "fleet.zip")["inner/sine"],
    "bytes": lambda folder: (folder / "sine.jaxexp").read_bytes(),
    "bytearray": lambda folder: bytearray((folder / "sine.jaxexp").read_bytes()),
    "memoryview": lambda folder: memoryview((folder / "sine.jaxexp").read_bytes()),
    "mmap": lambda folder: mapped(folder / "sine.jaxexp"),
    "array": lambda folder: np.frombuffer((folder / "sine.jaxexp").read_bytes(), np.uint8),
    "file in memory": lambda folder: io.BytesIO((folder / "sine.jaxexp").read_bytes()),
    "pipe": lambda folder: Pipe((folder / "sine.jaxexp").read_bytes()),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_takes_every_form(folder, function: str, form: str) -> None:
    assert FUNCTIONS[function](FORMS[form](folder)) == "sine"


@pytest.mark.parametrize("buffering", [-1, 0])
def test_open_files(folder, buffering: int) -> None:
    for read in FUNCTIONS.values():
        with open(folder / "sine.jaxexp", "rb", buffering=buffering) as file:
            assert read(file) == "sine"


def test_urls(folder) -> None:
    pytest.importorskip("fsspec")
    for url in ((folder / "sine.jaxexp").as_uri(), (folder / "fleet.zip").as_uri() + "::inner/sine"):
        for read in FUNCTIONS.values():
            assert read(url) == "sine"


def test_urls_of_files_inside_of_others(folder, tmp_path) -> None:
    """fsspec chains them by what also stands before the name of a member."""
    pytest.importorskip("fsspec")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as zipped:
        for name in ("sine.jaxexp", "fleet.zip"):
            zipped.write(folder / name, name)
        zipped.write(folder / "sine.jaxexp", "in/b8")
    for where in (tmp_path / "all.zip", (tmp_path / "all.zip").as_uri()):
        urls = [f"zip://{name}::{where}" for name in ("sine.jaxexp", "in/b8")]
        for read in FUNCTIONS.values():
            assert {read(url) for url in [*urls, f"zip://fleet.zip::{where}::inner/sine"]} == {"sine"}
        assert jaxexp.verify_many([*urls, f"zip://fleet.zip::{where}"]) == {}
        new = tmp_path / f"new{len(str(where))}"
        assert jaxexp.migrate_many([*urls, f"zip://fleet.zip::{where}::inner/sine"], new) == {}
        assert {path.relative_to(new).as_posix() for path in new.rglob("*.jaxexp")} == {
            "sine.jaxexp", "b8.jaxexp", "fleet.zip/inner/sine.jaxexp",
        }  # fmt: skip


def test_a_member_is_the_function_of_its_handle(folder) -> None:
    loaded = jaxexp.load(f"{folder / 'fleet.zip'}::inner/sine")
    assert loaded == jaxexp.load(folder / "sine.jaxexp")
    assert loaded.metadata == {"run": 7}
    np.testing.assert_array_equal(loaded.call(X), jax.jit(jnp.sin)(X))  # the archive is closed, and its file is not
    handle = jaxexp.Archive.open(folder / "fleet.zip")["inner/sine"]
    assert handle.label == f"{folder / 'fleet.zip'}::inner/sine"
    assert jaxexp.load(handle) is handle.load()


def test_a_file_object_is_read_from_where_it_is(folder) -> None:
    blob = (folder / "sine.jaxexp").read_bytes()
    file = io.BytesIO(b"a line before\n" + blob)
    file.readline()
    assert jaxexp.load(file).fun_name == "sine"
    assert file.read() == b""


def test_a_policy_limits_what_is_read(folder) -> None:
    class Endless:
        size = 0

        def read(self, size: int = -1) -> bytes:
            assert size >= 0, "everything was asked for"
            self.size += size
            return bytes(size)

    endless = Endless()
    with pytest.raises(jaxexp.PolicyError, match="max_artifact_bytes"):
        jaxexp.load(endless, policy=jaxexp.Policy(max_artifact_bytes=1000))
    assert endless.size < 1 << 22
    policy = jaxexp.Policy(max_artifact_bytes=10)
    for form in FORMS:
        with pytest.raises(jaxexp.PolicyError, match="max_artifact_bytes"):
            jaxexp.load(FORMS[form](folder), policy=policy)


def test_a_file_with_colons_in_its_name_is_a_file(folder, tmp_path) -> None:
    odd = tmp_path / "a::b"
    odd.write_bytes((folder / "sine.jaxexp").read_bytes())
    for read in FUNCTIONS.values():
        assert read(odd) == "sine"


def test_errors_name_what_was_read(folder, tmp_path) -> None:
    blob = (folder / "sine.jaxexp").read_bytes()
    damaged = tmp_path / "damaged.jaxexp"
    damaged.write_bytes(blob[:-9])
    for read in FUNCTIONS.values():
        with pytest.raises(jaxexp.DeserializationError, match=r"damaged\.jaxexp'") as error:
            read(damaged)
        assert error.value.file == str(damaged)
        with damaged.open("rb") as file, pytest.raises(jaxexp.DeserializationError) as error:
            read(file)
        assert error.value.file == str(damaged)
        with pytest.raises(jaxexp.DeserializationError) as error:
            read(blob[:-9])
        assert error.value.file is None


def test_an_archive_is_no_artifact(folder) -> None:
    """The error says how to name one of its members."""
    for read in FUNCTIONS.values():
        with pytest.raises(
            jaxexp.DeserializationError, match=r"an archive of artifacts: name one of them, as in .*::NAME"
        ):
            read(folder / "fleet.zip")


@pytest.mark.skipif(sys.platform == "win32", reason="it refuses access to folders")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_folder_is_no_artifact(folder, function: str) -> None:
    with pytest.raises(IsADirectoryError, match="Name a file in it; load_many, verify_many and others take many") as e:
        FUNCTIONS[function](folder)
    assert e.value.filename == str(folder)


def test_what_is_missing(folder) -> None:
    for read in FUNCTIONS.values():
        with pytest.raises(KeyError, match=r"'inner/s\*' is not in Archive"):
            read(f"{folder / 'fleet.zip'}::inner/s*")  # one artifact has one name: patterns are for the command line
        for missing in (folder / "missing", f"{folder / 'missing.zip'}::inner/sine"):
            with pytest.raises(FileNotFoundError, match="missing"):
                read(missing)


@pytest.mark.parametrize("function", ["load", "inspect", "compatibility", "migrate", "verify"])
def test_what_is_no_artifact(folder, function: str) -> None:
    for wrong in (3, None, object(), ["a"], jaxexp.Archive.open(folder / "fleet.zip")):
        with pytest.raises(
            TypeError, match=f"{function} takes an artifact as a path, as 'archive.zip::member'"
        ) as error:
            getattr(jaxexp, function)(wrong)
        assert isinstance(error.value, jaxexp.ExportError)
    with open(folder / "sine.jaxexp", encoding="latin-1") as text, pytest.raises(TypeError, match="a text file"):
        getattr(jaxexp, function)(text)


def test_verify_reads_everything(folder, tmp_path) -> None:
    blob = (folder / "sine.jaxexp").read_bytes()
    target = tmp_path / "f"
    for at in range(0, len(blob), 41):
        target.write_bytes(blob[:at] + bytes([blob[at] ^ 4]) + blob[at + 1 :])
        with pytest.raises(jaxexp.DeserializationError):
            jaxexp.verify(target)


def test_verify_reads_the_weights_beside(tmp_path) -> None:
    weights = {"w": np.ones((64, 64), np.float32)}
    path = tmp_path / "model.jaxexp"
    jaxexp.export(jax.jit(lambda w, x: x @ w["w"]))(weights, X[:1].repeat(64)).bind(weights).save(path)
    jaxexp.verify(path)
    beside = path.with_suffix(".safetensors")
    data = bytearray(beside.read_bytes())
    data[-1] ^= 1
    beside.write_bytes(data)
    with pytest.raises(jaxexp.DeserializationError, match=r"model\.safetensors"):
        jaxexp.verify(path)


def test_weights_in_an_archive(tmp_path) -> None:
    weights = {"w": np.eye(3, dtype=np.float32)}
    function = jaxexp.export(jax.jit(lambda w, x: x @ w["w"]))(weights, X).bind(weights)
    path = tmp_path / "fleet.zip"
    with jaxexp.Archive.create(path) as archive:
        archive.add("model", function)
    np.testing.assert_array_equal(jaxexp.load(f"{path}::model", verify=True).call(X), X)
    assert [weight.name for weight in jaxexp.inspect(f"{path}::model").weights] == ["w"]
    jaxexp.verify(f"{path}::model")
    data = bytearray(path.read_bytes())
    data[data.index(weights["w"].tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(jaxexp.DeserializationError, match="tensor 'w': expected bytes with the digest"):
        jaxexp.verify(f"{path}::model")


def test_a_member_whose_bytes_are_others(folder, tmp_path) -> None:
    """Its own digests may be right: those of the archive are compared, too."""
    archive = tmp_path / "fleet.zip"
    blob = bytearray((folder / "fleet.zip").read_bytes())
    at = blob.index(b"sine", 200)
    blob[at : at + 4] = b"line"
    archive.write_bytes(blob)
    with pytest.raises(jaxexp.DeserializationError, match=r"fleet.zip::inner/sine"):
        jaxexp.verify(f"{archive}::inner/sine")


def test_no_jax_for_looks(folder, subprocess_env) -> None:
    import subprocess
    import sys

    code = (
        "import sys, jaxexp; [jaxexp.inspect(a) and jaxexp.verify(a) for a in sys.argv[1:]]; "
        "assert not {'jax', 'numpy'} & set(sys.modules)"
    )
    forms = [str(folder / "sine.jaxexp"), f"{folder / 'fleet.zip'}::inner/sine"]
    assert subprocess.run([sys.executable, "-c", code, *forms], env=subprocess_env(), check=False).returncode == 0


def test_paths_are_taken_as_the_system_has_them(folder, tmp_path) -> None:
    (tmp_path / "café.jaxexp").write_bytes((folder / "sine.jaxexp").read_bytes())

    class Somewhere(os.PathLike):
        def __fspath__(self) -> str:
            return str(tmp_path / "café.jaxexp")

    assert jaxexp.load(Somewhere()).fun_name == jaxexp.load(pathlib.PurePath(Somewhere())).fun_name == "sine"
