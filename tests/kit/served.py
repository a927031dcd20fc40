"""A server of HTTP on this machine, whose file tests replace."""

from __future__ import annotations

import contextlib
import http.server
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any


class _Served(http.server.BaseHTTPRequestHandler):
    """Serves `server.data` by ranges, with `server.headers`, and keeps what was asked for in `server.requests`.
    `server.others` are files beside it, by their paths."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        self.answer(self.whole() or b"")

    def whole(self) -> bytes | None:
        server: Any = self.server
        path = self.path.partition("?")[0]
        found: bytes | None = server.data if path.endswith("/fleet.zip") else server.others.get(path)
        return found

    def answer(self, body: bytes) -> None:
        server: Any = self.server
        whole = self.whole()
        if whole is None:
            self.send_error(404)
            return
        if server.token is not None and self.headers.get("Authorization") != f"Bearer {server.token}":
            self.send_error(401)
            return
        if (status := server.refusals.get(self.command)) is not None:
            self.send_error(status)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and body:
            first, last = int(asked[1]), min(int(asked[2]), len(whole) - 1)
            body = whole[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(whole)}")
            self.send_header("Content-Length", str(len(body)))
        else:
            if asked and not whole:
                self.send_error(416)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(whole)))
        self.send_header("Accept-Ranges", "bytes")
        for name, value in server.headers.items():
            self.send_header(name, value)
        server.requests.append((self.command, len(body)))  # before the answer, which may be followed by a request
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@contextlib.contextmanager
def running(server: Any) -> Iterator[Any]:
    """A server with its `origin`, in a thread."""
    server.origin = f"http://127.0.0.1:{server.server_address[1]}"
    server.url = f"{server.origin}/fleet.zip"
    server.requests = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def serving(data: bytes) -> Iterator[Any]:
    """A server with `data` at `url`. `refusals` has the status of the error that a method gets. With a `token`, each
    request has to have it."""
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Served)
    server.data, server.headers, server.refusals, server.others = data, {}, {}, {}
    server.token = None
    with running(server):
        yield server


@contextlib.contextmanager
def raw(answer: Callable[[socket.socket, bytes], object]) -> Iterator[Any]:
    """A server at `url` whose `answer` sends whatever it likes; `requests` has the heads of requests, as bytes."""

    class Raw(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # Whoever reads no further closes the connection.
            with contextlib.suppress(ConnectionError, TimeoutError):
                self.request.settimeout(20)
                while head := self._head():
                    server.requests.append(head)
                    answer(self.request, head)

        def _head(self) -> bytes:
            found = b""
            while not found.endswith(b"\r\n\r\n"):
                if not (more := self.request.recv(1 << 16)):
                    return b""
                found += more
            return found

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = allow_reuse_address = True

    server: Any = Server(("127.0.0.1", 0), Raw)
    with running(server):
        yield server


def asked(head: bytes) -> tuple[int, int] | None:
    """The range that a request is for."""
    found = re.search(rb"Range: bytes=(\d+)-(\d+)", head)
    return None if found is None or head.startswith(b"HEAD") else (int(found[1]), int(found[2]) + 1)


def part(start: int, end: int, total: object, body: bytes, more: str = "") -> bytes:
    """The answer to a request for a range."""
    said = f"HTTP/1.1 206 Partial\r\nContent-Length: {len(body)}\r\nContent-Range: bytes {start}-{end - 1}/{total}\r\n"
    return said.encode() + more.encode() + b"\r\n" + body


def ranges_of(data: bytes) -> Callable[[socket.socket, bytes], object]:
    """Answers for `raw` as of an honest server."""

    def answer(connection: socket.socket, head: bytes) -> None:
        if (place := asked(head)) is None:
            whole = b"" if head.startswith(b"HEAD") else data
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + whole)
        else:
            start, end = place[0], min(place[1], len(data))
            connection.sendall(part(start, end, len(data), data[start:end]))

    return answer


def to(place: Callable[[], str]) -> Callable[[socket.socket, bytes], object]:
    """Answers for `raw` that redirect."""

    def answer(connection: socket.socket, head: bytes) -> None:
        connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {place()}\r\nContent-Length: 0\r\n\r\n".encode())

    return answer
