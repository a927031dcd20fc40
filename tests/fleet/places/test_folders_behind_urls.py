"""A folder behind a URL has the same artifacts and archives as the folder itself."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxexp
from jaxexp._cli import start
from jaxexp._fleet.passes.folders import Folders
from jaxexp._fleet.passes.given import places
from kit.archive_files import make
from kit.archives import blob
from kit.places import GOLDEN


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Python's server: it lists folders, and ignores ranges."""

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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


@pytest.mark.parametrize(
    "options",
    [{}, {"recursive": False}, {"include": ("*.bin", "*.md", "f*.zip")}],
    ids=["all", "flat", "included"],
)
def test_the_same_files_count(options: dict, folder: Path) -> None:
    here, behind = Folders(**options), Folders(**options)
    local = {place.inside: place.archive is not None for place in places([folder], "verify", here)}
    with served(folder.parent) as url:
        remote = {place.inside: place.archive is not None for place in places([f"{url}team/"], "verify", behind)}
        skipped = {file.removeprefix(f"{url}team/") for file in behind.skipped}
    assert remote == local
    assert skipped == {str(Path(file).relative_to(folder)) for file in here.skipped}


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


def test_damage_behind_a_url_is_described_as_on_this_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [folder / "cut.model", folder / "empty.bin"]
    assert start.main(["verify", "--json", *map(str, files)]) == 1
    here = capsys.readouterr().out
    with served(folder) as url:
        assert start.main(["verify", "--json", *(url + file.name for file in files)]) == 1
        assert capsys.readouterr().out == here.replace(f"{folder}/", url)


def test_a_folder_without_a_slash(folder: Path) -> None:
    with served(folder) as url:
        for name, is_explained in (("cut", True), ("cut?version=1.2", True), ("cut.jaxexp", False)):
            with pytest.raises(FileNotFoundError, match="does not find it") as error:
                jaxexp.verify(f"{url}{name}")
            assert ("if it is a folder, its URL ends in /" in str(error.value)) == is_explained
