"""The file of an archive that is being written."""

from __future__ import annotations

import os
from typing import IO, Any


class Output:
    """The file, and where the next bytes go in it.

    Attributes:
        end: the end of the bytes that were written.
    """

    def __init__(self, file: IO[bytes], end: int, in_place: bool) -> None:
        """Args:
        file: a file for reading and writing.
        end: where to begin.
        in_place: whether readers may have it open.
        """
        self._file = file
        self._in_place = in_place
        self.end = end

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
        if self._in_place:
            os.fsync(self._file.fileno())
