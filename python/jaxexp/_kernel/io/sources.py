"""Sources of bytes: a file, a file object, or a URL that fsspec opens; the files in a folder behind a URL."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import re
import sys
from collections.abc import Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from jaxexp._errors import ExportError, ExportTypeError, cause, shown

from . import lock
from .files import file_bytes, is_url
from .remote import Version, cut, facts_of, failures, filesystem_of, of_info

if TYPE_CHECKING:
    import urllib.parse


class BinaryFile(Protocol):
    """A file that `open(path, "rb")` returned, or another object with these two methods."""

    def read(self, size: int, /) -> bytes: ...

    def seek(self, offset: int, whence: int = 0, /) -> int: ...


class Readable(Protocol):
    """A binary file object that is read from its position to its end: also a pipe, or a server's answer."""

    def read(self, size: int = ..., /) -> bytes: ...


class Storage:
    """Bytes that several threads can read by ranges at once. `whole` is a file on this machine, so that parts of it can
    be read into one buffer; `content` are all bytes, if they are in memory. Another process opens `address`, if there
    is one.
    """

    name: str
    size: int
    whole: Any = None
    content: Any = None
    takes_requests = False
    address: tuple[str, dict[str, Any]] | None = None
    is_closed = False

    def check_open(self) -> None:
        """Raises an ExportError if nothing can be read any more."""
        if self.is_closed:
            raise ExportError(f"the archive {self.name!r} is closed: open it again, with jaxexp.Archive.open")

    def read(self, position: int, size: int) -> bytes:
        """A range of exactly this size, which has to be within the bytes."""
        raise NotImplementedError

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(*r) for r in ranges]

    def close(self) -> None:
        self.is_closed = True

    def _complete(self, data: bytes, position: int, size: int) -> bytes:
        if len(data) == size:
            return data
        raise Version(self.name).changed(f"{size} bytes at {position}", str(len(data)))


def open_source(source: Any, options: dict[str, Any]) -> Storage:
    """Opens a path, a URL (anything with ``://``), or a binary file object."""
    if isinstance(source, str) and is_url(source):
        return _Remote(source, options)
    if options:
        raise ExportTypeError(f"storage options are for URLs, found {', '.join(options)} with {source!r}")
    if isinstance(source, (str, os.PathLike)):
        return _LocalFile(os.fspath(source))
    if hasattr(source, "read") and hasattr(source, "seek"):
        return _FileObject(source)
    raise ExportTypeError(f"an archive is opened from a path, a URL or a binary file object, not {type(source)}")


def beginning_of_url(url: str, size: int) -> tuple[bytes, int]:
    """The first bytes of a file behind a URL, up to `size`, and how many it has; the rest is not read."""
    with failures(url):
        filesystem, path = filesystem_of(url, {})
        if _is_http(filesystem):
            head, total = _beginning(filesystem, path, size, Version(url))
            return head, (sys.maxsize if len(head) == size else len(head)) if total is None else total
    with contextlib.closing(_Remote(url, {})) as remote:
        return remote.read(0, min(size, remote.size)), remote.size


class _LocalFile(Storage):
    def __init__(self, path: str) -> None:
        self.name = os.fsdecode(path)
        self.address = (os.path.abspath(self.name), {})
        self.whole = file_bytes(path, in_parts=True)
        self.size = len(self.whole)

    def read(self, position: int, size: int) -> bytes:
        self.check_open()
        data: bytes = self.whole.read(position, size)
        return data

    def close(self) -> None:
        super().close()
        # Functions that were loaded from the file may still use it. It is closed after the last use.
        self.whole = None


class _FileObject(Storage):
    def __init__(self, file: Any) -> None:
        self._file: Any = file
        self.name = str(getattr(file, "name", type(file).__name__))
        self.check_open()
        if isinstance(file.read(0), str):
            raise ExportTypeError(
                f"{file!r} is a text file: an archive is read from a binary file, as from open(path, 'rb')"
            )
        self._lock, self._turns = lock.reentrant(), 0
        self.size = file.seek(0, os.SEEK_END)

    def read(self, position: int, size: int) -> bytes:
        with self._lock:
            self.check_open()
            parts, left = [], size
            while left > 0:  # a raw file may give less than it has
                self._turns += 1
                turn = self._turns
                self._file.seek(position + size - left)
                part = self._file.read(left)
                if not isinstance(part, bytes):
                    raise ExportTypeError(f"an archive is read from a binary file object, not {type(self._file)}")
                if turn != self._turns:  # a signal handler read the file meanwhile
                    continue
                if not part:
                    break
                parts.append(part)
                left -= len(part)
        return self._complete(b"".join(parts), position, size)

    @property
    def is_closed(self) -> bool:  # type: ignore[override]  # whoever opened the file closes it
        return self._file is None or bool(getattr(self._file, "closed", False))

    def close(self) -> None:
        self._file = None


class _Remote(Storage):
    takes_requests = True

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.name = url
        self.address = (url, options)
        self._version = Version(url)
        self._fs: Any
        with failures(self.name):
            try:
                self._fs, self._path = filesystem_of(url, options)
                size = self._look()
            except TypeError as error:
                if not options:
                    raise
                raise ExportTypeError(
                    f"{url} does not take the storage options {', '.join(options)}: {error}"
                ) from cause(error)
        if size is None:
            raise OSError(f"{url}: the server does not say how large it is, so no part of it can be asked for")
        self.size = int(size)

    def _look(self) -> int | None:
        """Asks for the size of the file, and compares its version with the known one."""
        if _is_http(self._fs):
            return _beginning(self._fs, self._path, 1, self._version)[1]
        size: int | None
        if _keeps_copies(self._fs):  # the copy is read; over HTTP, some of these know only its size
            size = self._fs.size(self._path)
            return size
        self._fs.invalidate_cache(self._path)  # its listings may be old
        info = self._fs.info(self._path)
        self._version.check(facts_of(info))
        size = info.get("size")
        return size

    def read(self, position: int, size: int) -> bytes:
        data = self._fetch([(position, position + size)])[0] if size else b""
        return self._complete(data, position, size)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Fetches neighbouring ranges in one request, and several requests at the same time."""
        order = sorted({(position, position + size) for position, size in ranges if size})
        blocks: list[list[int]] = []
        for start, end in order:
            last = blocks[-1] if blocks else None
            if last and (start < last[1] or (start <= last[1] + _GAP and end - last[0] <= _BLOCK)):
                last[1] = max(last[1], end)
            else:
                blocks.append([start, end])
        starts = [start for start, _ in blocks]
        fetched = self._fetch([(start, end) for start, end in blocks])
        whole = [self._complete(data, s, e - s) for data, (s, e) in zip(fetched, blocks, strict=True)]

        def part(position: int, size: int) -> bytes:
            if not size:
                return b""
            block = bisect.bisect_right(starts, position) - 1
            start = position - starts[block]
            return whole[block][start : start + size]

        return [part(position, size) for position, size in ranges]

    def _fetch(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.check_open()
        with failures(self.name):
            if _is_http(self._fs):
                return _fetch(self._fs, self._path, ranges, self._version)
            starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
            found: list[bytes] = self._fs.cat_ranges([self._path] * len(ranges), starts, ends, on_error="raise")
            if not _keeps_copies(self._fs):
                self._look()  # after reading: so the bytes are of the version that is there now
            return found

    def close(self) -> None:
        super().close()
        self._fs = None


def _keeps_copies(filesystem: Any) -> bool:
    """Whether an fsspec file system keeps copies of files, as simplecache does; reads never see a changed file."""
    from fsspec.implementations.cached import CachingFileSystem

    return isinstance(filesystem, CachingFileSystem)


# Fetching up to this many unwanted bytes is quicker than another request. And a request is not larger than this.
_GAP, _BLOCK = 1 << 14, 1 << 24


# --- a file on an HTTP server, read by ranges in a session of fsspec's, never much more than was asked for -----------
# fsspec's own functions read whatever a server sends before they look at it, and do not say of which version it was.


# Answers below 500 that may be others later: too slow, too early, too often.
_LATER = (408, 425, 429)
# Seconds to wait for a connection, and for the next bytes. A large answer takes as long as it takes.
_CONNECT, _SILENCE = 30, 60
# People try python -m http.server first.
_NO_RANGES = "Serve it with a server that knows ranges, such as nginx or RangeHTTPServer, or copy the file"

T = TypeVar("T")


def _is_http(filesystem: Any) -> bool:
    """Whether an fsspec file system is the one for HTTP."""
    protocol = getattr(filesystem, "protocol", ())
    return "http" in (protocol if isinstance(protocol, tuple) else (protocol,))


def _beginning(filesystem: Any, url: str, size: int, version: Version) -> tuple[bytes, int | None]:
    """The first bytes of a file or a page, up to `size`, and how many it has; None if the server does not say.

    This takes one request, which also servers answer that know no HEAD, or ignore ranges.
    """
    return _run(filesystem, _part(filesystem, url, 0, size, version, exactly=False))


def _fetch(filesystem: Any, url: str, ranges: Sequence[tuple[int, int]], version: Version) -> list[bytes]:
    """Ranges of a file, given by their starts and ends; shorter if the file ends before."""
    import asyncio  # takes as long as the half of NumPy, and most files are here

    async def all_parts() -> list[bytes]:
        parts = [asyncio.ensure_future(_part(filesystem, url, *one, version, exactly=True)) for one in ranges]
        try:
            return [data for data, _ in await asyncio.gather(*parts)]
        finally:
            for part in parts:  # after a failure, nobody needs the others
                part.cancel()

    return _run(filesystem, all_parts())


def server_error(url: str, said: str, kind: type[OSError] = OSError) -> OSError:
    return kind(shown(f"{url}: {said}"))


def _run(filesystem: Any, work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in fsspec's thread. `fsspec.asyn.sync` would take the messages from errors of time."""
    import asyncio

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
_LINK = r"""(?i)<a\s[^<>]*?\bhref\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)'|([^\s"'<>]+))"""
_PORTS = {"http": 80, "https": 443}


def files_in(url: str, recursive: bool = True) -> Iterator[tuple[str, tuple[int, str] | None]]:
    """The URLs of the files in a folder, and with `recursive` in its subfolders, in order, each with what `described`
    returns; None instead if the listing does not describe the file.
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
    return (filesystem, folder) if _is_http(filesystem) else None


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
            page, _ = _beginning(filesystem, root + folder, left + 1, Version(url))
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
    import html
    import urllib.parse  # a session of a file needs neither

    here = urllib.parse.urlsplit(folder)
    for found in re.finditer(_LINK, page.decode(errors="ignore")):
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
