"""What goes wrong with a server is said at the first request, in words, with the URL."""

from __future__ import annotations

import contextlib
import io
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxexp import Archive, DeserializationError, load
from kit.archive_files import make
from kit.archives import blob
from kit.served import serving

aiohttp = pytest.importorskip("aiohttp")
pytestmark = pytest.mark.once(reason="nothing here is about JAX")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make(tmp_path_factory.mktemp("archives") / "fleet.zip", {"a": blob()}).read_bytes()


@pytest.mark.parametrize(("status", "words"), [(403, "403 Forbidden"), (500, "500 Internal Server Error")])
def test_a_server_that_refuses(status: int, words: str, data: bytes) -> None:
    with serving(data) as server:
        server.refusals = {"HEAD": status, "GET": status}
        with pytest.raises(OSError, match=f"^{re.escape(server.url)}: the server answers {words}$") as error:
            Archive.open(server.url)
        assert not isinstance(error.value, FileNotFoundError)


@pytest.mark.parametrize("status", [404, 410])
def test_a_server_that_does_not_have_it(status: int, data: bytes) -> None:
    with serving(data) as server:
        server.refusals = {"HEAD": status, "GET": status}
        with pytest.raises(FileNotFoundError, match=f"^{re.escape(server.url)}: the server does not find it$"):
            load(server.url)


@pytest.mark.parametrize("status", [403, 405, 501])
def test_a_server_that_does_not_know_head(status: int, data: bytes) -> None:
    """As for URLs that are signed for GET."""
    with serving(data) as server:
        server.refusals = {"HEAD": status}
        assert list(Archive.open(server.url)) == ["a"]
        assert server.requests[0] == ("GET", 1), "the size comes with a byte"


@pytest.mark.parametrize("length", ["0", ""])
def test_a_server_whose_head_says_no_size(length: str, data: bytes) -> None:
    """As of frameworks that answer HEAD with the headers of an empty body."""
    with serving(data) as server:
        server.head_length = length
        assert list(Archive.open(server.url)) == ["a"]
        assert server.requests[:2] == [("HEAD", 0), ("GET", 1)], "the size comes with a byte"


@pytest.mark.parametrize("length", [None, ""])
def test_an_empty_file(length: str | None) -> None:
    with serving(b"") as server:
        server.head_length = length
        for read in (load, Archive.open):
            with pytest.raises(DeserializationError, match="found an empty file") as error:
                read(server.url)
            assert error.value.file == server.url


def test_there_is_no_server(data: bytes) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, and not listening
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/fleet.zip"
        with pytest.raises(OSError, match=f"^{re.escape(url)}: there is no connection to the server: .") as error:
            Archive.open(url)
        assert not isinstance(error.value, FileNotFoundError)
    with pytest.raises(OSError, match=r"^http://jaxexp.invalid/fleet.zip: there is no connection to the server: ."):
        Archive.open("http://jaxexp.invalid/fleet.zip")


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """A server that accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/fleet.zip"


def test_a_server_that_never_answers() -> None:
    with silent() as url, pytest.raises(TimeoutError, match=f"^{re.escape(url)}: .*the storage option timeout"):
        Archive.open(url, timeout=aiohttp.ClientTimeout(sock_read=0.1))


def test_nobody_waits_for_ever_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxexp._kernel.io.http._SILENCE", 0.1)
    with silent() as url, pytest.raises(TimeoutError, match="does not answer in time"):
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
            with pytest.raises(ValueError, match=f"^{re.escape(name)} is closed$"):
                handle.load()


def test_a_server_without_ranges_is_said_with_what_to_do(data: bytes, tmp_path: Path) -> None:
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    (tmp_path / "fleet.zip").write_bytes(data + bytes(1 << 17))
    with ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: Quiet(*a, directory=str(tmp_path))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(OSError, match=r"ignores ranges.*Serve it with a server that knows ranges"):
                Archive.open(f"http://127.0.0.1:{server.server_port}/fleet.zip")
        finally:
            server.shutdown()
            thread.join()
