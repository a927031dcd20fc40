"""What a server can do to whoever reads from it: see headers that are for another one, send bytes without end, and have
its own words in messages."""

from __future__ import annotations

import contextlib
import gzip
import io
import socket
import traceback
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxexp import Archive, DeserializationError
from jaxexp._kernel.io import listing, version
from kit.archive_files import make
from kit.archives import blob
from kit.served import ranges_of, raw, to

aiohttp = pytest.importorskip("aiohttp")
pytestmark = pytest.mark.once(reason="nothing here is about JAX")

HEADERS = {"Authorization": "Bearer SECRET1", "X-Api-Key": "SECRET2", "Cookie": "a=SECRET3", "PRIVATE-TOKEN": "SECRET4"}
COUNT = len(HEADERS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make(tmp_path_factory.mktemp("archives") / "fleet.zip", {"a": blob()}).read_bytes()


def secrets(server: Any) -> list[int]:
    """How many of the secrets each request had."""
    return [head.count(b"SECRET") for head in server.requests]


@contextlib.contextmanager
def redirecting(data: bytes) -> Iterator[tuple[Any, Any]]:
    """A server that redirects, and the one to which it does."""
    with raw(ranges_of(data)) as other, raw(to(lambda: other.url)) as first:
        yield first, other


OPTIONS = {
    "headers": {"headers": HEADERS},
    "of the session": {"client_kwargs": {"headers": HEADERS}},
    "cookies": {"cookies": dict.fromkeys("abcd", "SECRET")},
    "cookies of the session": {"client_kwargs": {"cookies": dict.fromkeys("abcd", "SECRET")}},
}


@pytest.mark.parametrize("how", OPTIONS)
def test_another_server_gets_no_headers(how: str, data: bytes) -> None:
    with redirecting(data) as (first, other):
        assert list(Archive.open(first.url, **OPTIONS[how])) == ["a"]
        assert set(secrets(first)) == {COUNT}
        assert set(secrets(other)) == {0}
        assert any(b"Range: bytes=" in head for head in other.requests)


def test_nor_does_it_through_a_cache(data: bytes, tmp_path: Path) -> None:
    with redirecting(data) as (first, other):
        cached = {"cache_storage": str(tmp_path)}
        assert list(Archive.open(f"simplecache::{first.url}", http={"headers": HEADERS}, **cached)) == ["a"]
        assert max(secrets(first)) == COUNT
        assert set(secrets(other)) == {0}


def test_nor_does_it_where_options_name_the_url(data: bytes) -> None:
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w") as file:
        file.writestr("fleet.zip", data)
    options = {"target_protocol": "http", "target_options": {"headers": HEADERS}}
    with redirecting(outer.getvalue()) as (first, other):
        assert list(Archive.open("zip://fleet.zip", fo=first.url, **options)) == ["a"]
        assert max(secrets(first)) == COUNT
        assert set(secrets(other)) == {0}


def test_nor_does_it_in_a_listing_or_a_stamp(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    monkeypatch.setitem(fsspec.config.conf, "http", {"headers": HEADERS})
    with redirecting(data) as (first, other):
        assert version.stamp(first.url)[0] == len(data)
        list(listing.files_in(f"{first.origin}/folder/"))
        assert max(secrets(first)) == COUNT
        assert set(secrets(other)) == {0}


def test_a_user_allows_it_by_name(data: bytes) -> None:
    with redirecting(data) as (first, other):
        for allowed in ([other.origin], other.origin, (f"{other.origin}/", "https://cdn.example")):
            other.requests.clear()
            assert list(Archive.open(first.url, headers=HEADERS, headers_also_to=allowed)) == ["a"]
            assert set(secrets(other)) == {COUNT}
        other.requests.clear()
        for allowed in (first.origin, other.origin.replace("http:", "https:"), "http://127.0.0.1"):
            Archive.open(first.url, headers=HEADERS, headers_also_to=[allowed])
        assert set(secrets(other)) == {0}


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


def test_whoever_is_not_trusted_sends_them_to_nobody(data: bytes) -> None:
    """First to another server, then back: the other one chose this request."""

    def answer(connection: socket.socket, head: bytes) -> object:
        return (to(lambda: other.url) if b"/fleet.zip" in head else ranges_of(data))(connection, head)

    with raw(to(lambda: f"{first.origin}/chosen.zip")) as other, raw(answer) as first:
        assert list(Archive.open(first.url, headers=HEADERS)) == ["a"]
        assert {head.count(b"SECRET") for head in first.requests if b"/chosen.zip" in head} == {0}
        assert set(secrets(other)) == {0}


def test_a_redirect_to_http_never_has_them() -> None:
    """Without a server of https: only what would be sent."""
    import asyncio

    from jaxexp._kernel.io.session import open_session

    sent: list[tuple[str, bool]] = []

    async def make(**options: Any) -> Any:
        session = aiohttp.ClientSession(**options)

        class Answer:
            status, headers = 302, {"Location": "http://models.example/x"}

            def release(self) -> None: ...

        class Asked:
            headers, auth, cookie_jar = session.headers, None, session.cookie_jar
            requote_redirect_url = True

            async def request(self, method: str, url: Any, headers: Any, **options: Any) -> Any:
                sent.append((str(url), "X-Api-Key" in headers))
                return Answer()

        await session.close()
        return Asked()

    async def ask() -> None:
        session = await open_session(make)
        also_to = ["http://models.example", "https://models.example"]
        with pytest.raises(aiohttp.ClientError, match="redirects more than 10 times"):
            await session.get("https://models.example/x", headers=HEADERS, headers_also_to=also_to)

    asyncio.run(ask())
    assert sent[:2] == [("https://models.example/x", True), ("http://models.example/x", False)]
    assert len(sent) == 11


@pytest.mark.parametrize(
    "wrong", ["cdn.example", "https://cdn.example/path", "ftp://cdn.example", "", 3, "https://u@h"]
)
def test_an_origin_is_one(wrong: Any, data: bytes) -> None:
    with raw(ranges_of(data)) as server, pytest.raises(TypeError, match="headers may also go to an origin, such as"):
        Archive.open(server.url, headers_also_to=[wrong])


def test_a_session_of_the_users(data: bytes) -> None:
    """Its headers, too, are for one server."""

    async def get_client(**options: Any) -> Any:
        return aiohttp.ClientSession(headers=HEADERS, **options)

    with redirecting(data) as (first, other):
        assert list(Archive.open(first.url, get_client=get_client)) == ["a"]
        assert set(secrets(first)) == {COUNT}
        assert set(secrets(other)) == {0}


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_passwords_and_cookies_of_a_users_session(data: bytes) -> None:
    async def get_client(**options: Any) -> Any:
        return aiohttp.ClientSession(auth=aiohttp.BasicAuth("user", "1"), cookies={"a": "SECRET"}, **options)

    with redirecting(data) as (first, other):
        assert list(Archive.open(first.url, get_client=get_client)) == ["a"]
        assert all(b"Authorization: Basic" in head and b"a=SECRET" in head for head in first.requests)
        assert not any(b"Authorization" in head or b"SECRET" in head for head in other.requests)


# --- answers without end ----------------------------------------------------------------------------------------------

PARTIAL = b"HTTP/1.1 206 Partial\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "interim answers": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 999),
    "interim answers with headers": (b"", b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" * 999),
    "the status": (b"HTTP/1.1 200 ", b"x" * 9999),
    "a header": (PARTIAL + b"X: ", b"x" * 9999),
    "headers": (PARTIAL, b"X: y\r\n" * 999),
    "an extension of a chunk": (PARTIAL + CHUNKED + b"1;", b"x" * 9999),
    "extensions of chunks": (PARTIAL + CHUNKED, b"1;" + b"x" * 4000 + b"\r\nx\r\n"),
    "the length of a chunk": (PARTIAL + CHUNKED, b"0" * 9999),
    "trailers": (PARTIAL + CHUNKED + b"0\r\n", b"X: y\r\n" * 999),
    "a trailer": (PARTIAL + CHUNKED + b"0\r\nX: ", b"x" * 9999),
}


def endlessly(connection: socket.socket, begin: bytes, again: bytes, sent: list[int]) -> None:
    connection.sendall(begin)
    while True:
        connection.sendall(again)
        sent.append(len(again))


@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_without_end(what: str, data: bytes) -> None:
    sent: list[int] = []

    def answer(connection: socket.socket, head: bytes) -> object:
        if head.startswith(b"HEAD") and what != "interim answers":
            return ranges_of(data)(connection, head)
        return endlessly(connection, *ENDLESS[what], sent)

    with raw(answer) as server:
        with pytest.raises(OSError, match=r"fleet\.zip: ") as error:
            Archive.open(server.url)
        assert not isinstance(error.value, TimeoutError)
        assert str(error.value).isprintable()
        assert sum(sent) < 1 << 24, "what fits into the buffers between the two"


def test_an_answer_without_end_names_the_reason(data: bytes) -> None:
    def answer(connection: socket.socket, head: bytes) -> object:
        return endlessly(connection, *ENDLESS["interim answers"], [])

    with raw(answer) as server:
        with pytest.raises(OSError, match=r"fleet\.zip: the server sends far more than the content of an answer$"):
            Archive.open(server.url)
        assert len(server.requests) == 1, "no second attempt"


def test_redirects_without_end() -> None:
    with raw(to(lambda: "/again")) as server:
        with pytest.raises(OSError, match=r"fleet\.zip: the server redirects more than 10 times$"):
            Archive.open(server.url)
        assert len(server.requests) == 11


def test_small_chunks_are_honest(data: bytes) -> None:
    """Of 100 bytes, as some frameworks send them."""

    def answer(connection: socket.socket, head: bytes) -> object:
        if head.startswith(b"HEAD"):
            return ranges_of(large)(connection, head)
        start, end = (int(n) for n in head.partition(b"bytes=")[2].split(b"\r\n")[0].split(b"-"))
        pieces = [large[i : min(i + 100, end + 1)] for i in range(start, end + 1, 100)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        return connection.sendall(PARTIAL + CHUNKED + body + b"0\r\n\r\n")

    large = bytes(3 << 20) + data
    with raw(answer) as server:
        from jaxexp._kernel.io.sources import open_source

        source = open_source(server.url, {})
        assert source.read(0, len(large)) == large


def test_a_cache_decompresses_nothing(tmp_path: Path) -> None:
    body = gzip.compress(bytes(32 << 20))

    def answer(connection: socket.socket, head: bytes) -> None:
        said = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + said + (b"" if head.startswith(b"HEAD") else body))

    with raw(answer) as server, pytest.raises((OSError, DeserializationError)):
        Archive.open(f"simplecache::{server.url}", cache_storage=str(tmp_path))
    assert all(b"Accept-Encoding: identity" in head for head in server.requests)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 1 << 20


# --- words of servers -------------------------------------------------------------------------------------------------

EVIL = "\x1b[31mevil\x07\u202e\u2066\x9b\r "


def said(what: str) -> bytes:
    words = EVIL.replace("\r", "").encode()
    ok = b"HTTP/1.1 206 Partial\r\n"
    return {
        "reason": b"HTTP/1.1 500 " + words + b"\r\n\r\n",
        "latin-1 reason": b"HTTP/1.1 500 evil\x9b31m\r\n\r\n",
        "long reason": b"HTTP/1.1 500 evil" + b"x" * 5000 + b"\r\n\r\n",
        "encoding": ok + b"Content-Encoding: " + words + b"\r\n\r\n",
        "location": b"HTTP/1.1 302 Found\r\nLocation: ftp://" + words + b"\r\nContent-Length: 0\r\n\r\n",
        "host": b"HTTP/1.1 302 Found\r\nLocation: http://evil\x1b[31m.invalid/\r\nContent-Length: 0\r\n\r\n",
        "port": b"HTTP/1.1 302 Found\r\nLocation: http://evil:9\x1b9/\r\nContent-Length: 0\r\n\r\n",
        "range": ok + b"Content-Range: " + words + b"\r\nContent-Length: " + words + b"\r\n\r\n",
        "header": ok + words + b": evil\r\n\r\n",
        "status": b"HTTP/1.1 \x1b[31mevil\r\n\r\n",
        "version": b"\x1b[31mevil 200 OK\r\n\r\n",
        "transfer": ok + b"Transfer-Encoding: " + words + b"\r\n\r\n",
        "chunk": ok + CHUNKED + words + b"\r\n",
    }[what]


WORDS = [
    *("reason", "latin-1 reason", "long reason", "encoding", "location", "host", "port", "range", "header", "status"),
    *("version", "transfer", "chunk"),
]


@pytest.mark.parametrize("link", ["", "simplecache::"])
@pytest.mark.parametrize("what", WORDS)
def test_words_of_a_server_are_escaped(what: str, link: str, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    def answer(connection: socket.socket, head: bytes) -> object:
        if head.startswith(b"HEAD") and what not in ("reason", "location"):
            return ranges_of(data)(connection, head)
        connection.sendall(said(what))
        connection.shutdown(socket.SHUT_WR)
        return None

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
        tag = f'"{next(tags)}{EVIL.replace(chr(13), "")}"'.encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nETag: %b\r\nContent-Length: %d\r\n\r\n" % (tag, len(data)))
        if not head.startswith(b"HEAD"):
            connection.sendall(data)

    with raw(answer) as server:
        with pytest.raises(ValueError, match="the file has changed") as error:
            Archive.open(server.url)["a"].read()
        assert str(error.value).isprintable()
        assert "evil" in str(error.value)
