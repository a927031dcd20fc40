"""What is not read, or not written, where it is: the error says what to do instead."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

import fsspec
import jax
import numpy as np
import pytest

import jaxexp
from kit.archives import blob
from kit.served import serving
from kit.weighted import bound


def test_a_program_behind_a_url_whose_weights_are_beside_it(tmp_path: Path) -> None:
    model, _ = bound()
    model.save(tmp_path / "model.jaxexp")
    url = f"memory://{secrets.token_hex(8)}/model.jaxexp"
    with fsspec.open(url, "wb") as file:
        file.write((tmp_path / "model.jaxexp").read_bytes())
    with pytest.raises(jaxexp.DeserializationError, match=r"weights beside it in 'model.safetensors': copy") as error:
        jaxexp.load(url)
    assert error.value.file == url
    assert jaxexp.inspect(url).weights, "which nobody needs to look at it"


@pytest.mark.parametrize("place", ["fleet.zip::model/v1", "memory://fleet/model.jaxexp"])
def test_many_are_loaded_from_files(place: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"Archive.load_all loads members") as error:
        jaxexp.load_many([place])
    assert error.value.filename == place
    (found,) = jaxexp.load_many([place], on_error="return")
    assert "load from a URL" in str(found)


def test_archives_are_not_written_to_urls() -> None:
    url = "http://127.0.0.1:1/fleet.zip"
    for write in (jaxexp.Archive.create, jaxexp.Archive.append, jaxexp.Archive.compact):
        with pytest.raises(jaxexp.ExportError, match=f"^{re.escape(url)} is a URL, from which archives are only read"):
            write(url)


def test_specialize_takes_shapes() -> None:
    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 3"), np.float32)
    exported = jaxexp.export(jax.jit(lambda x: x + 1))(x)
    with pytest.raises(jaxexp.ExportError, match=r"as in specialize\(jax.ShapeDtypeStruct.* not 4"):
        exported.specialize(b=4)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\n<!DOCTYPE html><html><title>Log in</title></html>", "what looks like an HTML page, as servers send it"),
        (b"<html>" + b" " * 100_000, "what looks like an HTML page"),
        (b'{"error": "access denied", "status": 403}', "what looks like text, as servers send it"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer of Git LFS"),
        (b"\x93NUMPY" + bytes(100), "what looks like NumPy's file of arrays"),
        (bytes(100), "something else"),
    ],
    ids=["page", "long", "text", "pointer", "arrays", "zeros"],
)
def test_what_is_there_in_place_of_an_archive(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "fleet.zip").write_bytes(data)
    with serving(data) as server:
        for place in (tmp_path / "fleet.zip", server.url):
            with pytest.raises(jaxexp.DeserializationError, match=f"expected an archive .*, found {said}"):
                jaxexp.Archive.open(place)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\n<!DOCTYPE html><html><title>Log in</title></html>", "an HTML page, as servers send it in place of a file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer of Git LFS: 'git lfs pull' gets"),
    ],
    ids=["page", "pointer"],
)
def test_what_is_there_in_place_of_an_artifact(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "model.jaxexp").write_bytes(data)
    with serving(b"") as server:
        server.others["/model.jaxexp"] = data
        for place in (tmp_path / "model.jaxexp", server.url.replace("fleet.zip", "model.jaxexp")):
            for read in (jaxexp.load, jaxexp.verify, jaxexp.inspect):
                with pytest.raises(jaxexp.DeserializationError, match=re.escape(said)):
                    read(place)


def test_a_pass_in_this_thread_opens_what_is_behind_a_url_once(tmp_path: Path) -> None:
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add("model", blob())
    with serving((tmp_path / "fleet.zip").read_bytes()) as server:
        assert jaxexp.verify_many([server.url]) == {}
        assert [method for method, _ in server.requests].count("HEAD") == 1
        with jaxexp.Archive.open(server.url) as archive:
            assert jaxexp.verify_many([archive]) == {}
        assert [name for name, _ in jaxexp.compatibility_many([archive])] == [f"{server.url}::model"]


def test_a_url_that_cannot_be_read_says_why_beside_what_can(tmp_path: Path) -> None:
    """Also where the size is asked for before anything is read."""
    good, gone = tmp_path / "good.jaxexp", "http://127.0.0.1:1/model.jaxexp"
    good.write_bytes(blob())
    assert {name: str(error) for name, error in jaxexp.verify_many([gone, good]).items()}.keys() == {gone}
    assert "there is no connection to the server" in str(jaxexp.verify_many([good, gone])[gone])
    found = dict(jaxexp.compatibility_many([gone, good]))
    assert isinstance(found[gone], OSError)
    assert not isinstance(found[str(good)], Exception)
