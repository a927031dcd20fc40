"""`--header`: what servers get with every request of a command, and what nobody else sees of it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import jaxexp
from kit.served import serving
from kit.weighted import bound

pytest.importorskip("aiohttp")

TOKEN = "token-of-a-test"
HEADER = f"Authorization: Bearer {TOKEN}"


@pytest.fixture
def private(fleet: Path, folder: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a folder that is served only with the token."""
    model, _ = bound()
    (tmp_path / "served").mkdir()
    model.save(tmp_path / "served" / "model.jaxexp")
    with serving(fleet.read_bytes()) as server:
        server.token = TOKEN
        files = [folder / "scores.jaxexp", *(tmp_path / "served").iterdir()]
        server.others = {f"/{path.name}": path.read_bytes() for path in files}
        yield server.url.removesuffix("fleet.zip")
    fsspec.get_filesystem_class("http").clear_instance_cache()


def commands(url: str, folder: Path, out: Path) -> list[list[object]]:
    scores, local = f"{url}scores.jaxexp", folder / "scores.jaxexp"
    return [
        ["inspect", scores, f"{url}fleet.zip::b8"], ["view", scores, "-o", out / "page.html"],
        ["verify", scores, f"{url}fleet.zip", f"{url}model.jaxexp"], ["verify", "--workers", 2, f"{url}fleet.zip"],
        ["diff", scores, local], ["compat", scores], ["migrate", scores, out / "new.jaxexp"],
        ["pack", out / "a.zip", f"a={scores}", f"{url}fleet.zip::h"], ["ls", f"{url}fleet.zip"],
        ["unpack", f"{url}fleet.zip", "h", "-d", out],
    ]  # fmt: skip


Run = Callable[..., tuple[int, str, str]]


def test_every_command_sends_it(private: str, folder: Path, tmp_path: Path, run: Run) -> None:
    before = dict(os.environ), dict(fsspec.config.conf)
    (tmp_path / "headers").write_text(f"X-First: 1\n\n{HEADER}\n")
    for command in commands(private, folder, tmp_path):
        if "--workers" not in command:
            status, out, err = run(*command, "--header", "Authorization: Bearer wrong")
            assert status == (2 if command[0] == "diff" else 1), command
            assert "the server answers 401" in out + err, (command, out, err)
        status, out, err = run(*command, "--header", f"@{tmp_path / 'headers'}")
        assert (status, err) == (0, ""), command
        assert TOKEN not in out
    assert (dict(os.environ), dict(fsspec.config.conf)) == before
    assert TOKEN.encode() not in (tmp_path / "a.zip").read_bytes()
    assert list(jaxexp.Archive.open(tmp_path / "a.zip")) == ["a", "h"]


def test_where_it_comes_from(private: str, good: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = f"{private}scores.jaxexp"
    assert "1 of 1 artifact whole" in good("verify", scores, "--header", HEADER)
    monkeypatch.setattr(sys, "stdin", io.StringIO(HEADER + "\n"))
    assert "1 of 1 artifact whole" in good("verify", "--header", "@-", scores)
    # What fsspec is configured with stays, but for a header of the same name, however it is written.
    configured = {"headers": {"authorization": "Bearer wrong", "X-Mine": "1"}, "block_size": 1024}
    monkeypatch.setitem(fsspec.config.conf, "http", configured)
    assert "1 of 1 artifact whole" in good("verify", "--header", HEADER, scores)
    assert configured == {"headers": {"authorization": "Bearer wrong", "X-Mine": "1"}, "block_size": 1024}
    assert fsspec.config.conf["http"] == configured
    monkeypatch.setitem(fsspec.config.conf, "http", {"headers": {"Authorization": f"Bearer {TOKEN}"}})
    assert "1 of 1 artifact whole" in good("verify", "--header", "X-Other: 1", scores)


def test_no_message_has_it(private: str, tmp_path: Path, run: Run, refused: Any) -> None:
    (tmp_path / "empty").write_text("\n\n")
    (tmp_path / "wrong").write_text(f"X-First: 1\n{TOKEN}\n")
    (tmp_path / "bytes").write_bytes(b"X: \xff" + TOKEN.encode())
    for header, said in (
        (TOKEN, "--header is not 'NAME: VALUE', or @FILE with such lines"),
        (f"Bearer {TOKEN}: x", "--header is not 'NAME: VALUE'"),
        (f": {TOKEN}", "--header is not 'NAME: VALUE'"),
        (f"X: {TOKEN}\nY: 2", "--header has a character that no header can have"),
        (f"@{tmp_path / 'wrong'}", f"--header @{tmp_path / 'wrong'}: line 2 is not 'NAME: VALUE'"),
        (f"@{tmp_path / 'empty'}", "the file has no header"),
        (f"@{tmp_path / 'bytes'}", "the file is not UTF-8 text"),
        (f"@{tmp_path / 'missing'}", "No such file"),
    ):
        assert TOKEN not in refused(said, "verify", "--header", header, f"{private}scores.jaxexp", status=2)
    for url in (f"{private}missing", private.replace("127.0.0.1", "127.0.0.1:1/") + "x"):
        for more in ([], ["--traceback"]):
            status, out, err = run(*more, "verify", "--header", HEADER, url)
            assert status == (1 if url.endswith("missing") else 75)
            assert TOKEN not in out + err
    journal = tmp_path / "journal"
    assert run("verify", "--journal", journal, "--header", HEADER, f"{private}fleet.zip")[0] == 0
    assert TOKEN.encode() not in journal.read_bytes()
