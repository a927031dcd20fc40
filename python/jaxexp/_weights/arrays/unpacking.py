"""Makes files of weights again from tensors that are elsewhere, such as in an archive."""

from __future__ import annotations

import os
from collections.abc import Callable

from jaxexp._errors import WeightsError
from jaxexp._weights.files import content, places, reading, writing

from .stored import StoredFile, WithDigests


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
                if not _is_there(path, file):
                    refuse_existing(path)
            found.append((path, number))
        return found

    def write(self, planned: list[tuple[str, int]], weights: WithDigests) -> int:
        """Writes the missing files of a program, and returns how many bytes were written."""
        written = 0
        sources = weights.sources()
        for path, number in planned:
            file = weights.table.files[number]
            if not _is_there(path, file):
                tensors = [s for s, t in zip(sources, weights.table.tensors, strict=True) if t.file == number]
                writing.write_again(path, tensors, file.size, file.content)
                written += file.size
        return written


def _is_there(path: str, file: StoredFile) -> bool:
    try:
        return file.is_same(reading.TensorFile(path, places.mapped(places.open_named(path))))
    except (WeightsError, OSError):
        return False
