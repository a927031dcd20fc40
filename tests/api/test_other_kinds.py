"""A file of one kind does not take the place of a file of another kind, by which something would be lost."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
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


def archive(path: Path) -> None:
    with jaxexp.Archive.create(path) as writer:
        writer.add("f", plain())


WRITERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "save": ("an artifact", lambda path: plain().save(path)),
    "save with weights": ("an artifact", lambda path: weighted().save(path, weights="z.safetensors")),
    "save with cases": ("an artifact", lambda path: plain().save(path, cases=[(X,)])),
    "Archive.create": ("an archive", archive),
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
    archive(place / "a.zip")
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
    archive(new / "f.jaxexp")
    before = (new / "f.jaxexp").read_bytes()
    (found,) = jaxexp.migrate_many([str(old)], into=new).values()
    assert isinstance(found, jaxexp.errors.ExportError)
    assert "is an archive, which an artifact does not replace" in str(found)
    assert (new / "f.jaxexp").read_bytes() == before
