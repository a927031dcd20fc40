"""The inputs of a pass over many artifacts: files, folders, archives and URLs, looked at when their turn comes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportTypeError
from jaxexp._fleet.archive.archive import Archive, Handle, matching, only, parts_of
from jaxexp._fleet.engine.engine import FILE, Input, Unusable
from jaxexp._fleet.places.folders import Folders
from jaxexp._fleet.places.source import MEMBER, Kind, is_archive, is_url, path_in, split
from jaxexp._kernel.artifact.words import meant
from jaxexp._kernel.io import remote

if TYPE_CHECKING:
    from jaxexp._fleet.archive.opened import OpenArchive

    Names: TypeAlias = tuple[str, ...] | None
    GivenToMany: TypeAlias = str | os.PathLike[str] | Archive | Handle

# The last bytes of an artifact, which have the digests of its content.
_TAIL = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A file, or an archive, and where it was found.

    Attributes:
        name: its path or URL, as the user writes it.
        order: how many places were found before it.
        inside: its path inside of the given folder; its last part if it was given by itself.
        archive: the archive, or a part of it; None for a file.
        size: the size of a file at a URL.
        version: the version of a file at a URL, as its storage reports it.
    """

    name: str
    order: int
    inside: str
    archive: Archive | None = None
    size: int | None = None
    version: str = ""


def places(given: Iterable[GivenToMany], function: str, folders: Folders | None = None) -> Iterator[Place | Unusable]:
    """The files and archives that a user gave to a function, in their order.

    Args:
        given: the artifacts.
        function: what messages call the function.
        folders: how to look into folders; None for the defaults.

    Raises:
        TypeError: a single artifact is given; or, while the iterator is used, one that other processes could not find.
    """
    if isinstance(given, (str, bytes, bytearray, memoryview, os.PathLike, Archive, Handle)):
        raise ExportTypeError(
            f"{function} takes many artifacts, in a list or another iterable, not {type(given)}: give it [...] for one"
        )
    every = itertools.chain.from_iterable(_of(one, folders or Folders(), function) for one in list(given))
    return itertools.starmap(_numbered, enumerate(every))


def _numbered(order: int, found: Place | Unusable) -> Place | Unusable:
    if isinstance(found, Unusable):
        return Unusable(found.name, found.error, Place(found.name, order, ""))
    return dataclasses.replace(found, order=order)


def _of(given: GivenToMany, folders: Folders, function: str) -> Iterator[Place | Unusable]:
    if isinstance(given, Archive):
        yield Place(given.name, 0, "", given)
    elif isinstance(given, Handle):
        yield Place(given.label, 0, "", only(given))
    elif isinstance(given, (str, os.PathLike)):
        text = os.fsdecode(given)
        try:
            yield from _at(text, folders)
        except (OSError, ImportError) as error:  # a folder cannot be read
            yield Unusable(text, error)
    else:
        raise ExportTypeError(
            f"{function} takes artifacts that other processes can find, too: paths, URLs, folders, "
            f"'archive.zip{MEMBER}member', Archives and Handles, not {type(given)}"
        )


def _at(text: str, folders: Folders) -> Iterator[Place | Unusable]:
    path, pattern = split(text)
    if pattern is not None:
        yield _archive(path, "", pattern)
    elif is_url(path) and path.endswith("/"):
        for url, kind, described in folders.files_behind(path):
            inside = url.removeprefix(path)
            yield _archive(url, inside) if kind is Kind.ARCHIVE else _remote(url, inside, described)
    elif not is_url(path) and os.path.isdir(path):
        for file, kind in folders.files(path):
            inside = file.relative_to(path).as_posix()
            yield _archive(str(file), inside) if kind is Kind.ARCHIVE else Place(str(file), 0, inside)
    elif is_archive(path):
        yield _archive(path, "")
    elif is_url(path):
        yield _remote(path, path_in(path).rpartition("/")[2] or "artifact")
    else:
        yield Place(path, 0, os.path.basename(path))


def _remote(url: str, inside: str, described: tuple[int, str] | None = None) -> Place:
    """A file at a URL. If its storage does not describe it, the reader of the file says why."""
    try:
        size, version = described or remote.described(url)
    except OSError:
        size, version = 0, uuid.uuid4().hex
    return Place(url, 0, inside, size=size, version=version)


def _archive(path: str, inside: str, pattern: str | None = None) -> Place | Unusable:
    """An archive, or only the members that a pattern matches."""
    name = path if pattern is None else f"{path}{MEMBER}{pattern}"
    try:
        archive = Archive.open(path)
        if pattern is not None:
            opened, archive = archive._opened, matching(archive, pattern)
            if not len(archive):
                said = f"{path!r} has no such member{meant(pattern, opened.names_around(pattern))}"
                return Unusable(name, FileNotFoundError(errno.ENOENT, said, name))
    except (DeserializationError, OSError, ImportError) as error:
        return Unusable(name, error)
    return Place(path, 0, inside, archive)


def inputs(
    given: Iterable[Place | Unusable], of_archive: Callable[[Place, OpenArchive, Names], Iterable[Input]]
) -> Iterator[Input | Unusable]:
    """The inputs of a pass. For an archive, `of_archive` makes them from its place, its open file and the names of the
    members.
    """
    for place in given:
        if isinstance(place, Unusable):
            yield place
        elif place.archive is None:
            yield _file_input(place)
        else:
            try:
                yield from of_archive(place, *parts_of(place.archive))
            except (DeserializationError, OSError) as error:
                yield Unusable(place.name, error, place)


def _file_input(place: Place) -> Input:
    """A file as an input: one unit."""
    path = place.name if is_url(place.name) else os.path.abspath(place.name)
    size, identity = _identity(path) if place.size is None else (place.size, [place.size, place.version])
    return Input(place.name, identity, (FILE, path, place.inside), range(1), lambda start, stop: [size], place)


def _identity(path: str) -> tuple[int, list[Any]]:
    """The size of a file, and a value that changes when its content does. The reader says why it cannot be read."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode):  # opening a pipe would wait for its writer
            with open(path, "rb") as file:
                file.seek(max(0, found.st_size - _TAIL))
                return found.st_size, [found.st_size, found.st_mtime_ns, _native.digest(file.read(_TAIL)).hex()]
    return 0, []
