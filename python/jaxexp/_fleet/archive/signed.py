"""An archive that somebody has to have signed: all of it is in memory, as it was compared with its digest."""

from __future__ import annotations

import os
from typing import Any

from jaxexp._kernel.io.sources import Storage
from jaxexp._signing.reading import SignedFiles, unnamed
from jaxexp._signing.signed_by import SignedBy

from .opened import Opened


def opened_signed(source: Any, by: SignedBy) -> Opened:
    """Opens a signed archive.

    Raises:
        SignatureError: it is not signed by whom it should be, or not what was signed.
        ExportError: it is not in a file on this machine.
        DeserializationError: it is signed, and no archive.
        OSError: it cannot be read.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise unnamed(f"{type(source).__name__}")
    path = os.fsdecode(source)
    if "://" in path:
        raise unnamed("what is behind a URL: copy it here with its signature")
    signed = SignedFiles(by)
    return Opened(_InMemory(path, signed.opened(path)), signed=signed)


class _InMemory(Storage):
    """The bytes of a file that was read at once. Other processes cannot have them, so there is no address."""

    def __init__(self, name: str, content: Any) -> None:
        self.name = name
        self.size = len(content)
        self.content = content

    def read(self, position: int, size: int) -> bytes:
        if self.content is None:
            raise ValueError(f"{self.name} is closed")
        found: bytes = self.content.read(position, size)
        return found

    def close(self) -> None:
        self.content = None
