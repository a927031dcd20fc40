"""Makes files of weights again from tensors that are elsewhere, such as in an archive."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from jaxexp._errors import WeightsError
from jaxexp._weights.files import content, places, reading, writing
from jaxexp._weights.files.writing import Source

from .stored import StoredFile, WithDigests

# The identities of files that were written here, or compared with tensors, and where these are: many programs may need
# one file.
_whole: set[object] = set()


class Unpacking:
    """The files that programs need beside them, each written once in a folder."""

    def __init__(self) -> None:
        self._planned: dict[str, StoredFile] = {}

    def plan(self, folder: str, weights: WithDigests, refuse_existing: Callable[[str], None]) -> list[tuple[str, int]]:
        """Where the files of a program will be: each path, with the number of the file in the program's table.

        Programs from different places may have different files with the same name. All but the first get their second
        names, under which their programs find them. `refuse_existing` is called with each path of a file that would be
        replaced.
        """
        found = []
        for number, file in enumerate(weights.table.files):
            places.check_name(file.name)
            path = os.path.join(folder, file.name)
            if self._planned.get(path, file) != file:
                path = os.path.join(folder, content.second_name(file.name, file.content))
            if path not in self._planned:
                self._planned[path] = file
                if not _says_so(path, file):
                    refuse_existing(path)
            found.append((path, number))
        return found

    def write(self, planned: list[tuple[str, int]], weights: WithDigests) -> int:
        """Writes the missing and the damaged files of a program, and returns how many bytes were written."""
        written = 0
        sources = weights.sources()
        for path, number in planned:
            file = weights.table.files[number]
            tensors = [s for s, t in zip(sources, weights.table.tensors, strict=True) if t.file == number]
            if not _is_there(path, file, tensors):
                writing.write_again(path, tensors, file.size, file.content)
                _whole.add(_key(_opened(path), tensors))
                written += file.size
        return written


def _says_so(path: str, file: StoredFile) -> bool:
    """Whether there is a file that says that it is this one."""
    try:
        return file.is_same(_opened(path))
    except (WeightsError, OSError):
        return False


def _is_there(path: str, file: StoredFile, tensors: list[Source]) -> bool:
    """Whether there is this file, and it is whole.

    Raises:
        WeightsError: it has other tensors with the same digests, which somebody can make.
    """
    try:
        found = _opened(path)
        if not file.is_same(found):
            return False
        if (key := _key(found, tensors)) in _whole:
            return True
        for tensor in tensors:
            assert tensor.digest is not None  # a table has it
            reading.check_digest(found, found.header.tensors[tensor.name], tensor.digest)
    except (WeightsError, OSError, KeyError):
        return False
    for tensor in tensors:
        if content.sha256(tensor.pieces()) != content.sha256(found.pieces_of(found.header.tensors[tensor.name])):
            other = "one of the same digest with other bytes: unpack into another folder"
            raise WeightsError(tensor.name, "the tensor that is to be written", other, file=path)
    if all(tensor.origin is not None for tensor in tensors):
        _whole.add(key)
    return True


def _key(found: reading.TensorFile, tensors: Iterable[Source]) -> tuple[object, ...]:
    return found.identity, *(tensor.origin for tensor in tensors)


def _opened(path: str) -> reading.TensorFile:
    return reading.TensorFile(path, places.FileInPieces(places.open_named(path)))
