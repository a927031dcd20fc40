"""Servers that lie about an artifact or the weights beside it, or lead elsewhere: one error, and little is read."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp import Archive
from kit.archive_files import make
from kit.archives import blob
from kit.each import each
from kit.served import asked, part, ranges_of, raw, to
from kit.weighted import bound

pytest.importorskip("aiohttp")
pytestmark = pytest.mark.timeout(120)

MEGABYTE = 1 << 20
Answer = Callable[[socket.socket, bytes], object]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder: Path = tmp_path_factory.mktemp("weights")
    bound()[0].save(folder / "model.jaxexp")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    members = {"a": blob(), "bb": blob("tpu"), "ccc": blob(factor=2.0)}
    return make(tmp_path_factory.mktemp("archive") / "fleet.zip", members).read_bytes()


class Counting:
    """A connection that counts what is sent."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.sent = connection, 0

    def sendall(self, data: bytes) -> None:
        self._connection.sendall(data)
        self.sent += len(data)


def answering(whole: bytes, change: Callable[[Any, int, int], object]) -> Answer:
    """Tells the size honestly, with the first byte, and answers requests for other ranges in its own way."""

    def answer(connection: Any, head: bytes) -> None:
        place = asked(head)
        ranges_of(whole)(connection, head) if place in (None, (0, 1)) else change(connection, *place)

    return answer


def endless(beginning: bytes) -> Callable[[Any, int, int], None]:
    def change(connection: Any, start: int, end: int) -> None:
        connection.sendall(beginning)
        while True:
            connection.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")

    return change


def changing(whole: bytes) -> Answer:
    count = iter(range(1000))

    def change(connection: Any, start: int, end: int) -> None:
        connection.sendall(part(start, end, len(whole), whole[start:end], f'ETag: "{next(count)}"\r\n'))

    return answering(whole, change)


def huge(whole: bytes) -> Answer:
    def answer(connection: Any, head: bytes) -> None:
        place, size = asked(head), 1 << 60
        if place is None:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        else:
            connection.sendall(part(*place, size, whole[place[0] : place[1]]))

    return answer


def sends(head: bytes, body: bytes = b"") -> Callable[[bytes], Answer]:
    return lambda whole: answering(whole, lambda connection, *_: connection.sendall(head + b"\r\n\r\n" + body))


def sends_part(change: Callable[[bytes, int, int], bytes]) -> Callable[[bytes], Answer]:
    return lambda whole: answering(whole, lambda connection, *place: connection.sendall(change(whole, *place)))


PART, GZIP = b"HTTP/1.1 206 Partial\r\n", gzip.compress(bytes(64 * MEGABYTE))
# What servers do, and what is then said of an archive, if it is an OSError.
MEAN: dict[str, tuple[Callable[[bytes], Answer], str]] = {
    "all of the file": (
        lambda w: answering(w, endless(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")),
        "ignores ranges",
    ),
    "no end": (lambda w: answering(w, endless(PART + b"\r\n")), "sends more than the"),
    "chunks without end": (lambda w: answering(w, endless(PART + b"Transfer-Encoding: chunked\r\n\r\n")), ""),
    "too short": (sends_part(lambda w, s, e: part(s, e, len(w), w[s : e - 1])), ""),
    "too long": (sends_part(lambda w, s, e: part(s, e, len(w), w[s:e] + b"x")), "sends|more"),
    "another part": (sends_part(lambda w, s, e: part(s + 1, e + 1, len(w), w[s:e])), "sends a range"),
    "another size": (sends_part(lambda w, s, e: part(s, e, len(w) + 1, w[s:e])), ""),
    "other bytes": (sends_part(lambda w, s, e: part(s, e, len(w), w[s:e][::-1])), ""),
    "another version each time": (changing, ""),
    "a size that no disk has": (huge, ""),
    "a header that is too long": (lambda w: ranges_of((1 << 40).to_bytes(8, "little") + w[8:]), ""),
    "an empty file": (lambda w: ranges_of(b""), ""),
    "to itself": (lambda w: to(lambda: "model.safetensors"), ""),
    "compressed": (
        sends_part(lambda w, s, e: part(s, e, len(w), GZIP, "Content-Encoding: gzip\r\n")), "sends gzip data"
    ),
    "no success": (
        lambda w: answering(w, endless(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 1000000000\r\n\r\n")),
        "503 Service Unavailable",
    ),
    "it is gone": (sends(b"HTTP/1.1 404 No\r\nContent-Length: 0"), "does not find it"),
    "garbage": (sends(PART + b"Content-Length: x"), "http://127.0.0.1"),
}  # fmt: skip


@each("how", MEAN)
def test_servers_that_lie(how: str, files: dict[str, bytes], archive: bytes) -> None:
    """About weights beside an artifact; and about an archive, when it is opened and later."""
    make_mean, message = MEAN[how]
    mean, honest, sent = make_mean(files["model.safetensors"]), ranges_of(files["model.jaxexp"]), []

    def answer(connection: socket.socket, head: bytes) -> None:
        if b"model.jaxexp" in head.split(b"\r\n")[0]:
            honest(connection, head)
            return
        counting = Counting(connection)
        try:
            mean(counting, head)  # type: ignore[arg-type]
        finally:
            sent.append(counting.sent)

    with raw(answer) as server:
        with pytest.raises((OSError, jaxexp.errors.DeserializationError)) as error:
            jaxexp.verify(f"{server.origin}/model.jaxexp")
        assert "model.safetensors" in str(error.value)
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 1000
        assert sum(sent) < 8 * MEGABYTE, "what both sides had on the way counts, too"
        if message:
            mean = make_mean(archive)
            with pytest.raises(OSError, match=message):
                Archive.open(server.url)
            mean = ranges_of(archive)
            opened = Archive.open(server.url)
            assert opened.verify() == {}, "wherever members lie in what was sent"
            mean = make_mean(archive)
            for use in (opened["a"].load, opened["ccc"].read, opened.load_all, opened.verify):
                with pytest.raises(OSError, match=message):
                    use()
    assert sum(sent) < 100 * MEGABYTE, "what fits into the buffers between the two, and no more is taken"


WITH_A_POLICY = partial(jaxexp.load, policy=jaxexp.Policy())


@each("read", [jaxexp.load, WITH_A_POLICY, jaxexp.inspect, jaxexp.verify, jaxexp.digests])
def test_a_file_of_a_hundred_gigabytes(read: Callable[[str], object]) -> None:
    """What it begins like is a part of an artifact; only its size is too large for one."""
    size, sent = 100_000_000_000, []

    def answer(connection: socket.socket, head: bytes) -> None:
        if head.startswith(b"HEAD"):
            connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nAccept-Ranges: bytes\r\n\r\n".encode())
            return
        connection.sendall(b"HTTP/1.1 206 Partial\r\n")
        connection.sendall(f"Content-Length: {size}\r\nContent-Range: bytes 0-{size - 1}/{size}\r\n\r\n".encode())
        while True:
            connection.sendall(bytes(1 << 16))
            sent.append(1 << 16)
            assert sum(sent) < 1 << 28

    with raw(answer) as server, pytest.raises(jaxexp.errors.DeserializationError, match=r"at most 4 GiB|an artifact"):
        read(f"{server.origin}/f.jaxexp")
    assert sum(sent) < 1 << 26


def test_errors_about_redirects_have_no_secrets() -> None:
    secret = to(lambda: "xx://host/f.jaxexp?signature=SECRET")
    with raw(secret) as server, pytest.raises(OSError, match="is not an http URL") as error:
        jaxexp.load(f"{server.origin}/f.jaxexp")
    assert "xx://host/f.jaxexp" in str(error.value)
    assert "SECRET" not in str(error.value)
