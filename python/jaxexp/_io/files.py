"""Files: mapped to be read, and written so that a reader sees the old bytes or all of the new ones."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Generator, Sequence
from typing import IO, Any

from jaxexp._errors import DeserializationError


def mapped(path: str | os.PathLike[str]) -> mmap.mmap:
    """The bytes of an artifact's file.

    Raises:
        DeserializationError: it is empty.
        OSError: it cannot be opened.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            error = DeserializationError("", "a serialized Exported", "an empty file")
            error.file = os.fsdecode(path)
            raise error
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def replace(path: str | os.PathLike[str], parts: Sequence[Any]) -> None:
    """Writes the parts of a file, one after the other; a pipe or a device is written to, not replaced."""
    final = os.path.realpath(os.fsdecode(path))
    if os.path.exists(final) and not stat.S_ISREG(os.stat(final).st_mode):
        with open(final, "wb") as file:
            file.writelines(parts)
        return
    with replacing(path) as file:
        file.writelines(parts)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Generator[IO[bytes]]:
    """A new file, for writing and reading, that takes the place of `path` at the end, unless there is an exception.

    It is made in the same folder; a file that was there before keeps its permissions.
    """
    final = os.path.realpath(os.fsdecode(path))
    replaced = os.stat(final) if os.path.exists(final) else None
    temporary = os.path.join(os.path.dirname(final), f".{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "x+b") as file:
            yield file
            if replaced is not None:
                os.chmod(temporary, stat.S_IMODE(replaced.st_mode))
        os.replace(temporary, final)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename == temporary:
            # Nobody knows the temporary file: name the folder where that is missing, else what was to be written.
            named = os.path.dirname(final) if isinstance(error, FileNotFoundError) else os.fsdecode(path)
            raise OSError(error.errno, error.strerror, named) from None
        raise
