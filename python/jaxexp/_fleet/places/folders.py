"""Folders: finds the artifacts and archives in them."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jaxexp._errors import ExportError
from jaxexp._kernel.artifact.words import counted
from jaxexp._kernel.io.files import is_url
from jaxexp._kernel.io.sources import files_in

from .source import SUFFIXES, Kind, is_archive, kind_in_folder

_WEIGHTS = (".safetensors", ".safetensors.index.json")
# How many files behind URLs are looked into at the same time, and for how many of them the results may wait.
_THREADS, _AHEAD = 32, 1024


@dataclasses.dataclass(frozen=True)
class Folders:
    """How to look into folders, and what was left out there.

    Attributes:
        include: patterns for the names of files; none for all artifacts and archives.
        recursive: whether to look into folders inside.
        without: a folder inside that is left out, because results are written there; empty for none.
        skipped: the files that were left out, because they are not artifacts or archives.
        hidden: the files and folders that were left out, because their names begin with a dot.
    """

    include: tuple[str, ...] = ()
    recursive: bool = True
    without: str = ""
    skipped: list[str] = dataclasses.field(default_factory=list)
    hidden: list[str] = dataclasses.field(default_factory=list)

    def files(self, folder: str) -> Iterator[tuple[Path, Kind]]:
        """The artifacts and archives in a folder, sorted by name. Hidden files are left out, and so are files of
        weights, which belong to the artifacts beside them.
        """
        left = sorted(Path(folder).iterdir(), reverse=True)
        while left:
            entry = left.pop()
            if entry.name.startswith("."):
                if self.recursive or not entry.is_dir():
                    self.hidden.append(str(entry))
            elif entry.is_dir():
                is_left_out = self.without and os.path.exists(self.without) and entry.samefile(self.without)
                if self.recursive and not entry.is_symlink() and not is_left_out:
                    left += sorted(entry.iterdir(), reverse=True)
            elif self._is_asked_for(entry.name):
                if (kind := self._kind(str(entry))) is None:
                    self.skipped.append(str(entry))
                else:
                    yield entry, kind

    def files_of(self, path: str) -> list[str]:
        """The artifacts and archives in a folder, which must have some; or the file."""
        found = [str(file) for file, _ in self.files(path)] if os.path.isdir(path) else [path]
        if not found:
            raise ExportError(f"there is no artifact in {path!r}{self.said()}")
        return found

    def files_behind(self, url: str) -> Iterator[tuple[str, Kind, tuple[int, str] | None]]:
        """The same for a folder behind a URL that ends in a slash, and what `files_in` says about each file. A
        request for the first bytes tells what a file is, unless its name does.
        """
        found: list[tuple[str, tuple[int, str] | None]] = []
        for file, described in files_in(url, self.recursive):
            *parents, name = file.removeprefix(url).split("/")
            if parents and not self.recursive:
                continue
            if any(part.startswith(".") for part in (*parents, name)):
                self.hidden.append(file)
            elif self._is_asked_for(name):
                found.append((file, described))
        with ThreadPoolExecutor(_THREADS) as threads:
            for at in range(0, len(found), _AHEAD):
                several = found[at : at + _AHEAD]
                kinds = threads.map(self._kind, (file for file, _ in several))
                for (file, described), kind in zip(several, kinds, strict=True):
                    if kind is None:
                        self.skipped.append(file)
                    else:
                        yield file, kind, described

    def _is_asked_for(self, name: str) -> bool:
        return not self.include or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.include)

    def _kind(self, path: str) -> Kind | None:
        """The kind of a file or URL; None if it is left out."""
        is_behind = is_url(path)
        if path.endswith(_WEIGHTS) or (is_behind and "?" in path):  # pages that list a folder have links to themselves
            return None
        if not (self.include or (is_behind and path.endswith(SUFFIXES))):  # else the user or the name decides
            if not is_behind and os.path.exists(path) and not os.path.isfile(path):  # a pipe, a device
                return None
            with contextlib.suppress(OSError):  # the reader of the file reports it
                return kind_in_folder(path)
        return Kind.ARCHIVE if is_archive(path) else Kind.ARTIFACT

    def used(self, files: Iterable[str]) -> None:
        """Takes files off the lists of those that were left out, because an artifact needs them."""
        used = set(files)
        for left_out in (self.skipped, self.hidden):
            left_out[:] = [file for file in left_out if file not in used]

    def said(self) -> str:
        """As in "; 3 other files and 1 hidden file skipped", for the end of a line."""
        kinds = (self.skipped, "other file"), (self.hidden, "hidden file")
        said = " and ".join(counted(len(files), what) for files, what in kinds if files)
        return f"; {said} skipped" if said else ""
