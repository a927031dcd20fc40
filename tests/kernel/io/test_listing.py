"""Folders on HTTP servers, whose pages name whatever the server likes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxexp._kernel.io import listing
from kit.served import raw

pytest.importorskip("aiohttp")
pytestmark = pytest.mark.once(reason="nothing here is about JAX")


def pages(page_of: Callable[[str], str | None], kind: str = "text/html") -> Callable[[socket.socket, bytes], object]:
    """Answers for `raw` with a page for each path."""

    def answer(connection: socket.socket, head: bytes) -> None:
        page = page_of(head.split()[1].decode())
        status = "404 Not Found" if page is None else "200 OK"
        body = (page or "").encode()
        said = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(said.encode() + body)

    return answer


def link(place: str) -> str:
    return f'<li><a class="x" href="{place}">name</a>'


def found(
    page_of: Callable[[str], str | None], recursive: bool = True, before: str = ""
) -> tuple[list[str], list[str]]:
    """The files that a server lists, and the paths that it was asked for."""
    with raw(pages(page_of)) as server:
        url = f"{before}{server.origin}/models/"
        files = [file.removeprefix(url) for file, described in listing.files_in(url, recursive) if described is None]
        return files, [head.split()[1].decode() for head in server.requests]


def test_folders_inside_are_read_once() -> None:
    tree = {
        "/models/": link("a/")
        + link("a/b/")
        + link("one%20file.bin")
        + link("one%20file.bin")
        + link("/models/two?v=1&amp;w=2"),
        "/models/a/": link("b/") + link("gone/") + link("./three") + link("../"),
        "/models/a/b/": "<A HREF=four>" + "<a href='five'>" + link(".") + link("?C=N;O=D"),
    }
    files = ["a/b/five", "a/b/four", "a/three", "one%20file.bin", "two?v=1&w=2"]
    assert found(tree.get) == (files, ["/models/", "/models/a/", "/models/a/b/", "/models/a/gone/"])
    assert found(tree.get, recursive=False) == (files[3:], ["/models/"])


@pytest.mark.parametrize("before", ["simplecache::", "filecache::"])
def test_also_behind_a_cache(before: str) -> None:
    tree = {"/models/": link("a/"), "/models/a/": link("one")}
    assert found(tree.get, before=before) == (["a/one"], ["/models/", "/models/a/"])


OUTSIDE = (
    "https://127.0.0.1:{port}/models/a/ http://localhost:{port}/models/a/ http://127.0.0.1:1/models/a/ "
    "//127.0.0.2:{port}/models/a/ ftp://127.0.0.1:{port}/models/a/ http://[/ http://127.0.0.1:x/models/a/ "
    "/other/ ../other/ /models / %2e%2e/other/ a/%2E./ mailto:a@b.example file:///models/a/"
).split()


def test_only_what_is_below_the_folder_is_in_it() -> None:
    """A link may not choose the server, or the scheme, that the user's headers go to."""
    asked: list[str] = []

    def page_of(path: str) -> str:
        asked.append(path)
        here = f"http://127.0.0.1:{server.server_address[1]}/models/one"
        return "".join(link(place.format(port=server.server_address[1])) for place in OUTSIDE) + link(here)

    with raw(pages(page_of)) as server:
        url = f"{server.origin}/models/"
        assert [file for file, _ in listing.files_in(url)] == [f"{url}one"]
    assert asked == ["/models/"]


@pytest.mark.parametrize(
    ("page_of", "what"),
    [
        (lambda path: link("deeper/"), "32 levels of folders"),
        (lambda path: "".join(link(f"{i}/") for i in range(30)), "20 folders"),
        (lambda path: "".join(link(str(i)) for i in range(60)), "50 files"),
        (lambda path: "x" * 100_001, "100,000 bytes of pages"),
        (lambda path: "x" * 60_000 + (link("a/") if path == "/models/" else ""), "100,000 bytes of pages"),
    ],
    ids=["levels", "folders", "files", "page", "pages"],
)
def test_a_listing_ends(page_of: Callable[[str], str], what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in {"_MOST_FOLDERS": 20, "_MOST_FILES": 50, "_MOST_BYTES": 100_000}.items():
        if what.endswith(("folders", "files", "pages")) and "levels" not in what:
            monkeypatch.setattr(listing, name, most)
    with pytest.raises(OSError, match=f"/models/: the server lists more than {what} in this folder"):
        found(page_of)


def test_what_is_no_page_has_no_files() -> None:
    with raw(pages(lambda path: link("one"), "application/json")) as server:
        assert list(listing.files_in(f"{server.origin}/models/")) == []


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match="the server does not find it"):
        found(lambda path: None)


def test_links_are_found_in_linear_time() -> None:
    for text in (
        "<a " * 400_000,
        "<a href" * 200_000,
        '<a href="' * 150_000,
        "<a href= " * 150_000,
        "<a " + " href" * 200_000,
    ):
        assert found(lambda path, text=text: text)[0] == []


def test_folders_of_other_file_systems(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(b"1")
    (tmp_path / "two").write_bytes(b"22")
    url = f"file://{tmp_path}/"
    assert [(file, described and described[0]) for file, described in listing.files_in(url)] == [
        (f"{url}a/one", 1), (f"{url}two", 2)
    ]  # fmt: skip
    assert [file for file, _ in listing.files_in(url, recursive=False)] == [f"{url}two"]


def test_a_page_of_links_that_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links count, also if all of them lead to one file, or nowhere."""
    monkeypatch.setattr(listing, "_MOST_LINKS", 100)
    for place in ("a", "https://elsewhere/"):
        with pytest.raises(OSError, match="more than 100 links"):
            found({"/models/": link(place) * 101}.get)
    assert found({"/models/": link("a") * 100}.get)[0] == ["a"]


def test_links_of_all_pages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MOST_LINKS", 100)
    pages_of = {"/models/": link("b/") + link("a") * 50, "/models/b/": link("c") * 49}
    assert found(pages_of.get)[0] == ["a", "b/c"]
    pages_of["/models/b/"] += link("c")
    with pytest.raises(OSError, match="more than 100 links"):
        found(pages_of.get)
