"""Files behind URLs: folders have the same artifacts, and weights beside an artifact are verified with it."""

from __future__ import annotations

import contextlib
import functools
import http.server
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import jaxexp
from jaxexp._fleet.passes.many import places
from jaxexp._fleet.places import source
from jaxexp._fleet.places.folders import Folders
from jaxexp._weights.files import reading
from jaxexp.errors import ExportError, WeightsError
from kit.archive_files import make
from kit.archives import blob
from kit.flips import flipped
from kit.places import GOLDEN
from kit.served import running, serving
from kit.weighted import bound

Put = Callable[[str, bytes], str]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    model, _ = bound()
    model.save(tmp_path / "model.jaxexp")
    return {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.fixture
def put() -> Put:
    folder = f"memory://{secrets.token_hex(8)}"

    def write(name: str, data: bytes) -> str:
        with fsspec.open(f"{folder}/{name}", "wb") as file:
            file.write(data)
        return f"{folder}/{name}"

    return write


def test_they_are_fetched_in_pieces(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE", 1000)
    with serving(b"") as server:
        server.others = {f"/models/{name}": data for name, data in files.items()}
        url = server.url.replace("fleet.zip", "models/model.jaxexp")
        jaxexp.verify(url + "?token=mine")
        sizes = [size for _, size in server.requests if size > 1]  # the size of a file comes with a byte
        program, *pieces = sizes
        assert program == len(files["model.jaxexp"])
        assert sum(pieces) == len(files["model.safetensors"])
        assert max(pieces[2:]) == 1000, "after the length of the header, and the header"
        server.others["/models/model.safetensors"] = files["model.safetensors"][:1500]
        with pytest.raises(WeightsError, match=r"up to the end of the file|as its header says"):
            jaxexp.verify(url)
        del server.others["/models/model.safetensors"]
        with pytest.raises(WeightsError, match=r"a file that 'model.jaxexp' names, found none of this name"):
            jaxexp.verify(url)


def test_a_server_that_refuses_them_is_no_damage(files: dict[str, bytes]) -> None:
    with serving(b"") as server:
        server.others = {"/model.jaxexp": files["model.jaxexp"]}
        url = server.url.replace("fleet.zip", "model.jaxexp")
        refused = server.RequestHandlerClass.send_error

        def forbidden(self: Any, status: int) -> None:
            refused(self, 403 if status == 404 else status)

        server.RequestHandlerClass = type("Forbidding", (server.RequestHandlerClass,), {"send_error": forbidden})
        with pytest.raises(OSError, match=r"model.safetensors: the server answers 403") as error:
            jaxexp.verify(url)
        assert not isinstance(error.value, ExportError)


def test_a_journal_looks_at_weights_again(tmp_path: Path, files: dict[str, bytes], put: Put) -> None:
    put("model.safetensors", files["model.safetensors"])
    url = put("model.jaxexp", files["model.jaxexp"])
    journal = tmp_path / "verify.journal"
    assert jaxexp.verify_many([url], journal=journal) == {}
    put("model.safetensors", flipped(files["model.safetensors"], -1))
    assert [type(e) for e in jaxexp.verify_many([url], journal=journal).values()] == [WeightsError]


def test_the_url_of_a_file_beside() -> None:
    for url, expected in (
        ("http://h/models/a.jaxexp", "http://h/models/w%20%231.safetensors"),
        ("https://h/a%20b/a.jaxexp?token=x/y", "https://h/a%20b/w%20%231.safetensors?token=x/y"),
        ("simplecache::http://h/a.jaxexp", "simplecache::http://h/w%20%231.safetensors"),
        ("zip://models/a.jaxexp::/tmp/all.zip", "zip://models/w #1.safetensors::/tmp/all.zip"),
        ("zip://a.jaxexp::/tmp/all.zip", "zip://w #1.safetensors::/tmp/all.zip"),
        ("s3://bucket/models/a.jaxexp", "s3://bucket/models/w #1.safetensors"),
    ):
        assert source.beside(url, "w #1.safetensors") == expected


def test_a_name_that_would_be_another_url(tmp_path: Path, put: Put) -> None:
    """fsspec would look for the second part in the working folder."""
    bound()[0].save(tmp_path / "model.jaxexp", weights="aa::b.safetensors")
    jaxexp.verify(tmp_path / "model.jaxexp")
    url = put("model.jaxexp", (tmp_path / "model.jaxexp").read_bytes())
    with pytest.raises(WeightsError, match="expected a name without '::', which joins URLs, found 'aa::b"):
        jaxexp.verify(url)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Python's server: it lists folders, and ignores ranges."""

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(folder))
    with running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"{server.origin}/"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "team"
    (folder / "old").mkdir(parents=True)
    (folder / ".cache").mkdir()
    shutil.copy(GOLDEN / "jax-0.4.30" / "poly.bin", folder / "old" / "expired.bin")
    shutil.copy(GOLDEN / "jax-0.4.30" / "poly.bin", folder / "no_suffix")
    (folder / "new.jaxexp").write_bytes(blob())
    (folder / "cut.model").write_bytes(bytes(blob())[:100])
    (folder / "empty.bin").touch()
    make(folder / "fleet.zip", {"a": blob()})
    make(folder / "fleet.bak", {"a": blob()})
    with zipfile.ZipFile(folder / "other.zip", "w") as other:
        other.writestr("a", b"b")
    for name in ("README.md", "large.log", "weights.safetensors", ".hidden", ".cache/model.jaxexp"):
        (folder / name).write_bytes(b"no artifact, and long enough to be looked at" * (40_000 if name[0] == "l" else 1))
    return folder


def test_the_same_files_count(folder: Path) -> None:
    with served(folder.parent) as url:
        for options in ({}, {"recursive": False}, {"include": ("*.bin", "*.md", "f*.zip")}):
            here, behind = Folders(**options), Folders(**options)
            local = {place.inside: place.archive is not None for place in places([folder], "verify", here)}
            remote = {place.inside: place.archive is not None for place in places([f"{url}team/"], "verify", behind)}
            assert remote == local, options
            skipped = {file.removeprefix(f"{url}team/") for file in behind.skipped}
            assert skipped == {str(Path(file).relative_to(folder)) for file in here.skipped}, options


def test_nothing_is_missing_in_a_pass(folder: Path) -> None:
    for archive in ("fleet.zip", "fleet.bak"):  # to read them takes a server that knows ranges
        (folder / archive).unlink()
    with served(folder.parent) as url:
        found = {name.removeprefix(f"{url}team/"): one for name, one in jaxexp.compatibility_many([f"{url}team/"])}
        damaged = jaxexp.verify_many([f"{url}team/"])
    assert not isinstance(found["old/expired.bin"], Exception)
    assert found.keys() == {"new.jaxexp", "old/expired.bin", "no_suffix", "cut.model", "empty.bin"}
    assert {name.removeprefix(f"{url}team/") for name in damaged} == {"cut.model", "empty.bin"}


def test_a_file_that_cannot_be_looked_into_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send_head = _Quiet.send_head

    def refused(self: _Quiet):
        if self.command == "GET" and self.path.endswith("expired.bin"):
            return self.send_error(503)
        return send_head(self)

    monkeypatch.setattr(_Quiet, "send_head", refused)
    with served(folder) as url:
        assert "503" in str(jaxexp.verify_many([url])[f"{url}old/expired.bin"])


def test_a_folder_without_a_slash(folder: Path) -> None:
    with served(folder) as url:
        for name, is_explained in (("cut", True), ("cut?version=1.2", True), ("cut.jaxexp", False)):
            with pytest.raises(FileNotFoundError, match="does not find it") as error:
                jaxexp.verify(f"{url}{name}")
            assert ("if it is a folder, its URL ends in /" in str(error.value)) == is_explained
