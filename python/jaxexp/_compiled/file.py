"""Files of executables: records that are read, and records that are added at the end (schema/executables.fbs)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExecutablesError
from jaxexp._io.lock import locked, replacing_locked


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Code in a file.

    Attributes:
        conditions: all that has to be the same where the code is used.
        call: what is needed to call it.
        position: where the code is in the file.
        size: how many bytes it has.
        digest: of the code.
    """

    conditions: Mapping[str, str]
    call: Mapping[str, str]
    position: int
    size: int
    digest: bytes


class ExecutablesFile:
    """The records of a file. Their code is read when it is needed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Reads all records but their code.

        Raises:
            ExecutablesError: it is no file of executables, or it is damaged.
            OSError: it cannot be opened.
        """
        self.name = os.fsdecode(path)
        try:
            self._file = _native.FileBytes(path, in_parts=True)
            found, self.end = _native.read_executables(self._file)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, self.name) from None
        except DeserializationError as error:
            raise self._error(error) from None
        self.records = [Record(*fields) for fields in found]

    def code(self, record: Record) -> bytes:
        """The code of a record.

        Raises:
            ExecutablesError: it is damaged.
            OSError: it cannot be read.
        """
        try:
            code = self._file.read(record.position, record.size)
        except DeserializationError as error:
            raise self._error(error) from None
        if _native.digest(code) != record.digest:
            raise self._error(DeserializationError("code", "the bytes as they were written", "others"))
        return code

    def is_intact(self, record: Record) -> bool:
        """Whether the code of a record is as it was written."""
        try:
            return bool(self.code(record)) or not record.size
        except (ExecutablesError, OSError):
            return False

    def _error(self, error: DeserializationError) -> ExecutablesError:
        found = ExecutablesError(error.path, error.expected, error.found)
        found.file = self.name
        return found


def append(path: str | os.PathLike[str], conditions: Mapping[str, str], call: Mapping[str, str], code: bytes) -> None:
    """Adds a record to a file, or makes the file.

    Nothing in the file is overwritten. If the process dies meanwhile, the file has the records that it had.

    Raises:
        ExecutablesError: the file is something else, or damaged.
        ExportError: another process is changing it.
        OSError: it cannot be written.
    """
    parts = [
        _native.executable_head(dict(conditions), dict(call), code),
        code,
        bytes(_native.executable_padding(len(code))),
    ]
    if not os.path.exists(path):
        with replacing_locked(path) as file:
            _write(file, [_native.executables_head(), *parts])
        return
    with locked(path) as file:
        end = ExecutablesFile(path).end
        file.truncate(end)  # what is behind it was not finished
        file.seek(end)
        _write(file, parts)


def _write(file: IO[bytes], parts: Sequence[Any]) -> None:
    for part in parts:
        left = memoryview(part)
        while left:
            left = left[file.write(left) :]
