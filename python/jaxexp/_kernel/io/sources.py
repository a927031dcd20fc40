"""Sources of an archive's bytes: a file, a file object, or a URL that fsspec opens."""

from __future__ import annotations

import bisect
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from jaxexp._errors import ExportError, ExportTypeError, cause

from . import http, lock
from .files import file_bytes
from .remote import failures, filesystem_of
from .version import Version, facts_of


class BinaryFile(Protocol):
    """A file that `open(path, "rb")` returned, or another object with these two methods."""

    def read(self, size: int, /) -> bytes: ...

    def seek(self, offset: int, whence: int = 0, /) -> int: ...


class Readable(Protocol):
    """A binary file object that is read from its position to its end: also a pipe, or a server's answer."""

    def read(self, size: int = ..., /) -> bytes: ...


class Storage:
    """Bytes that several threads can read by ranges at once.

    Attributes:
        name: what messages call it.
        size: how many bytes there are.
        whole: the file, if it is on this machine, so that parts of it can be read into one buffer.
        content: all of the bytes, if they are in memory.
        takes_requests: whether each range needs a request to another machine.
        address: what another process opens it with, or None.
        is_closed: whether nothing can be read any more.
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
        """Several ranges, given by position and size."""
        return [self.read(*r) for r in ranges]

    def close(self) -> None:
        self.is_closed = True

    def _complete(self, data: bytes, position: int, size: int) -> bytes:
        if len(data) == size:
            return data
        raise Version(self.name).changed(f"{size} bytes at {position}", str(len(data)))


def open_source(source: Any, options: dict[str, Any]) -> Storage:
    """Opens a path, a URL (anything with ``://``), or a binary file object.

    Raises:
        OSError: it cannot be opened.
        TypeError: it is none of these.
    """
    if isinstance(source, str) and "://" in source:
        return _Remote(source, options)
    if options:
        raise ExportTypeError(f"storage options are for URLs, found {', '.join(options)} with {source!r}")
    if isinstance(source, (str, os.PathLike)):
        return _LocalFile(os.fspath(source))
    if hasattr(source, "read") and hasattr(source, "seek"):
        return _FileObject(source)
    raise ExportTypeError(f"an archive is opened from a path, a URL or a binary file object, not {type(source)}")


def beginning_of_url(url: str, size: int) -> tuple[bytes, int]:
    """The first bytes of a file behind a URL, up to `size`, and how many it has; the rest is not read.

    Raises:
        OSError: it cannot be read.
    """
    with failures(url):
        filesystem, path = filesystem_of(url, {})
        if http.is_http(filesystem):
            head, total = http.beginning(filesystem, path, size, Version(url))
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
        if http.is_http(self._fs):
            return http.beginning(self._fs, self._path, 1, self._version)[1]
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
        """The bytes between starts and ends."""
        self.check_open()
        with failures(self.name):
            if http.is_http(self._fs):
                return http.fetch(self._fs, self._path, ranges, self._version)
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
