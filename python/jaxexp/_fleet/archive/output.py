"""The file of an archive that is being written: a new one, or one that is appended to."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Generator
from typing import IO, Any

from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._kernel.io import lock
from jaxexp._kernel.io.sources import open_source

from .opened import Opened


class Output:
    """The file, its members, and where the next bytes go in it.

    Attributes:
        in_place: whether readers may have the file open.
        is_published: whether readers may have seen the new section.
    """

    def __init__(self, file: IO[bytes], records: _native.ArchiveRecords, end: int, *, in_place: bool) -> None:
        self._file = file
        self.records = records
        self.end = end
        self.in_place = in_place
        self.is_published = False

    def write_at(self, position: int, *parts: Any) -> None:
        self._file.seek(position)
        for part in parts:
            left = memoryview(part).cast("B")
            while left:  # a raw file may write only a part
                left = left[self._file.write(left) :]

    def read(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        parts = []
        while size and (part := self._file.read(size)):  # a raw file may read only a part
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def sync(self) -> None:
        """Makes later bytes reach the disk later, if that matters to a reader."""
        self._file.flush()
        if self.in_place:
            os.fsync(self._file.fileno())


class Pieces:
    """Writes bytes that come piece by piece.

    Attributes:
        end: behind the last piece.
        crc32: of all of them.
        last: the last bytes, as many as the end of an archive has.
    """

    def __init__(self, output: Output, position: int) -> None:
        self._output = output
        self.end = position
        self.crc32 = 0
        self.last = b""

    def take(self, piece: bytes) -> None:
        self._output.write_at(self.end, piece)
        self.end += len(piece)
        self.crc32 = zlib.crc32(piece, self.crc32)
        self.last = (self.last + piece[-_native.ARCHIVE_END_SIZE :])[-_native.ARCHIVE_END_SIZE :]


@contextlib.contextmanager
def new(context: contextlib.AbstractContextManager[IO[bytes]]) -> Generator[Output]:
    """A new archive in the file of a context."""
    with context as file:
        yield Output(file, _native.ArchiveRecords(), 0, in_place=False)


@contextlib.contextmanager
def appended(path: str | os.PathLike[str]) -> Generator[Output]:
    """An archive whose file is locked. After an exception the file is as it was, unless the new section was
    published.
    """
    with lock.locked(path) as file:
        records = _native.ArchiveRecords()
        with open_for_writing(path) as opened:
            refuse_unknown_rest(opened)
            end = opened.end
        file.truncate(end)  # an earlier append was interrupted
        # Opened again, because blocks of a large index are read later, with what is close to them in the file.
        with open_for_writing(path) as opened, opened.placed():
            records.build_on(opened.index)
        output, process = Output(file, records, end, in_place=True), os.getpid()
        try:
            yield output
        except BaseException:
            if not output.is_published and process == os.getpid():
                file.truncate(end)
            raise


def refuse_unknown_rest(opened: Opened) -> None:
    """Refuses to write if that would cut off bytes that no append has left, unless all of them are zeros.

    Raises:
        DeserializationError: something else follows the archive.
    """
    if opened.rest_is_known or not opened.unfinished_bytes:
        return
    position, size = opened.end, opened.source.size
    while position < size:
        part = min(size - position, 1 << 20)
        if opened.source.read(position, part).strip(b"\0"):
            raise DeserializationError(
                "",
                f"an archive that ends at byte {opened.end}, with nothing behind it but what an append left",
                f"{opened.unfinished_bytes} bytes of something else; cut them off if nobody needs them",
                opened.source.name,
            )
        position += part


def open_for_writing(path: str | os.PathLike[str]) -> contextlib.closing[Opened]:
    """An archive that its caller is about to change or to write again."""
    return contextlib.closing(Opened(open_source(path, {})))
