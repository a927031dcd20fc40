"""Reads ranges of a file on an HTTP server, which may send anything, and never reads more than it asked for."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from jaxexp._errors import cause, shown

from .remote import cut
from .version import Version, facts_of

# How many requests run at the same time.
_AT_ONCE = 32
# Answers below 500 that may be others later: too slow, too early, too often.
_LATER = (408, 425, 429)
# Seconds to wait for a connection, and for the next bytes. A large answer takes as long as it takes.
_CONNECT, _SILENCE = 30, 60


def is_http(filesystem: Any) -> bool:
    """Whether an fsspec file system is the one for HTTP."""
    protocol = getattr(filesystem, "protocol", ())
    return "http" in (protocol if isinstance(protocol, tuple) else (protocol,))


def size_of(filesystem: Any, url: str, version: Version) -> int | None:
    """How many bytes a file has; None if the server does not say. `version` is told what it says of the file."""
    found: Any = _run(filesystem, _size_of(filesystem, url, version))
    return None if found is None else int(found)


def fetch(filesystem: Any, url: str, ranges: Sequence[tuple[int, int]], version: Version) -> list[bytes]:
    """Ranges of a file, given by their starts and ends; shorter if the file ends before.

    fsspec's own functions read whatever a server sends, compressed or not, before they look at it.
    """
    return list(_run(filesystem, _fetch_all(filesystem, url, ranges, version)))


def beginning(filesystem: Any, url: str, size: int) -> tuple[bytes, int | None]:
    """The first bytes of a file, up to `size`, and how many it has; None if the server does not say. This takes one
    request, and also a server that ignores ranges sends little more.
    """
    found: tuple[bytes, int | None] = _run(filesystem, _beginning(filesystem, url, size))
    return found


def page(filesystem: Any, url: str, most: int) -> bytes:
    """A page of HTML, up to one byte more than `most`; nothing if it is something else."""
    found: bytes = _run(filesystem, _page(filesystem, url, most))
    return found


def _run(filesystem: Any, work: Any) -> Any:
    from fsspec.asyn import sync

    async def run() -> tuple[Any, TimeoutError | None]:
        try:
            return await work, None
        except TimeoutError as error:  # fsspec would replace it by one without a message
            return None, error

    found: Any = sync(filesystem.loop, run)  # annotated as if it returned None
    result, error = found
    if error is not None:
        raise error
    return result


async def _size_of(filesystem: Any, url: str, version: Version) -> int | None:
    # A server may refuse HEAD, for example if a URL is signed for GET. Or it may send the length of the answer's body,
    # which is empty. Then this asks for one byte: the answer says how many there are.
    async with _answer(filesystem, "HEAD", url, {}) as answer:
        if answer.status == 200 and _encoding(answer) == "identity" and answer.content_length:
            version.check({**_facts(answer), "size": str(answer.content_length)})
            return int(answer.content_length)
    async with _answer(filesystem, "GET", url, {"Range": "bytes=0-0"}) as answer:
        if answer.status == 416 and _content_range(answer)[1] in (None, "0"):  # the file is empty
            version.check({**_facts(answer), "size": "0"})
            return 0
        _check_status(answer, url)
        version.check(_facts(answer))
        if answer.status == 206:
            total = _content_range(answer)[1]
            return None if total is None else int(total)
        return None if _encoding(answer) != "identity" else answer.content_length


async def _fetch_all(filesystem: Any, url: str, ranges: Sequence[tuple[int, int]], version: Version) -> list[bytes]:
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(start: int, end: int) -> bytes:
        async with free:
            return await _fetch(filesystem, url, start, end, version)

    requests = [asyncio.ensure_future(one(start, end)) for start, end in ranges]
    try:
        return list(await asyncio.gather(*requests))
    finally:
        for request in requests:  # after a failure, nobody needs the others
            request.cancel()


async def _fetch(filesystem: Any, url: str, start: int, end: int, version: Version) -> bytes:
    async with _answer(filesystem, "GET", url, {"Range": f"bytes={start}-{end - 1}"}) as answer:
        if answer.status == 416:  # the file has become shorter, or the server will say so next
            version.check(_facts(answer))
        _check_status(answer, url)
        _check(answer, url, start, end)
        version.check(_facts(answer))
        parts: list[bytes] = []
        left = end - start
        while part := await answer.content.read(left + 1):
            left -= len(part)
            if left < 0:
                raise server_error(url, f"the server sends more than the {end - start} bytes that it was asked for")
            parts.append(part)
        return b"".join(parts)


async def _beginning(filesystem: Any, url: str, size: int) -> tuple[bytes, int | None]:
    async with _answer(filesystem, "GET", url, {"Range": f"bytes=0-{size - 1}"}) as answer:
        if answer.status == 416:  # the file is empty
            return b"", 0
        _check_status(answer, url)
        _check_encoding(answer, url)
        data = b""
        while len(data) < size and (part := await answer.content.read(size - len(data))):
            data += part
        total = _content_range(answer)[1] if answer.status == 206 else answer.content_length
        return data, None if total is None else int(total)


async def _page(filesystem: Any, url: str, most: int) -> bytes:
    async with _answer(filesystem, "GET", url, {}) as answer:
        _check_status(answer, url)
        _check_encoding(answer, url)
        if "Content-Type" in answer.headers and answer.content_type != "text/html":
            return b""
        data = bytearray()
        while len(data) <= most and (part := await answer.content.read(most + 1 - len(data))):
            data += part
        return bytes(data)


@contextlib.asynccontextmanager
async def _answer(filesystem: Any, method: str, url: str, headers: dict[str, str]) -> AsyncGenerator[Any]:
    """The answer to a request, of which only the headers were read. An OSError names the URL if there is none."""
    import aiohttp

    from .session import RefusedAnswer

    session = await filesystem.set_session()
    options: dict[str, Any] = {"allow_redirects": True, **filesystem.kwargs}
    if "timeout" not in options and "timeout" not in filesystem.client_kwargs:
        options["timeout"] = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENCE)
    given: dict[str, str] = options.get("headers", {})
    options["headers"] = {**given, **headers}
    try:
        async with session.request(method, filesystem.encode_url(url), **options) as answer:
            yield answer
    except TimeoutError as error:
        raise TimeoutError(f"{url}: the server does not answer in time; the storage option timeout says how long "
                           "to wait") from cause(error)  # fmt: skip
    except aiohttp.ClientConnectorError as error:
        raise server_error(url, f"there is no connection to the server: {error}", ConnectionError) from cause(error)
    except RefusedAnswer as error:
        raise server_error(url, f"the server {error}") from None


def server_error(url: str, said: str, kind: type[OSError] = OSError) -> OSError:
    """The error about a server, whose own words are escaped."""
    return kind(shown(f"{url}: {said}"))


def _check_status(answer: Any, url: str) -> None:
    if answer.status in (404, 410):
        name = url.partition("?")[0].rpartition("/")[2]
        advice = "" if not name or "." in name else "; if it is a folder, its URL ends in /"
        raise FileNotFoundError(f"{url}: the server does not find it{advice}")
    if answer.status not in (200, 206):
        kind = ConnectionError if answer.status >= 500 or answer.status in _LATER else OSError
        raise server_error(url, f"the server answers {answer.status} {cut(answer.reason)}".rstrip(), kind)


def _check(answer: Any, url: str, start: int, end: int) -> None:
    """Refuses an answer that is not a range, before its body is read."""
    _check_encoding(answer, url)
    length = answer.content_length
    if length is not None and length > end - start:
        what = "ignores ranges, and sends" if answer.status == 200 else "sends"
        advice = f". {_NO_RANGES}" if answer.status == 200 else ""
        raise server_error(url, f"the server {what} {length} bytes, though it was asked for {end - start}{advice}")
    if answer.status == 200 and start != 0:
        raise server_error(url, f"the server ignores ranges, so no part of a file can be asked for. {_NO_RANGES}")
    if (first := _content_range(answer)[0]) is not None and int(first) != start:
        raise server_error(
            url, f"the server sends a range from byte {cut(first)}, though it was asked for one from {start}"
        )


def _check_encoding(answer: Any, url: str) -> None:
    if (encoding := _encoding(answer)) != "identity":
        raise server_error(url, f"the server sends {cut(encoding)} data, though it was asked for uncompressed data")


# People try python -m http.server first.
_NO_RANGES = "Serve it with a server that knows ranges, such as nginx or RangeHTTPServer, or copy the file"


def _encoding(answer: Any) -> str:
    return str(answer.headers.get("Content-Encoding", "")).strip().lower() or "identity"


def _content_range(answer: Any) -> tuple[str | None, str | None]:
    """Where the range begins, and how many bytes the file has."""
    said = re.match(r"bytes (?:(\d+)-\d+|\*)(?:/(\d+))?", answer.headers.get("Content-Range", ""))
    return (said[1], said[2]) if said else (None, None)


def _facts(answer: Any) -> dict[str, str]:
    """What an answer's headers say about the state of the file."""
    total = _content_range(answer)[1] if answer.status in (206, 416) else None
    told = {"size": total, "ETag": answer.headers.get("ETag"), "Last-Modified": answer.headers.get("Last-Modified")}
    return facts_of(told)
