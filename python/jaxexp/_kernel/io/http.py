"""Reads a file on an HTTP server by ranges, in a session of fsspec's, and never much more than it asked for; and lists
the files in a folder behind a URL.

fsspec's own functions read whatever a server sends before they look at it, and do not say of which version it was.
"""

from __future__ import annotations

import asyncio
import html
import itertools
import re
import urllib.parse
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from jaxexp._errors import cause, shown

from .remote import cut, failures, filesystem_of
from .version import Version, facts_of, of_info

# Answers below 500 that may be others later: too slow, too early, too often.
_LATER = (408, 425, 429)
# Seconds to wait for a connection, and for the next bytes. A large answer takes as long as it takes.
_CONNECT, _SILENCE = 30, 60
# People try python -m http.server first.
_NO_RANGES = "Serve it with a server that knows ranges, such as nginx or RangeHTTPServer, or copy the file"

T = TypeVar("T")


def is_http(filesystem: Any) -> bool:
    """Whether an fsspec file system is the one for HTTP."""
    protocol = getattr(filesystem, "protocol", ())
    return "http" in (protocol if isinstance(protocol, tuple) else (protocol,))


def beginning(filesystem: Any, url: str, size: int, version: Version) -> tuple[bytes, int | None]:
    """The first bytes of a file or a page, up to `size`, and how many it has; None if the server does not say.

    This takes one request, which also servers answer that know no HEAD, or ignore ranges.
    """
    return _run(filesystem, _part(filesystem, url, 0, size, version, exactly=False))


def fetch(filesystem: Any, url: str, ranges: Sequence[tuple[int, int]], version: Version) -> list[bytes]:
    """Ranges of a file, given by their starts and ends; shorter if the file ends before."""

    async def all_parts() -> list[bytes]:
        parts = [asyncio.ensure_future(_part(filesystem, url, *one, version, exactly=True)) for one in ranges]
        try:
            return [data for data, _ in await asyncio.gather(*parts)]
        finally:
            for part in parts:  # after a failure, nobody needs the others
                part.cancel()

    return _run(filesystem, all_parts())


def server_error(url: str, said: str, kind: type[OSError] = OSError) -> OSError:
    """The error about a server, whose own words are escaped."""
    return kind(shown(f"{url}: {said}"))


def _run(filesystem: Any, work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in fsspec's thread. `fsspec.asyn.sync` would take the messages from errors of time."""
    return asyncio.run_coroutine_threadsafe(work, filesystem.loop).result()


async def _part(
    filesystem: Any, url: str, start: int, end: int, version: Version, exactly: bool
) -> tuple[bytes, int | None]:
    """Bytes of a file, and how many it has, if the server says so; `version` is told what it says of the file.

    With `exactly`, an answer that is another range, or a longer one, is an error.
    """
    import aiohttp

    session = await filesystem.set_session()
    options: dict[str, Any] = {**filesystem.kwargs}
    options["headers"] = {**options.get("headers", {}), "Range": f"bytes={start}-{end - 1}"}
    if "timeout" not in options and "timeout" not in filesystem.client_kwargs:
        options["timeout"] = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENCE)
    try:
        async with session.get(filesystem.encode_url(url), **options) as answer:
            total = _total(answer)
            told = {name: answer.headers.get(name) for name in ("ETag", "Last-Modified")}
            facts = facts_of({"size": total, **told})
            if answer.status == 416:  # the file ends before, or is empty
                version.check(facts)
                if not exactly:
                    return b"", 0
            _check(answer, url, start, end, exactly)
            version.check(facts)
            parts: list[bytes] = []
            left = end - start + exactly
            while left > 0 and (part := await answer.content.read(left)):
                left -= len(part)
                parts.append(part)
    except TimeoutError as error:
        raise TimeoutError(f"{url}: the server does not answer in time; the storage option timeout says how long "
                           "to wait") from cause(error)  # fmt: skip
    except aiohttp.TooManyRedirects as error:
        raise server_error(
            url,
            f"the server redirects {len(error.history)} times, as in a circle, and never sends the file: open the URL "
            "of the file itself",
        ) from cause(error)
    except aiohttp.ClientConnectorError as error:
        raise server_error(url, f"there is no connection to the server: {error}", ConnectionError) from cause(error)
    if exactly and left <= 0:
        raise server_error(url, f"the server sends more than the {end - start} bytes that it was asked for")
    return b"".join(parts), None if total is None else int(total)


def _check(answer: Any, url: str, start: int, end: int, exactly: bool) -> None:
    """Refuses an answer that is not what was asked for, before its body is read."""
    if answer.status not in (200, 206):
        raise _refusal(answer, url)
    encoding = str(answer.headers.get("Content-Encoding", "")).strip().lower()
    if encoding not in ("", "identity"):
        raise server_error(url, f"the server sends {cut(encoding)} data, though it was asked for uncompressed data")
    if exactly and answer.status == 200 and (start != 0 or (answer.content_length or 0) > end):
        raise server_error(url, f"the server ignores ranges, so no part of a file can be asked for. {_NO_RANGES}")
    first = _content_range(answer)[0]
    if first is not None and int(first) != start:
        raise server_error(url, f"the server sends a range from byte {cut(first)}, and was asked for one from {start}")


def _refusal(answer: Any, url: str) -> OSError:
    if answer.status in (404, 410):
        name = url.partition("?")[0].rpartition("/")[2]
        advice = "" if not name or "." in name else "; if it is a folder, its URL ends in /"
        return FileNotFoundError(f"{url}: the server does not find it{advice}")
    kind = ConnectionError if answer.status >= 500 or answer.status in _LATER else OSError
    return server_error(url, f"the server answers {answer.status} {cut(answer.reason)}".rstrip(), kind)


def _total(answer: Any) -> str | None:
    """How many bytes the file has."""
    if answer.status == 200:
        return None if answer.content_length is None else str(answer.content_length)
    return _content_range(answer)[1]


def _content_range(answer: Any) -> tuple[str | None, str | None]:
    """Where the range begins, and how many bytes the file has."""
    said = re.match(r"bytes (?:(\d+)-\d+|\*)(?:/(\d+))?", answer.headers.get("Content-Range", ""))
    return (said[1], said[2]) if said else (None, None)


# --- the files in a folder behind a URL. The pages of an HTTP server may name anything, and have no end ---------------


# Of a folder and all that is in it.
_MOST_FOLDERS, _MOST_FILES, _MOST_LINKS, _MOST_BYTES = 10_000, 1_000_000, 2_000_000, 1 << 28
_DEEPEST = 32
_LINK = re.compile(r"""<a\s[^<>]*?\bhref\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)'|([^\s"'<>]+))""", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}


def files_in(url: str, recursive: bool = True) -> Iterator[tuple[str, tuple[int, str] | None]]:
    """The URLs of the files in a folder, and with `recursive` in its subfolders, in order, each with what `described`
    returns; None instead if the listing does not describe the file.

    Raises:
        OSError: the folder cannot be read, or a server lists too much in it.
    """
    with failures(url):
        filesystem, folder = filesystem_of(url, {})
        filesystem.invalidate_cache()
        if (behind := _on_http(filesystem, folder)) is not None:
            found: dict[str, Any] = dict.fromkeys(_files_below(*behind, recursive))
        else:
            infos = filesystem.find(folder, maxdepth=None if recursive else 1, detail=True)
            found = {path[len(folder.rstrip("/")) + 1 :]: info for path, info in infos.items()}
    for path in sorted(found):
        info = found[path] or {}
        yield url.rstrip("/") + "/" + path, of_info(info) if info.get("size") is not None else None


def _on_http(filesystem: Any, folder: str) -> tuple[Any, str] | None:
    """The file system for HTTP, and the URL, of a folder that is on such a server, also behind a cache."""
    from fsspec.implementations.cached import CachingFileSystem
    from fsspec.implementations.dirfs import DirFileSystem

    while isinstance(filesystem, (CachingFileSystem, DirFileSystem)):
        if isinstance(filesystem, DirFileSystem):
            folder = str(filesystem._join(folder))
        filesystem = filesystem.fs
    return (filesystem, folder) if is_http(filesystem) else None


def _files_below(filesystem: Any, url: str, recursive: bool) -> list[str]:
    """The paths of the files in a folder, from there: those to which the page of the folder has links, or with
    `recursive` the page of a folder inside. A page has only what is below its own URL.
    """
    root = url.rstrip("/") + "/"
    files: set[str] = set()
    folders, left, links = [""], _MOST_BYTES, itertools.count()
    known = set(folders)
    for folder in folders:  # which grow meanwhile
        try:
            page, _ = beginning(filesystem, root + folder, left + 1, Version(url))
        except FileNotFoundError:
            if not folder:
                raise
            continue
        if len(page) > left:
            raise server_error(url, _too_much(f"{_MOST_BYTES:,} bytes of pages"))
        left -= len(page)
        for name in _names(root + folder, page, links):
            path = folder + name
            if not path.endswith("/"):
                files.add(path)
            elif recursive and path not in known:
                known.add(path)
                folders.append(path)
            if path.count("/") > _DEEPEST:
                raise server_error(url, _too_much(f"{_DEEPEST} levels of folders"))
        for found, most, what in ((folders, _MOST_FOLDERS, "folders"), (files, _MOST_FILES, "files")):
            if len(found) > most:
                raise server_error(url, _too_much(f"{most:,} {what}"))
    return sorted(files)


def _too_much(what: str) -> str:
    return f"the server lists more than {what} in this folder, so it is not read: name folders or files inside of it"


def _names(folder: str, page: bytes, links: Iterator[int]) -> Iterator[str]:
    """What the links of a folder's page name in it, as parts of URLs. `links` counts those of all pages."""
    here = urllib.parse.urlsplit(folder)
    for found in _LINK.finditer(page.decode(errors="ignore")):
        if next(links) == _MOST_LINKS:
            raise server_error(folder, _too_much(f"{_MOST_LINKS:,} links"))
        link = html.unescape(next(filter(None, found.groups()), ""))
        try:
            there = urllib.parse.urlsplit(urllib.parse.urljoin(folder, link))
            is_below = _server(there) == _server(here) and there.path.startswith(here.path)
        except ValueError:  # no URL
            continue
        name = there.path[len(here.path) :]
        if is_below and name and not any(urllib.parse.unquote(part) in (".", "..") for part in name.split("/")):
            yield f"{name}?{there.query}" if there.query else name


def _server(url: urllib.parse.SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or _PORTS.get(url.scheme)
