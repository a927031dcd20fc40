"""Servers: what goes wrong is said at the first request, in words, with the URL; what they list; how they change."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import re
import socket
import sys
import tomllib
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp import Archive, load
from jaxexp._kernel.io import remote, sources
from jaxexp._kernel.io.remote import Version, described, facts_of
from jaxexp.errors import DeserializationError, ExportError
from kit.archive_files import make
from kit.archives import blob
from kit.each import each
from kit.places import ROOT
from kit.served import ranges_of, raw, serving, to

aiohttp, fsspec, yarl = map(pytest.importorskip, ("aiohttp", "fsspec", "yarl"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make(tmp_path_factory.mktemp("archives") / "fleet.zip", {"a": blob()}).read_bytes()


@each(
    "status, words",
    [
        (403, "the server answers 403 Forbidden"),
        (500, "the server answers 500 Internal Server Error"),
        (404, "the server does not find it"),
        (410, "the server does not find it"),
    ],
)
def test_a_server_that_refuses(status: int, words: str, data: bytes) -> None:
    with serving(data) as server:
        server.refusals = {"HEAD": status, "GET": status}
        for read in (Archive.open, load):
            with pytest.raises(OSError, match=f"^{re.escape(server.url)}: {words}$") as raised:
                read(server.url)
            assert isinstance(raised.value, FileNotFoundError) == ("find" in words)


def test_there_is_no_server(data: bytes) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, and not listening
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/fleet.zip"
        with pytest.raises(OSError, match=f"^{re.escape(url)}: there is no connection to the server: .") as error:
            Archive.open(url)
        assert not isinstance(error.value, FileNotFoundError)
    with pytest.raises(OSError, match=r"^http://jaxexp.invalid/fleet.zip: there is no connection to the server: ."):
        Archive.open("http://jaxexp.invalid/fleet.zip")


@each("error", [ConnectionRefusedError(111, "Connection refused"), socket.gaierror(-2, "Name not known"), EOFError()])
def test_errors_of_the_network_name_the_url(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(fsspec.filesystem("memory"), "info", fails)
    with pytest.raises(OSError, match=r"^memory://host/a: .") as raised:
        load("memory://host/a")
    assert isinstance(raised.value, ConnectionError) == isinstance(error, ConnectionError)


def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # which accepts connections, and says nothing
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/fleet.zip"
        with pytest.raises(TimeoutError, match=f"^{re.escape(url)}: .*the storage option timeout"):
            Archive.open(url, timeout=aiohttp.ClientTimeout(sock_read=0.1))
        monkeypatch.setattr("jaxexp._kernel.io.sources._SILENCE", 0.1)
        with pytest.raises(TimeoutError, match="does not answer in time"):
            Archive.open(url)


def test_options_that_no_request_takes(data: bytes) -> None:
    with serving(data) as server:
        with pytest.raises(TypeError, match=f"^{re.escape(server.url)} does not take the storage options nonsense: "):
            Archive.open(server.url, nonsense=1)
        assert list(Archive.open(server.url, headers={"Authorization": "Bearer token"})) == ["a"]


def test_a_closed_archive_says_so(data: bytes) -> None:
    with serving(data) as server:
        for source, name in ((server.url, server.url), (io.BytesIO(data), "BytesIO")):
            archive = Archive.open(source)
            handle = archive["a"]
            archive.close()
            with pytest.raises(ExportError, match=f"^the archive {re.escape(repr(name))} is closed: open it again"):
                handle.load()


def test_a_server_without_ranges_is_said_with_what_to_do(data: bytes) -> None:
    body = data + bytes(1 << 17)

    def answer(connection: socket.socket, head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    with raw(answer) as server, pytest.raises(OSError, match=r"ignores ranges.*Serve it with a server that knows rang"):
        Archive.open(server.url)


def test_a_url_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name the extra that has all packages for something: pip finds them in what is installed of jaxexp."""
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"reading https://host/f\.zip needs fsspec: pip install 'jaxexp\[remote\]'"):
        Archive.open("https://host/f.zip")
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "python").rglob("*.py"))
    named = set(re.findall(r"pip install (?:'jaxexp\[)?([\w-]+)", sources))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert named - extras.keys() == {"ml_dtypes"}


@each(
    "name",
    (
        "ETag Last-Modified Content-MD5 LastModified last_modified mtime modify updated created md5Hash generation "
        "VersionId content_hash checksum sha ino"
    ).split(),
)
def test_whatever_storage_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, Any] = {"size": 3, name: "first"}
    monkeypatch.setattr(fsspec.filesystem("memory"), "info", lambda path: said)
    version, (size, text) = Version("file"), described("memory://file")
    version.check(facts_of(said))
    assert (size, text) == described("memory://file") == (3, f"{name} first")
    said[name] = "second"
    assert described("memory://file") != (3, text)
    with pytest.raises(jaxexp.errors.DeserializationError, match="the file has changed since it was opened"):
        version.check(facts_of(said))
    del said[name]  # then no two states are known to be the same
    assert described("memory://file") != described("memory://file")


def test_listings_that_are_old_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[Any] = []
    memory = fsspec.filesystem("memory")
    memory.pipe("/listed/a.jaxexp", b"abc")
    monkeypatch.setattr(memory, "invalidate_cache", lambda path=None: forgotten.append(path))
    described("memory://listed/a.jaxexp")
    jaxexp.verify_many(["memory://listed/"])
    assert forgotten[0] == "/listed/a.jaxexp"
    assert None in forgotten
    memory.rm("/listed", recursive=True)


def pages(page_of: Callable[[str], str | None]) -> Callable[[socket.socket, bytes], object]:
    """Answers for `raw` with a page for each path."""

    def answer(connection: socket.socket, head: bytes) -> None:
        page = page_of(head.split()[1].decode())
        status = "404 Not Found" if page is None else "200 OK"
        body = (page or "").encode()
        said = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(said.encode() + body)

    return answer


def link(place: str) -> str:
    return f'<li><a class="x" href="{place}">name</a>'


def found(
    page_of: Callable[[str], str | None], recursive: bool = True, before: str = ""
) -> tuple[list[str], list[str]]:
    with raw(pages(page_of)) as server:
        url = f"{before}{server.origin}/models/"
        files = [file.removeprefix(url) for file, described in sources.files_in(url, recursive) if described is None]
        return files, [head.split()[1].decode() for head in server.requests]


def test_folders_inside_are_read_once() -> None:
    tree = {
        "/models/": "".join(map(link, ("a/", "a/b/", *["one%20file.bin"] * 2, "/models/two?v=1&amp;w=2"))),
        "/models/a/": link("b/") + link("gone/") + link("./three") + link("../"),
        "/models/a/b/": "<A HREF=four>" + "<a href='five'>" + link(".") + link("?C=N;O=D"),
    }
    files = ["a/b/five", "a/b/four", "a/three", "one%20file.bin", "two?v=1&w=2"]
    assert found(tree.get) == (files, ["/models/", "/models/a/", "/models/a/b/", "/models/a/gone/"])
    assert found(tree.get, recursive=False) == (files[3:], ["/models/"])


@each("before", ["simplecache::", "filecache::"])
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
        assert [file for file, _ in sources.files_in(url)] == [f"{url}one"]
    assert asked == ["/models/"]


ENDLESS: list[tuple[Callable[[str], str], str]] = [
    (lambda path: link("deeper/"), "32 levels of folders"),
    (lambda path: "".join(link(f"{i}/") for i in range(30)), "20 folders"),
    (lambda path: "".join(link(str(i)) for i in range(60)), "50 files"),
    (lambda path: "x" * 100_001, "100,000 bytes of pages"),
    (lambda path: "x" * 60_000 + (link("a/") if path == "/models/" else ""), "100,000 bytes of pages"),
    # Links count, also if all of them lead to one file, or nowhere, and those of all pages.
    ({"/models/": link("a") * 101}.get, "100 links"),
    ({"/models/": link("https://elsewhere/") * 101}.get, "100 links"),
    ({"/models/": link("b/") + link("a") * 50, "/models/b/": link("c") * 50}.get, "100 links"),
]


@each("page_of, what", ENDLESS)
def test_a_listing_ends(page_of: Callable[[str], str], what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = {"_MOST_FOLDERS": 20, "_MOST_FILES": 50, "_MOST_BYTES": 100_000, "_MOST_LINKS": 100}
    for name, number in most.items() if what != "32 levels of folders" else ():
        monkeypatch.setattr(sources, name, number)
    with pytest.raises(OSError, match=f"/: the server lists more than {what}"):
        found(page_of)
    assert found({"/models/": link("b/") + link("a") * 50, "/models/b/": link("c") * 49}.get)[0] == ["a", "b/c"]


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match="the server does not find it"):
        found(lambda path: None)


def test_links_are_found_in_linear_time() -> None:
    for text in ("<a " * 400_000, "<a href" * 200_000, '<a href="' * 150_000, "<a href= " * 150_000):
        assert found({"/models/": text}.get)[0] == []
    assert found({"/models/": "<a " + " href" * 200_000}.get)[0] == []


def test_folders_of_other_file_systems(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(b"1")
    (tmp_path / "two").write_bytes(b"22")
    url = f"file://{tmp_path}/"
    found = [(file, described and described[0]) for file, described in sources.files_in(url)]
    assert found == [(f"{url}a/one", 1), (f"{url}two", 2)]
    assert [file for file, _ in sources.files_in(url, recursive=False)] == [f"{url}two"]


HEADERS = {"Authorization": "Bearer SECRET1", "X-Api-Key": "SECRET2", "Cookie": "a=SECRET3", "PRIVATE-TOKEN": "SECRET4"}
COUNT = len(HEADERS)


def secrets(server: Any) -> list[int]:
    return [head.count(b"SECRET") for head in server.requests]


@contextlib.contextmanager
def redirecting(data: bytes) -> Iterator[tuple[Any, Any]]:
    with raw(ranges_of(data)) as other, raw(to(lambda: other.url)) as first:
        yield first, other


def session(given: Callable[[], Any]) -> dict[str, Any]:
    """A session that the user makes: its headers, passwords and cookies, too, are for one server."""

    async def get_client(**options: Any) -> Any:
        return aiohttp.ClientSession(**given(), **options)

    return {"get_client": get_client}


COOKIES = dict.fromkeys("abcd", "SECRET")
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("{}", {"headers": HEADERS}),
    ("{}", {"client_kwargs": {"headers": HEADERS}}),
    ("{}", {"cookies": COOKIES}),
    ("{}", {"client_kwargs": {"cookies": COOKIES}}),
    ("{}", session(lambda: {"headers": HEADERS})),
    ("{}", session(lambda: {"auth": aiohttp.BasicAuth("user", "1"), "cookies": COOKIES})),
    ("simplecache::{}", {"http": {"headers": HEADERS}}),  # through a cache
    ("zip://fleet.zip", {"target_protocol": "http", "target_options": {"headers": HEADERS}}),  # options name the URL
]


ELSEWHERE = "redirects to .* on another server, and the headers, cookies or password are for this one"


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@each("url, options", OPTIONS)
def test_another_server_gets_no_headers(url: str, options: Any, data: bytes, tmp_path: Path) -> None:
    with redirecting(data) as (first, other):
        more = {"cache_storage": str(tmp_path)} if "cache" in url else {"fo": first.url} if "zip:" in url else {}
        with pytest.raises(OSError, match=ELSEWHERE):
            Archive.open(url.format(first.url), **options, **more)
        assert set(secrets(first)) == {COUNT}
        assert other.requests == []


def test_nor_does_it_in_a_listing_or_a_stamp(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "http", {"headers": HEADERS})
    with redirecting(data) as (first, other):
        for read in (remote.stamp, lambda url: list(sources.files_in(url + "/"))):
            with pytest.raises(OSError, match=ELSEWHERE):
                read(first.url)
        assert set(secrets(first)) == {COUNT}
        assert other.requests == []


def test_without_headers_redirects_are_followed(data: bytes) -> None:
    """Also if the first server sets cookies, which nobody keeps."""

    def answer(connection: socket.socket, _: bytes) -> None:
        said = f"Location: {other.url}\r\nSet-Cookie: a=b; Domain=localhost\r\nContent-Length: 0\r\n\r\n"
        connection.sendall(f"HTTP/1.1 302 Found\r\n{said}".encode())

    with raw(ranges_of(data)) as other, raw(answer) as first:
        for url in (first.url, first.url.replace("127.0.0.1", "localhost")):
            assert list(Archive.open(url, headers={"User-Agent": "test"})) == ["a"]
        assert not any(b"Cookie" in head for head in (*first.requests, *other.requests))


def test_http_is_not_the_server_of_https() -> None:
    """Without a server of https: only what would be sent."""
    answer = types.SimpleNamespace(
        url=yarl.URL("https://models.example/x"),
        headers={"Location": "http://models.example/x"},
        request_info=types.SimpleNamespace(headers={"X-Api-Key": "1"}),
        close=lambda: None,
    )
    session, redirect = types.SimpleNamespace(requote_redirect_url=True), types.SimpleNamespace(response=answer)
    with pytest.raises(remote.RefusedRedirectError, match=ELSEWHERE):
        asyncio.run(remote._check_redirect(session, None, redirect))


def test_no_server_is_named_for_them() -> None:
    with pytest.raises(TypeError, match="headers_also_to is gone"):
        Archive.open("http://127.0.0.1:9/fleet.zip", headers=HEADERS, headers_also_to=["https://cdn.example"])


def test_the_same_server_keeps_getting_them(data: bytes) -> None:
    def answer(connection: socket.socket, head: bytes) -> object:
        return (to(lambda: "/other.zip") if b"fleet.zip" in head else ranges_of(data))(connection, head)

    with raw(answer) as server:
        assert list(Archive.open(server.url, headers=HEADERS)) == ["a"]
        assert set(secrets(server)) == {COUNT}
        server.requests.clear()
        with_name = server.url.replace("http://", "http://name:SECRET@")
        assert list(Archive.open(with_name)) == ["a"]
        assert all(b"Authorization: Basic" in head for head in server.requests)


def test_redirects_without_end() -> None:
    with raw(to(lambda: "/again")) as server:
        with pytest.raises(OSError, match=r"fleet\.zip: the server redirects 10 times, as in a circle"):
            Archive.open(server.url)
        assert len(server.requests) <= 11


def test_a_cache_decompresses_nothing(tmp_path: Path) -> None:
    body = gzip.compress(bytes(32 << 20))

    def answer(connection: socket.socket, head: bytes) -> None:
        said = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + said + (b"" if head.startswith(b"HEAD") else body))

    with raw(answer) as server, pytest.raises((OSError, DeserializationError)):
        Archive.open(f"simplecache::{server.url}", cache_storage=str(tmp_path))
    assert all(b"Accept-Encoding: identity" in head for head in server.requests)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 1 << 20


EVIL = "\x1b[31mevil\x07\u202e\u2066\x9b\r "


WORDS = EVIL.replace("\r", "").encode()
PARTIAL = b"HTTP/1.1 206 Partial\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
SAID = {
    "reason": b"HTTP/1.1 500 " + WORDS + b"\r\n\r\n",
    "latin-1 reason": b"HTTP/1.1 500 evil\x9b31m\r\n\r\n",
    "long reason": b"HTTP/1.1 500 evil" + b"x" * 5000 + b"\r\n\r\n",
    "encoding": PARTIAL + b"Content-Encoding: " + WORDS + b"\r\n\r\n",
    "location": b"HTTP/1.1 302 Found\r\nLocation: ftp://" + WORDS + b"\r\nContent-Length: 0\r\n\r\n",
    "host": b"HTTP/1.1 302 Found\r\nLocation: http://evil\x1b[31m.invalid/\r\nContent-Length: 0\r\n\r\n",
    "port": b"HTTP/1.1 302 Found\r\nLocation: http://evil:9\x1b9/\r\nContent-Length: 0\r\n\r\n",
    "range": PARTIAL + b"Content-Range: " + WORDS + b"\r\nContent-Length: " + WORDS + b"\r\n\r\n",
    "header": PARTIAL + WORDS + b": evil\r\n\r\n",
    "version": b"\x1b[31mevil 200 OK\r\n\r\n",
    "transfer": PARTIAL + b"Transfer-Encoding: " + WORDS + b"\r\n\r\n",
    "chunk": PARTIAL + CHUNKED + WORDS + b"\r\n",
}


@each("link", ["", "simplecache::"])
@each("what", SAID)
def test_words_of_a_server_are_escaped(what: str, link: str, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    def answer(connection: socket.socket, head: bytes) -> None:
        if head.startswith(b"HEAD") and what not in ("reason", "location"):
            ranges_of(data)(connection, head)
            return
        connection.sendall(SAID[what])
        connection.shutdown(socket.SHUT_WR)

    with raw(answer) as server:
        with pytest.raises((OSError, DeserializationError)) as error:
            Archive.open(f"{link}{server.url}")
        assert str(error.value).isprintable(), ascii(str(error.value))
        assert len(str(error.value)) < 1000
        for text in (*traceback.format_exception(error.value), *caplog.messages):
            assert all(line.isprintable() for line in text.split("\n")), ascii(text)


def test_an_etag_is_escaped(data: bytes) -> None:
    tags = iter(range(99))

    def answer(connection: socket.socket, head: bytes) -> None:
        tag = b'"%d%b"' % (next(tags), WORDS)
        connection.sendall(b"HTTP/1.1 200 OK\r\nETag: %b\r\nContent-Length: %d\r\n\r\n" % (tag, len(data)))
        if not head.startswith(b"HEAD"):
            connection.sendall(data)

    with raw(answer) as server:
        with pytest.raises(ValueError, match="the file has changed") as error:
            Archive.open(server.url)["a"].read()
        assert str(error.value).isprintable()
        assert "evil" in str(error.value)
