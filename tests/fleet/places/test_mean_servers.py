"""Servers that lie about an artifact, or lead elsewhere: one error, without secrets, before the memory is full."""

from __future__ import annotations

import socket
from typing import Any

import pytest

import jaxexp
from kit.served import raw

pytest.importorskip("aiohttp")
pytestmark = [pytest.mark.timeout(120), pytest.mark.once(reason="an HTTP client is the same for every JAX")]

READERS = {
    "load": jaxexp.load,
    "load with a policy": lambda url: jaxexp.load(url, policy=jaxexp.Policy()),
    "inspect": jaxexp.inspect,
    "verify": jaxexp.verify,
    "digests": jaxexp.digests,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_a_hundred_gigabytes(reader: str) -> None:
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

    with raw(answer) as server, pytest.raises(jaxexp.DeserializationError, match=r"at most 4 GiB|an artifact"):
        READERS[reader](f"{server.origin}/f.jaxexp")
    assert sum(sent) < 1 << 26


def test_errors_about_redirects_have_no_secrets() -> None:
    def answer(connection: Any, head: bytes) -> None:
        place = b"xx://host/f.jaxexp?signature=SECRET"
        connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: " + place + b"\r\nContent-Length: 0\r\n\r\n")

    with raw(answer) as server, pytest.raises(OSError, match="no http URL") as error:
        jaxexp.load(f"{server.origin}/f.jaxexp")
    assert "xx://host/f.jaxexp" in str(error.value)
    assert "SECRET" not in str(error.value)
