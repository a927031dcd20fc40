"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import HEAD, kind_of_ours

if TYPE_CHECKING:
    from jaxexp._fleet.archive.writer import ArchiveWriter


def write(path: str, data: Any, *, force: bool) -> None:
    """Writes a file whole or not at all; replaces another one only with `force`, even one that has just appeared."""
    if not force and not files.is_stream(path):
        refuse_existing(path)
    files.replace(path, [data], kind_of_ours(bytes(memoryview(data)[:HEAD])) or "another file", only_new=not force)


def refuse_to_replace(path: str, what: str, *, force: bool) -> None:
    """Refuses what is there before `what` is made, but for a pipe or a device, which is written to. With `force`, only
    a file of another kind is refused, as where the file is written.
    """
    if not force and not files.is_stream(path):
        refuse_existing(path)
    files.refuse_to_lose(path, what)


def refuse_existing(path: str) -> None:
    if os.path.lexists(path):
        raise click.ClickException(f"{path!r} exists: --force replaces it")


def archive(path: str, append: bool, whole: bool = False) -> ArchiveWriter:
    """A writer of a new archive, or of one that exists."""
    from jaxexp._fleet.archive.archive import Archive

    return (Archive.append if append else Archive.create)(path, share_modules=not whole)


def refuse_members(path: str, names: Iterable[str], writer: ArchiveWriter) -> None:
    if (there := next((name for name in names if name in writer), None)) is not None:
        raise click.ClickException(f"{there!r} is in {path!r} already: --force replaces it")


class Several:
    """Files of one run that must not replace each other: paths may differ only in case, or one may be a link."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, int], tuple[str, object]] = {}  # by identity: the path, and whose file it is

    def check(self, path: str, owner: object) -> None:
        """Refuses a path that has the file of another owner, or something that is no file."""
        try:
            found = os.stat(path)
        except OSError:  # there is none, or its writer says why not
            return
        other, whose = self._written.get((found.st_dev, found.st_ino), (path, owner))
        if whose != owner:
            raise click.ClickException(f"{path!r} is the file {other!r}, which was just written: use another folder")
        if not stat.S_ISREG(found.st_mode):
            raise click.ClickException(f"{path!r} is not a regular file, so it is not replaced")

    def add(self, path: str, owner: object) -> None:
        found = os.stat(path)
        self._written[found.st_dev, found.st_ino] = path, owner
