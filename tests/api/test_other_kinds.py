"""What writers leave as it was: files of other kinds, by which something would be lost, and all that a full disk
interrupts.
"""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp

pytestmark = pytest.mark.jax
X = np.ones((1, 4), np.float32)
W = {f"w{i}": np.full((4, 4), i, np.float32) for i in range(2)}


def plain() -> jaxexp.Exported:
    return jaxexp.export(jax.jit(lambda x: x * 2))(X)


def weighted() -> jaxexp.Exported:
    return jaxexp.export(jax.jit(lambda x: x @ jnp.asarray(W["w0"]) @ jnp.asarray(W["w1"])), weights=W)(X)


def archived(function: jaxexp.Exported, path: Path) -> None:
    with jaxexp.Archive.create(path) as archive:
        archive.add("f", function)


WRITERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "save": ("an artifact", lambda path: plain().save(path)),
    "save with weights": ("an artifact", lambda path: weighted().save(path, weights="z.safetensors")),
    "save with cases": ("an artifact", lambda path: plain().save(path, cases=[(X,)])),
    "Archive.create": ("an archive", lambda path: archived(plain(), path)),
}
# By the names of files.
KINDS = {
    "a.jaxexp": "an artifact", "a.zip": "an archive", "empty.zip": "an archive", "a.exe": "a file of executables",
    "a.safetensors": "a file of weights", "b.safetensors.index.json": "an index of weights",
    "other.safetensors.index.json": "an index of weights", "a.sig": "a signature", "pretty.sig": "a signature",
    "a.npz": "a .npz file", "a.npy": "a .npy file", "other.zip": "a ZIP file of another program",
    "empty": "", "text": "", "text.json": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    place = tmp_path_factory.mktemp("kinds")
    weighted().save(place / "a.jaxexp")
    weighted().save(place / "b.jaxexp", max_weights_file_size=64)
    archived(plain(), place / "a.zip")
    with jaxexp.Archive.create(place / "empty.zip"):
        pass
    plain().precompile(into=place / "a.exe")
    np.savez(place / "a.npz", **{"result['a name that is longer than the first bytes of a file']": X})
    np.save(place / "a.npy", X)
    with zipfile.ZipFile(place / "other.zip", "w") as other:
        other.writestr("train.csv", "1,2,3\n")
    signature = '{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{}}'
    (place / "a.sig").write_text(signature)
    (place / "pretty.sig").write_text(signature.replace('{"', '{\n  "').replace('":', '": '))
    (place / "other.safetensors.index.json").write_text('{"metadata": {"total_size": 8}, "weight_map": {}}')
    (place / "empty").touch()
    (place / "text").write_text("some text")
    (place / "text.json").write_text('{"mediaType": "text", "metadata": {}}')
    return {path.name: path.read_bytes() for path in place.iterdir()}


@pytest.mark.parametrize("writer", WRITERS)
def test_another_kind_stays(writer: str, files: dict[str, bytes], tmp_path: Path) -> None:
    kind, write = WRITERS[writer]
    for name, there in KINDS.items():
        folder = tmp_path / f"in-{name}"
        folder.mkdir()
        path = folder / name
        path.write_bytes(files[name])
        if there in ("", kind):
            write(path)
            assert path.read_bytes() != files[name]
            continue
        with pytest.raises(jaxexp.errors.ExportError) as caught:
            write(path)
        said = str(caught.value)
        assert f"{str(path)!r} is {there}" in said
        assert f"which {kind} does not replace: choose another path, or remove that file first" in said
        assert {one.name: one.read_bytes() for one in folder.iterdir()} == {name: files[name]}


def test_the_weights_of_another_artifact_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weighted().save("m.jaxexp")
    (tmp_path / "link").symlink_to("m.safetensors")
    for path in ("m.safetensors", "link"):
        for _, write in WRITERS.values():
            with pytest.raises(jaxexp.errors.ExportError):
                write(Path(path))
    assert jaxexp.load("m.jaxexp", verify=True).call(X).shape == X.shape


def test_migrated_artifacts_replace_no_archive(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    plain().save(old / "f.jaxexp")
    archived(plain(), new / "f.jaxexp")
    before = (new / "f.jaxexp").read_bytes()
    (found,) = jaxexp.migrate_many([str(old)], into=new).values()
    assert isinstance(found, jaxexp.errors.ExportError)
    assert "is an archive, which an artifact does not replace" in str(found)
    assert (new / "f.jaxexp").read_bytes() == before


LARGE = {"w": np.ones((64, 64), np.float32)}


@pytest.fixture(scope="module")
def large() -> jaxexp.Exported:
    return jaxexp.export(jax.jit(lambda x: x @ jnp.asarray(LARGE["w"])), weights=LARGE)(np.ones((1, 64), np.float32))


@pytest.fixture
def small_files() -> Iterator[None]:
    """While files may have no more than some bytes. The error is another one than on a full disk, at the same place."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


# Each with the name of the file that cannot be written.
ON_A_FULL_DISK: dict[str, tuple[Callable[[jaxexp.Exported, Path], Any], str]] = {
    "save": (lambda function, path: function.unbound.save(path), "f.jaxexp"),
    "save with weights": (lambda function, path: function.save(path), "f.safetensors"),
    "Archive.create": (archived, "f.jaxexp"),
    "precompile": (lambda function, path: function.precompile(into=path), "f.jaxexp"),
}


@pytest.mark.parametrize("writer", ON_A_FULL_DISK)
def test_no_space(writer: str, large: jaxexp.Exported, tmp_path: Path, small_files: None) -> None:
    write, named = ON_A_FULL_DISK[writer]
    with pytest.raises(OSError) as caught:
        write(large, tmp_path / "f.jaxexp")
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / named))
    assert not list(tmp_path.iterdir())


def test_no_space_behind_an_archive(large: jaxexp.Exported, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "f.zip"
    archived(large.unbound, path)
    before = path.read_bytes()
    request.getfixturevalue("small_files")
    with pytest.raises(OSError) as caught, jaxexp.Archive.append(path) as archive:
        archive.add("g", large)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("writer", ["save", "save with weights", "Archive.create"])
def test_a_folder_that_is_read_only(
    writer: str, large: jaxexp.Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Any, *_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    write, named = ON_A_FULL_DISK[writer]
    monkeypatch.setattr("jaxexp._kernel.io.files.Written", refused)
    monkeypatch.setattr(os, "unlink", refused)  # as such a file system refuses also what is not there
    with pytest.raises(OSError) as caught:
        write(large, tmp_path / "f.jaxexp")
    assert (caught.value.errno, caught.value.filename) == (errno.EROFS, str(tmp_path / named))
