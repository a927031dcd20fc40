"""Sources of artifacts on a command line: files, members of archives, folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from jaxexp._errors import DeserializationError, ExportError
from jaxexp._fleet.places.folders import Folders
from jaxexp._fleet.places.source import MEMBER, Kind, Source, is_archive, split
from jaxexp._fleet.places.verify import checked
from jaxexp._kernel.artifact.words import near
from jaxexp._kernel.io.files import is_url

from .complaints import misused

if TYPE_CHECKING:
    from jaxexp._fleet.archive.archive import Archive
    from jaxexp._fleet.engine.engine import Unusable
    from jaxexp._fleet.passes.many import Place
    from jaxexp._policy.policy import Policy

T = TypeVar("T")

__all__ = ["MEMBER", "Folders", "Kind", "Source", "checked", "is_archive", "split"]


def artifacts(text: str, *, several: bool = True) -> Iterator[Source]:
    """The artifacts that FILE stands for: a file, a member of an archive, or all members that a pattern matches.

    Messages advise patterns only if several artifacts are welcome.
    """
    path, member = split(text)
    if member is not None:
        yield from (Source(f"{path}{MEMBER}{name}", handle=handle) for name, handle in part(path, member).items())
        return
    if is_archive(path):
        opened(path)  # fails if it is a ZIP file of something else
        all_of_it = f", or all of them as '{path}{MEMBER}*'" if several else ""
        raise click.UsageError(f"{path!r} is an archive: name a member as {path}{MEMBER}NAME{all_of_it}")
    if is_folder(path):
        raise click.ClickException(f"{path!r} is a folder: 'jaxexp ls {path}' lists what is in it; here, name a file")
    yield Source(text, path)


def artifact(text: str) -> Source:
    """The one artifact that FILE stands for."""
    found = list(artifacts(text, several=False))
    if len(found) != 1:
        raise click.UsageError(f"{text!r} stands for {len(found):,} artifacts: one is expected here")
    return found[0]


def is_folder(text: str) -> bool:
    """Whether FILE is a folder, on this machine or behind a URL."""
    return text.endswith("/") if is_url(text) else os.path.isdir(text)


def stands_for_all(text: str) -> bool:
    """Whether FILE is a folder or an archive, and so stands for everything in it."""
    path, member = split(text)
    return member is None and (is_folder(path) or is_archive(path))


def in_folder(folder: str, folders: Folders, command: str) -> Iterator[Source | Unusable]:
    """The artifacts in a folder, and the members of the archives in it; or the members of an archive."""
    from jaxexp._fleet.engine.engine import Unusable

    found, _ = given([folder], folders, command)
    for place in found:
        if isinstance(place, Unusable):
            yield place
        elif place.archive is None:
            yield Source(place.name, place.name)
        else:
            try:
                handles = list(place.archive.values())
            except (DeserializationError, OSError) as error:  # the index is read when it is needed
                yield Unusable(place.name, error)
                continue
            yield from (Source(handle.label, handle=handle) for handle in handles)


def read_each(sources: Iterable[Source | Unusable], read: Callable[[Source], T]) -> Iterator[tuple[str, T | Exception]]:
    """The name of each source, and what `read` returns for it, or its error if it cannot be read."""
    for one in sources:
        try:
            if not isinstance(one, Source):
                raise one.error
            yield one.name, read(one)
        except (ExportError, OSError, ImportError) as error:
            yield one.name, error


def part(path: str, pattern: str | None) -> Archive:
    """An archive, or the slice of one that a pattern matches; a name is a pattern for itself."""
    return part_of(opened(path), path, pattern)


def part_of(archive: Archive, path: str, pattern: str | None) -> Archive:
    """The same for an archive that is open."""
    from jaxexp._fleet.archive.archive import matching

    found = archive if pattern is None else matching(archive, pattern)
    if pattern is not None and not len(found):
        raise no_member(path, pattern, archive._opened.names_around(pattern))
    return found


def no_member(path: str, pattern: str, names: Sequence[str]) -> click.ClickException:
    """The error for a pattern that matches no member of an archive with these names."""
    similar = " or ".join(map(repr, near(pattern, names)))
    advice = f"did you mean {similar}?" if similar else f"'jaxexp ls {path}' lists what there is"
    return click.ClickException(f"no member {pattern!r} in {path!r}: {advice}")


def opened(path: str) -> Archive:
    from jaxexp._fleet.archive.archive import Archive

    return Archive.open(path)


def given(paths: Sequence[str], folders: Folders, command: str) -> tuple[list[Place | Unusable], int]:
    """The inputs of a pass, and how many artifacts they hold."""
    from jaxexp._fleet.engine.engine import Unusable
    from jaxexp._fleet.passes.many import places

    found = list(places(paths, command, folders))
    return found, sum(1 if isinstance(one, Unusable) or one.archive is None else len(one.archive) for one in found)


def policy(path: str | None) -> Policy | None:
    """The policy of `--policy`. This imports JAX."""
    if path is None:
        return None
    from jaxexp._policy.policy import Policy

    with misused("--policy "):
        return Policy.from_toml(path)
