"""One process at a time."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from typing import IO

from jaxexp._errors import ExportError

if sys.platform == "win32":
    import msvcrt

    def _acquire(file: IO[bytes]) -> None:
        file.seek(1 << 62)  # a byte that nobody reads: on Windows, one that is locked cannot be
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _acquire(file: IO[bytes]) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Generator[IO[bytes]]:
    """A file for reading and writing, unbuffered, and locked against other processes.

    Raises:
        ExportError: somebody else has it.
        OSError: it cannot be opened.
    """
    while True:
        with open(path, "r+b", buffering=0) as file:
            try:
                _acquire(file)
            except OSError as error:
                raise ExportError(
                    f"{os.fsdecode(path)!r} is being changed by somebody else at the moment; try again later"
                ) from error
            # Another file may have taken its place between the two.
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                yield file
                return
