"""The files beside an artifact that a result depends on, as journals have them: name, size and version of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jaxexp._errors import ExportError
from jaxexp._fleet.places.verify import beside
from jaxexp._kernel.io.version import stamp

if TYPE_CHECKING:
    from jaxexp._fleet.engine.work import Part

Stamped = tuple[tuple[str, int, int | str], ...]


def stamped(path: str | None, names: Iterable[str]) -> Stamped:
    """The files as they are now; an artifact without a path has none. One that is not there never stays unchanged."""
    if path is None:
        return ()

    def of(name: str) -> tuple[int, int | str]:
        try:
            return stamp(beside(path, name))
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
        return all(stamp(beside(path, name)) == (size, version) for name, size, version in files)
    except (ExportError, OSError, ImportError):
        return False
