"""Ranges of a file behind an HTTP server, which may send anything: never more is taken than was asked for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

# How many requests run at the same time.
_AT_ONCE = 32


def is_http(filesystem: Any) -> bool:
    """Whether an fsspec file system is the one for HTTP."""
    protocol = getattr(filesystem, "protocol", ())
    return "http" in (protocol if isinstance(protocol, tuple) else (protocol,))


def fetch(filesystem: Any, url: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Ranges of a file, given by their starts and ends; shorter where the file is.

    fsspec's own functions read whatever a server sends, compressed or not, before they look at it.

    Raises:
        OSError: a request fails, or the answer is something else than such a range.
    """
    from fsspec.asyn import sync

    found: Any = sync(filesystem.loop, _fetch_all, filesystem, url, ranges)  # annotated as if it returned None
    return list(found)


async def _fetch_all(filesystem: Any, url: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    session = await filesystem.set_session()
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(start: int, end: int) -> bytes:
        async with free:
            return await _fetch(session, filesystem, url, start, end)

    requests = [asyncio.ensure_future(one(start, end)) for start, end in ranges]
    try:
        return list(await asyncio.gather(*requests))
    finally:
        for request in requests:  # after a failure the others are in vain
            request.cancel()


async def _fetch(session: Any, filesystem: Any, url: str, start: int, end: int) -> bytes:
    options = dict(filesystem.kwargs)
    headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
    request = session.get(filesystem.encode_url(url), headers=headers, **{**options, "auto_decompress": False})
    async with request as answer:
        _check(answer, url, start, end)
        parts: list[bytes] = []
        left = end - start
        while part := await answer.content.read(left + 1):
            left -= len(part)
            if left < 0:
                raise OSError(f"{url}: the server sends more than the {end - start} bytes that it was asked for")
            parts.append(part)
        return b"".join(parts)


def _check(answer: Any, url: str, start: int, end: int) -> None:
    """Refuses an answer that is not a range, before its body is read."""
    if answer.status == 404:
        raise FileNotFoundError(f"{url}: the server does not find it")
    if answer.status not in (200, 206):
        raise OSError(f"{url}: the server answers {answer.status} {answer.reason}")
    if (encoding := answer.headers.get("Content-Encoding", "identity").strip().lower()) not in ("identity", ""):
        raise OSError(f"{url}: the server sends {encoding} data, though it was asked for none that is compressed")
    length = answer.content_length
    if length is not None and length > end - start:
        what = "ignores ranges, and sends" if answer.status == 200 else "sends"
        raise OSError(f"{url}: the server {what} {length} bytes, though it was asked for {end - start}")
    if answer.status == 200 and start != 0:
        raise OSError(f"{url}: the server ignores ranges, so no part of a file can be asked for")
    said = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    if said and int(said[1]) != start:
        raise OSError(f"{url}: the server sends a range from byte {said[1]}, though it was asked for one from {start}")
