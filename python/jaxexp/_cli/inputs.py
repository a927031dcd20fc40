"""Where artifacts are read from: files, members of archives, folders."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxexp._errors import DeserializationError
from jaxexp._io.files import mapped, named_in_errors

if TYPE_CHECKING:
    from jaxexp._archive.archive import Archive

MEMBER = "::"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_WEIGHTS = (".safetensors", ".safetensors.index.json")


@dataclasses.dataclass(frozen=True)
class Source:
    """An artifact, and how to get at its bytes.

    Attributes:
        name: as the user would write it.
        path: its file; None for a member of an archive.
        handle: its member; None for a file.
    """

    name: str
    path: str | None = None
    handle: Any = None

    def size(self) -> int:
        """How many bytes there are."""
        return int(self.handle.size) if self.path is None else os.path.getsize(self.path)

    def read(self) -> Any:
        """The bytes of the artifact: a file is mapped.

        Raises:
            DeserializationError: the file is empty; the error names it.
            OSError: it cannot be opened.
        """
        if self.path is None:
            return self.handle.read()
        with named_in_errors(self.path):
            return mapped(self.path)

    def stored_weights(self) -> Any:
        """The weights of a member, where its archive has them; None of a file."""
        return None if self.handle is None else self.handle.stored_weights()


@dataclasses.dataclass(frozen=True)
class Checked:
    """An artifact after all of its bytes were verified.

    Attributes:
        buffer: its bytes.
        has_digests: whether it has digests of its own, by which any damage is found.
    """

    buffer: Any
    has_digests: bool


def checked(source: Source) -> Checked:
    """Verifies an artifact: structure, digests, and the bytecode of its modules.

    Raises:
        DeserializationError: it is damaged; the error names it.
        OSError: it cannot be read.
    """
    from jaxexp import _native
    from jaxexp._artifact.chain import chain

    with named_in_errors(source.name):
        buffer = source.read()
        if source.handle is not None and (found := _native.digest(buffer).hex()) != source.handle.digest:
            raise DeserializationError("", f"an artifact of digest {source.handle.digest}", f"one of {found}")
        artifact = _native.Artifact(buffer)
        for link in chain(artifact):
            _native.check_bytecode(link.module())
    return Checked(buffer, artifact.trailer() is not None)


def artifacts(text: str) -> Iterator[Source]:
    """What FILE on a command line stands for: a file, a member of an archive, or all that a pattern matches.

    Raises:
        click.ClickException: there is no such member, or an archive is named without one.
    """
    path, member = split(text)
    if member is None:
        if is_archive(path):
            raise click.ClickException(f"{path!r} is an archive: name a member as {path}{MEMBER}NAME, or * for all")
        yield Source(text, path)
        return
    yield from members(path, member)


def artifact(text: str) -> Source:
    """The one artifact that FILE stands for."""
    found = list(artifacts(text))
    if len(found) != 1:
        raise click.ClickException(f"{text!r} stands for {len(found):,} artifacts: one is expected here")
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


def split(text: str) -> tuple[str, str | None]:
    """A path and the name of a member, if there is one. A file that has the whole text as its name is a file."""
    path, found, member = text.rpartition(MEMBER)
    # URLs of fsspec are chained by the same two colons, as in simplecache::https://...
    if not found or not path or "://" in member or os.path.lexists(text):
        return text, None
    return path, member


def is_archive(path: str) -> bool:
    """Whether a path leads to an archive, by the first bytes of the file, or by the end of a URL."""
    if "://" in path:
        return path.endswith(".zip")
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) in _ZIP


def files(folder: Path, include: tuple[str, ...], *, recursive: bool) -> Iterator[Path]:
    """The files in a folder in the order of their names, without those that are hidden, and without files of weights,
    which belong to the artifacts beside them.

    Args:
        folder: where to look.
        include: patterns for their names; none for all.
        recursive: whether to look into folders inside.
    """
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if recursive and not entry.is_symlink():
                yield from files(entry, include, recursive=True)
        elif not entry.name.endswith(_WEIGHTS) and any(
            fnmatch.fnmatchcase(entry.name, pattern) for pattern in include or ["*"]
        ):
            yield entry
