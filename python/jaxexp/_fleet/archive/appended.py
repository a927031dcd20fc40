"""An archive while it is appended to: its file is locked, and stays as it was unless the append completes."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._kernel.io import lock
from jaxexp._kernel.io.sources import open_source

from .opened import Opened


class Appended:
    """An archive's file for writing, its members, and its end. After an exception the file is as it was, unless the new
    section was published.

    Attributes:
        file: the file.
        records: its members.
        end: where the archive ends.
        is_published: whether readers may have seen the new section.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._lock = lock.locked(path)
        self.records = _native.ArchiveRecords()
        self.is_published = False

    def __enter__(self) -> Appended:
        self.file = self._lock.__enter__()
        try:
            with open_for_writing(self._path) as opened:
                refuse_unknown_rest(opened)
                with opened.placed():
                    self.records.take(opened.index)
                self.end = opened.end
            self.file.truncate(self.end)  # an earlier append was interrupted
        except BaseException as error:
            self._lock.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if error is not None and not self.is_published:
                self.file.truncate(self.end)
        finally:
            self._lock.__exit__(kind, error, trace)


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
            error = DeserializationError(
                "",
                f"an archive that ends at byte {opened.end}, with nothing behind it but what an append left",
                f"{opened.unfinished_bytes} bytes of something else; cut them off if nobody needs them",
            )
            error.file = opened.source.name
            raise error
        position += part


def open_for_writing(path: str | os.PathLike[str]) -> contextlib.closing[Opened]:
    """An archive that its caller is about to change or to write again."""
    return contextlib.closing(Opened(open_source(path, {})))
