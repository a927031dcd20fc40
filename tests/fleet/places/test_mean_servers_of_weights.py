"""Servers that lie about the files of weights beside an artifact: one error, soon, and little is read."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from kit.served import ranges_of, raw
from kit.weighted import bound

pytest.importorskip("aiohttp")
pytestmark = [pytest.mark.timeout(120), pytest.mark.once(reason="files are verified without JAX")]

MEGABYTE = 1 << 20
Answer = Callable[[socket.socket, bytes], object]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder: Path = tmp_path_factory.mktemp("weights")
    bound()[0].save(folder / "model.jaxexp")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Counting:
    """A connection that counts what is sent."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.sent = connection, 0

    def sendall(self, data: bytes) -> None:
        self._connection.sendall(data)
        self.sent += len(data)


def asked(head: bytes) -> tuple[int, int] | None:
    found = re.search(rb"Range: bytes=(\d+)-(\d+)", head)
    return None if found is None or head.startswith(b"HEAD") else (int(found[1]), int(found[2]) + 1)


def answering(whole: bytes, change: Callable[[Any, int, int], object]) -> Answer:
    """Tells the size honestly, and answers requests for ranges in its own way."""

    def answer(connection: Any, head: bytes) -> None:
        place = asked(head)
        ranges_of(whole)(connection, head) if place is None else change(connection, *place)

    return answer


def part(start: int, end: int, total: object, body: bytes, more: str = "") -> bytes:
    said = f"HTTP/1.1 206 Partial\r\nContent-Length: {len(body)}\r\nContent-Range: bytes {start}-{end - 1}/{total}\r\n"
    return said.encode() + more.encode() + b"\r\n" + body


def endless(beginning: bytes) -> Callable[[Any, int, int], None]:
    def change(connection: Any, start: int, end: int) -> None:
        connection.sendall(beginning)
        while True:
            connection.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")

    return change


def changing(whole: bytes) -> Answer:
    """Another ETag in each answer."""
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


MEAN: dict[str, Callable[[bytes], Answer]] = {
    "all of the file": lambda w: answering(w, endless(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")),
    "no end": lambda w: answering(w, endless(b"HTTP/1.1 206 Partial\r\n\r\n")),
    "chunks without end": lambda w: answering(
        w, endless(b"HTTP/1.1 206 Partial\r\nTransfer-Encoding: chunked\r\n\r\n")
    ),
    "too short": lambda w: answering(w, lambda c, s, e: c.sendall(part(s, e, len(w), w[s : e - 1]))),
    "too long": lambda w: answering(w, lambda c, s, e: c.sendall(part(s, e, len(w), w[s:e] + b"x"))),
    "another part": lambda w: answering(w, lambda c, s, e: c.sendall(part(s + 1, e + 1, len(w), w[s:e]))),
    "another size": lambda w: answering(w, lambda c, s, e: c.sendall(part(s, e, len(w) + 1, w[s:e]))),
    "other bytes": lambda w: answering(w, lambda c, s, e: c.sendall(part(s, e, len(w), w[s:e][::-1]))),
    "another version each time": changing,
    "a size that no disk has": huge,
    "a header that is too long": lambda w: ranges_of((1 << 40).to_bytes(8, "little") + w[8:]),
    "an empty file": lambda w: ranges_of(b""),
    "to itself": lambda w: (
        lambda c, h: c.sendall(b"HTTP/1.1 302 Found\r\nLocation: model.safetensors\r\nContent-Length: 0\r\n\r\n")
    ),
}


@pytest.mark.sampled(one_in=3, reason="many cases go the same way")
@pytest.mark.parametrize("how", MEAN)
def test_servers_that_lie(how: str, files: dict[str, bytes]) -> None:
    mean, honest = MEAN[how](files["model.safetensors"]), ranges_of(files["model.jaxexp"])
    sent = []

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
        with pytest.raises((OSError, jaxexp.DeserializationError)) as error:
            jaxexp.verify(f"{server.origin}/model.jaxexp")
        assert "model.safetensors" in str(error.value)
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 1000
    assert sum(sent) < 8 * MEGABYTE, "what both sides had on the way counts, too"


def test_an_honest_one(files: dict[str, bytes]) -> None:
    def answer(connection: socket.socket, head: bytes) -> None:
        name = head.split()[1].decode().strip("/")
        ranges_of(files[name])(connection, head)

    with raw(answer) as server:
        jaxexp.verify(f"{server.origin}/model.jaxexp")
