"""Files of executables: records that are read, and records that are added at the end (schema/executables.fbs)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any, TypeAlias

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExecutablesError
from jaxexp._kernel.artifact.words import counted
from jaxexp._kernel.io import files
from jaxexp._kernel.io.lock import locked
from jaxexp._kernel.io.other_files import CODE, HEAD, instead_of_executables


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Code in a file: what it was compiled for, what is needed to call it, and where it is."""

    conditions: Mapping[str, str]
    call: Mapping[str, str]
    position: int
    size: int
    digest: bytes


Entry: TypeAlias = tuple[Mapping[str, str], bytes]  # what a call needs, and the code


class ExecutablesFile:
    """The records of a file. Their code is read when it is needed."""

    def __init__(self, path: str | os.PathLike[str], file: _native.FileBytes | None = None) -> None:
        """Reads all records but their code; from `file`, if the file was read already."""
        self.name = files.path_here(path, "executables=")
        self._file, self.records, end = _records_of(path, file=file)
        self.unfinished_bytes = len(self._file) - end  # of a last record, which does not count and will be replaced

    def check(self) -> None:
        """Reads all code; an ExecutablesError if some is damaged, or if the last record was not finished."""
        for record in self.records:
            self.code(record)
        if self.unfinished_bytes:
            found = f"{counted(self.unfinished_bytes, 'byte')} of one: the file was cut, or its writer did not finish"
            raise _error(DeserializationError(f"records[{len(self.records)}]", "a whole record", found), self.name)

    def code(self, record: Record) -> bytes:
        """The code of a record; an ExecutablesError if it is damaged."""
        return _code_of(self._file, record, self.name)


class GrowingFile:
    """A file that this process and others add code to. Each record is read once.

    It can be used in place of its path, such as in `Exported.precompile`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = files.path_here(path, "into=")
        self._identity: tuple[int, int] | None = None
        self._end = 0
        self._records: dict[frozenset[tuple[str, str]], list[Record]] = {}

    def __fspath__(self) -> str:
        return self.path

    def finding(self, conditions: Mapping[str, str]) -> contextlib.AbstractContextManager[Entry | None]:
        """As `CompileCache.finding`, but nobody waits for this process to compile code."""
        return contextlib.nullcontext(self.find(conditions))

    def find(self, conditions: Mapping[str, str]) -> Entry | None:
        """What a call needs, with the code for these conditions; None if there is no intact code."""
        if _has_nothing(self.path):
            return None
        file = self._read_what_is_new()
        for record in reversed(self._records.get(_key(conditions), [])):
            with contextlib.suppress(ExecutablesError, OSError):
                return record.call, _code_of(file, record, self.path)
        return None

    def put(self, conditions: Mapping[str, str], call: Mapping[str, str], code: bytes) -> None:
        """Adds a record, or creates the file; an empty file counts as none.

        Nothing in the file is overwritten. If the process dies meanwhile, the file keeps its records. An ExportError if
        another process keeps changing it.
        """
        parts = [
            _native.executable_head(dict(conditions), dict(call), code),
            code,
            bytes(_native.executable_padding(len(code))),
        ]
        if not os.path.exists(self.path):
            with contextlib.suppress(FileExistsError):  # another process creates it meanwhile
                with files.replacing(self.path, CODE, only_new=True) as file:
                    _write(file, [_native.executables_head(), *parts])
                return
        with locked(self.path, patience=PATIENCE) as file:
            if _has_nothing(self.path):  # such as a new temporary file
                self._identity, self._end = None, 0
                parts = [_native.executables_head(), *parts]
            else:
                self._read_what_is_new()
            file.truncate(self._end)  # anything behind it was not finished
            file.seek(self._end)
            _write(file, parts)

    def _read_what_is_new(self) -> _native.FileBytes:
        status = os.stat(self.path)
        identity = status.st_dev, status.st_ino
        if self._identity != identity or status.st_size < self._end:  # another file took its place
            self._records.clear()
            self._identity, self._end = identity, 0
        file, records, self._end = _records_of(self.path, self._end)
        for record in records:
            self._records.setdefault(_key(record.conditions), []).append(record)
        return file


_OTHERS = "different bytes; delete the file, and precompile again"
PATIENCE = 30  # seconds for which others may write: no process holds the lock while it compiles


def _has_nothing(path: str) -> bool:
    return not os.path.exists(path) or os.path.getsize(path) == 0


def _key(conditions: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(conditions.items())


def _records_of(
    path: str | os.PathLike[str], position: int = 0, file: _native.FileBytes | None = None
) -> tuple[_native.FileBytes, list[Record], int]:
    """A file, its records from a position on, and where they end."""
    try:
        if file is None:
            file = _native.FileBytes(path, in_parts=True)
        found, end = _native.read_executables(file, position)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fsdecode(path)) from None
    except DeserializationError as error:
        if file is not None and not position:
            error.found = instead_of_executables(error.found, file.read(0, min(HEAD, len(file))))
        raise _error(error, path) from None
    return file, [Record(*fields) for fields in found], end


def _code_of(file: _native.FileBytes, record: Record, path: str | os.PathLike[str]) -> bytes:
    try:
        code = file.read(record.position, record.size)
    except DeserializationError as error:
        raise _error(error, path) from None
    if _native.digest(code) != record.digest:
        raise _error(DeserializationError("code", "the bytes as they were written", _OTHERS), path)
    return code


def _error(error: DeserializationError, path: str | os.PathLike[str]) -> ExecutablesError:
    return ExecutablesError(error.path, error.expected, error.found, file=os.fsdecode(path))


def _write(file: IO[bytes], parts: Sequence[Any]) -> None:
    for part in parts:
        left = memoryview(part)
        while left:
            left = left[file.write(left) :]
