"""Servers that send something else than the range that they were asked for."""

from __future__ import annotations

import gzip
import http.server
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxexp import Archive, DeserializationError, _native
from kit.archive_files import make
from kit.archives import blob

pytest.importorskip("aiohttp")
pytestmark = pytest.mark.once(reason="an index is read without JAX")

MEGABYTE = 1 << 20


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as `server.answer` says: given a range, or None, with a status, headers and pieces of a body."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.reply()

    def do_GET(self) -> None:
        self.reply()

    def reply(self) -> None:
        server: Any = self.server
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        status, headers, pieces = server.answer(None if asked is None else (int(asked[1]), int(asked[2]) + 1))
        server.requests += 1
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()
        if self.command == "GET":
            try:
                for piece in pieces:
                    server.sent += len(piece)  # before its reader, who has all of it, looks
                    self.wfile.write(piece)
            except (BrokenPipeError, ConnectionResetError):
                pass

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def serve() -> Iterator[Callable[[Any], Any]]:
    servers = []

    def start(answer: Any) -> Any:
        server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.answer, server.requests, server.sent = answer, 0, 0
        server.url = f"http://127.0.0.1:{server.server_port}/fleet.zip"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("servers") / "fleet.zip"
    members = {"a": blob(), "bb": blob("tpu"), "ccc": blob(factor=2.0), "dddd": blob(factor=3.0, vjp_order=1)}
    return make(path, members).read_bytes() if path else b""


def honest(data: bytes, size: int | None = None) -> Callable[[Any], Any]:
    size = size or len(data)

    def answer(asked: tuple[int, int] | None) -> Any:
        if asked is None:
            return 200, {"Content-Length": size}, []
        start, end = asked[0], min(asked[1], size)
        return (
            206,
            {"Content-Length": end - start, "Content-Range": f"bytes {start}-{end - 1}/{size}"},
            [data[start:end]],
        )

    return answer


def changed(data: bytes, change: Callable[[int, int], Any]) -> Callable[[Any], Any]:
    """Tells the size honestly, and answers requests for ranges in its own way."""
    return lambda asked: honest(data)(asked) if asked is None else change(*asked)


def test_an_honest_one(serve: Any, data: bytes) -> None:
    archive = Archive.open(serve(honest(data)).url)
    assert list(archive) == ["a", "bb", "ccc", "dddd"]
    assert archive.verify() == {}, "wherever members lie in what was sent"
    assert len(archive.load_all()) == 4


def compressed(start: int, end: int) -> Any:
    body = gzip.compress(bytes(64 * MEGABYTE))
    return 206, {"Content-Encoding": "gzip", "Content-Length": len(body)}, [body]


MUCH = [bytes(MEGABYTE)] * 99
MEAN = {
    "all of the file": (lambda s, e: (200, {"Content-Length": 99 * MEGABYTE}, MUCH), "sends 103809024 b"),
    "all, as a part": (lambda s, e: (206, {"Content-Length": 99 * MEGABYTE}, MUCH), "sends 103809024 b"),
    "no end": (lambda s, e: (206, {}, MUCH), "sends more than the"),
    "a byte more": (lambda s, e: (206, {}, [bytes(e - s + 1)]), "sends more than the"),
    "another part": (lambda s, e: (206, {"Content-Range": f"bytes {s + 1}-{e}/9"}, [bytes(e - s)]), "sends a range"),
    "compressed": (compressed, "sends gzip data"),
    "no success": (lambda s, e: (503, {}, MUCH), "503 Service Unavailable"),
    "it is gone": (lambda s, e: (404, {}, []), "does not find it"),
    "garbage": (lambda s, e: (206, {"Content-Length": "x"}, []), "http://127.0.0.1"),
}  # fmt: skip


@pytest.mark.sampled(one_in=3, reason="many cases go the same way")
@pytest.mark.parametrize("how", MEAN)
def test_answers_that_are_no_ranges(how: str, serve: Any, data: bytes) -> None:
    change, message = MEAN[how]
    server = serve(changed(data, change))
    with pytest.raises(OSError, match=message):
        Archive.open(server.url)
    assert server.requests <= 4
    assert server.sent < 24 * MEGABYTE, "what fits into the buffers between the two, and no more is taken"
    good = serve(changed(data, lambda s, e: honest(data)((s, e))))
    archive = Archive.open(good.url)
    good.answer = changed(data, change)
    for use in (archive["a"].load, archive["dddd"].read, archive.load_all, archive.verify):
        with pytest.raises(OSError, match=message):
            use()


@pytest.mark.parametrize("content", [b"\0", _native.ARCHIVE_END_MAGIC, b"PK\3\4"], ids=["zeros", "ends", "headers"])
def test_what_is_no_archive_is_refused_at_once(content: bytes, serve: Any) -> None:
    """A terabyte of it, of which 64 kB are read."""
    size = 1 << 40

    def answer(asked: tuple[int, int] | None) -> Any:
        if asked is None:
            return 200, {"Content-Length": size}, []
        start, end = asked
        body = (content * ((end - start) // len(content) + 1))[: end - start]
        return 206, {"Content-Length": len(body), "Content-Range": f"bytes {start}-{end - 1}/{size}"}, [body]

    server = serve(answer)
    with pytest.raises(DeserializationError, match="an archive"):
        Archive.open(server.url)
    assert server.requests == 3
    assert server.sent == 1 << 16


def test_a_file_of_too_many_sections(serve: Any) -> None:
    """Each takes a request; a server could make them up as it is asked."""
    size = 1 << 40

    def answer(asked: tuple[int, int] | None) -> Any:
        if asked is None:
            return 200, {"Content-Length": size}, []
        start, end = asked
        head = _native.archive_section_head(start, start + 512, bytes(134))
        body = head.ljust(end - start, b"\0")[: end - start]
        return 206, {"Content-Length": len(body), "Content-Range": f"bytes {start}-{end - 1}/{size}"}, [body]

    server = serve(answer)
    with pytest.raises(DeserializationError, match="at most 1000 appends"):
        Archive.open(server.url)
    assert server.requests < 1010


def test_a_file_that_changes(serve: Any, data: bytes, tmp_path: Path) -> None:
    server = serve(honest(data))
    archive = Archive.open(server.url)
    other = make(tmp_path / "other.zip", {"x": blob("cuda")}).read_bytes()
    server.answer = honest(other.ljust(len(data), b"\0"))
    with pytest.raises(DeserializationError):
        archive["ccc"].load()
