"""The weights in an archive: tensors that members refer to by their digests."""

from __future__ import annotations

import copy
import mmap
import os

from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._io.sources import Source
from jaxexp._safetensors.header import Tensor


class Tensors:
    """Where the tensors of an archive are found. It outlives the archive: functions look for weights later."""

    def __init__(self, source: Source, index: _native.ArchiveIndex, end: int) -> None:
        """Maps a local file, of which nothing is read.

        Args:
            source: the file.
            index: the archive's index.
            end: where the archive ends.

        Raises:
            DeserializationError: there is another file of this name since the archive was opened.
        """
        self.name = source.name
        self.identity: tuple[int, ...] | None = None
        self._index = index
        self._mapping: mmap.mmap | None = None
        if source.whole is None:
            self._source = copy.copy(source)  # which nobody closes
        else:
            with open(self.name, "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_size >= end:
                    self._mapping = mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ)
            last = end - _native.ARCHIVE_END_SIZE
            if self._mapping is None or self._mapping[last:] != source.read(last, _native.ARCHIVE_END_SIZE):
                raise DeserializationError("", "the file as it was when it was opened", "another one: open it again")
            self.identity = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def place(self, digest: bytes) -> tuple[int, int] | None:
        """The position and the size of a tensor."""
        return self._index.tensor(digest)

    def bytes_of(self, tensor: Tensor) -> memoryview:
        """The bytes of a tensor, whose position is in the archive: a part of the mapped file, or what was fetched."""
        if self._mapping is not None:
            return memoryview(self._mapping)[tensor.start : tensor.end]
        return memoryview(self._source.read(tensor.start, tensor.size))
