"""The files beside an artifact that a result depends on, as journals have them: name, size and version of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import ExportError
from jaxexp._fleet.places.verify import beside as path_beside
from jaxexp._kernel.artifact.opened import tables_of
from jaxexp._kernel.io.version import stamp

if TYPE_CHECKING:
    from jaxexp._fleet.engine.work import Part
    from jaxexp._fleet.places.source import Source

Stamped = tuple[tuple[str, int, int | str], ...]


def beside(source: Source) -> Stamped:
    """The files of weights and cases beside an artifact, as they are now; a member of an archive has none.

    Raises:
        DeserializationError: the artifact is damaged.
        OSError: it cannot be read.
    """
    if source.path is None:
        return ()
    with source.named():
        tables = tables_of(_native.Artifact(source.read()))
    return stamped(source.path, [name for files, *_ in tables for name, *_ in files])


def stamped(path: str, names: Iterable[str]) -> Stamped:
    """The files as they are now. One that is not there never stays unchanged."""

    def of(name: str) -> tuple[int, int | str]:
        try:
            return stamp(path_beside(path, name))
        except OSError:
            return -1, ""

    return tuple((name, *of(name)) for name in names)


def of_json(said: Iterable[Any]) -> Stamped:
    """What a worker or a journal says of them."""
    return tuple((str(name), size, version) for name, size, version in said)


def are_unchanged(part: Part, files: Stamped) -> bool:
    """Whether the files beside an artifact are still these."""
    from jaxexp._weights.files.places import check_name

    path = part.input.place[1]
    try:
        for name, *_ in files:  # a journal may say anything
            check_name(name)
        return all(stamp(path_beside(path, name)) == (size, version) for name, size, version in files)
    except (ExportError, OSError, ImportError):
        return False
