"""Where artifacts are read from: files, members of archives, folders."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxexp._artifact.words import counted
from jaxexp._sources import verify
from jaxexp._sources.kinds import Kind, kind_in_folder
from jaxexp._sources.source import MEMBER, Source, is_archive, split
from jaxexp._sources.verify import Checked

if TYPE_CHECKING:
    from jaxexp._archive.archive import Archive

__all__ = ["MEMBER", "Checked", "Kind", "Source", "checked", "is_archive", "split"]

_WEIGHTS = (".safetensors", ".safetensors.index.json")


def checked(source: Source) -> Checked:
    """Verifies an artifact: structure, digests, and the bytecode of its modules.

    Raises:
        DeserializationError: it is damaged; the error names it.
        OSError: it cannot be read.
    """
    return verify.checked(source, source.mapped)


def artifacts(text: str, *, all_members: bool = False) -> Iterator[Source]:
    """What FILE on a command line stands for: a file, a member of an archive, or all that a pattern matches.

    Args:
        text: FILE.
        all_members: whether an archive stands for all of its members.

    Raises:
        click.ClickException: there is no such member, or an archive is named without one.
    """
    path, member = split(text)
    if member is None:
        if not is_archive(path):
            if os.path.isdir(path):
                raise click.ClickException(
                    f"{path!r} is a folder: 'jaxexp verify' takes folders; here, name files, as in {path}/*.jaxexp"
                )
            yield Source(text, path)
            return
        if not all_members:
            opened(path)  # or it is a ZIP file of something else
            raise click.UsageError(f"{path!r} is an archive: name a member as {path}{MEMBER}NAME, or * for all")
    yield from members(path, member)


def artifact(text: str) -> Source:
    """The one artifact that FILE stands for."""
    found = list(artifacts(text))
    if len(found) != 1:
        raise click.UsageError(f"{text!r} stands for {len(found):,} artifacts: one is expected here")
    return found[0]


def members(path: str, pattern: str | None) -> Iterator[Source]:
    """Members of an archive, in the order of their names; all of them without a pattern."""
    archive = opened(path)
    if pattern is not None and pattern in archive:
        yield Source(f"{path}{MEMBER}{pattern}", handle=archive[pattern])
        return
    for name, handle in part(path, pattern).items():
        yield Source(f"{path}{MEMBER}{name}", handle=handle)


def part(path: str, pattern: str | None) -> Archive:
    """An archive, or the slice of one that a pattern matches; a name is a pattern for itself.

    Raises:
        click.ClickException: there is no such member.
    """
    archive = opened(path)
    if pattern is None:
        return archive
    literal = "".join(f"[{c}]" if c in "*?[" else c for c in pattern)
    found = archive.glob(literal if pattern in archive else pattern)
    if not len(found):
        raise click.ClickException(f"no member {pattern!r} in {path!r}: 'jaxexp ls {path}' lists what there is")
    return found


def opened(path: str) -> Archive:
    """An archive, for reading."""
    from jaxexp._archive.archive import Archive

    return Archive.open(path)


@dataclasses.dataclass(frozen=True)
class Folders:
    """How commands look into folders, and what they leave out there.

    Attributes:
        include: patterns for the names of files; none for all that are artifacts or archives.
        recursive: whether to look into folders inside.
        skipped: the files that were left out, because they are neither.
    """

    include: tuple[str, ...]
    recursive: bool
    skipped: list[str] = dataclasses.field(default_factory=list)

    def files(self, folder: str) -> Iterator[tuple[Path, Kind]]:
        """The artifacts and archives in a folder, in the order of their names; nothing that is hidden, and no files of
        weights, which belong to the artifacts beside them.

        Raises:
            OSError: a folder cannot be read.
        """
        for entry in sorted(Path(folder).iterdir()):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if self.recursive and not entry.is_symlink():
                    yield from self.files(str(entry))
            elif not self.include or any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in self.include):
                if (kind := self._kind(entry)) is None:
                    self.skipped.append(str(entry))
                else:
                    yield entry, kind

    def _kind(self, entry: Path) -> Kind | None:
        path = str(entry)
        if path.endswith(_WEIGHTS):
            return None
        if self.include:  # the user says what they are
            return Kind.ARCHIVE if is_archive(path) else Kind.ARTIFACT
        if entry.exists() and not entry.is_file():  # a pipe, a device
            return None
        try:
            return kind_in_folder(path)
        except OSError:  # which whoever reads it will report
            return Kind.ARTIFACT

    def used(self, files: Iterable[str]) -> None:
        """Files that were looked at all the same, for an artifact that they belong to."""
        used = set(files)
        self.skipped[:] = [file for file in self.skipped if file not in used]

    def said(self) -> str:
        """As in "; 3 other files skipped", for the end of a line."""
        return f"; {counted(len(self.skipped), 'other file')} skipped" if self.skipped else ""


def folder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that look into folders: they make one argument, `folders`."""

    @click.option(
        "-r/-R",
        "--recursive/--no-recursive",
        default=True,
        show_default=True,
        help="Whether to look into the folders inside of folders.",
    )
    @click.option(
        "--include",
        multiple=True,
        metavar="GLOB",
        help="From folders, take the files with such names, whatever they are but weights. Without this, take "
        "artifacts, and archives where the command takes any.",
    )
    @functools.wraps(command)
    def with_folders(*args: Any, recursive: bool, include: tuple[str, ...], **kwargs: Any) -> Any:
        return command(*args, folders=Folders(include, recursive), **kwargs)

    return with_folders
