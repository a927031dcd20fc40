"""Passes that look at one artifact after the other: members of archives and files alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jaxexp._bulk.engine import Finding
from jaxexp._bulk.errors import unpacked
from jaxexp._bulk.work import Input, Part, Unusable
from jaxexp._errors import DeserializationError

from .given import Place
from .given import inputs as inputs_of
from .source import MEMBER

# An artifact takes some milliseconds, whatever its size; so many of them are a share.
SHARE_BYTES, UNIT_BYTES = 1 << 24, 1 << 18

Result = tuple[Place, str, Any]


def inputs(
    given: Iterable[Place | Unusable], prefix: Callable[[Place], str] = lambda place: ""
) -> Iterator[Input | Unusable]:
    """Files, and the members of archives.

    Args:
        given: the places.
        prefix: what stands before the names of an archive's members, for workers.
    """
    from jaxexp._archive.parts import members

    return inputs_of(given, lambda place, opened, names: [members(opened, names, place, prefix(place))])


def decoder(decoded: Callable[[Any], Any]) -> Callable[[Part, Any], list[Any]]:
    """Of a function that makes something of an artifact's result: the same for a part, with errors where they are."""

    def of_part(part: Part, results: Any) -> list[Any]:
        if len(results) != part.units:
            raise ValueError(len(results))
        return [unpacked(one) if isinstance(one, list) else decoded(one) for one in results]

    return of_part


def is_current(_: Part, found: list[Any]) -> bool:
    """Whether what a journal says still holds: what could not be read is tried again."""
    return not any(isinstance(one, (OSError, ImportError)) for one in found)


def results(finding: Finding) -> Iterator[Result]:
    """Each artifact of a finding: its place, its name, and what was found, or an error."""
    place: Any = finding.input.about
    if isinstance(finding.input, Unusable):
        yield place, finding.input.name, finding.input.error
        return
    part = finding.part
    assert part is not None
    names = list(_names(part.input, place, part))
    found = finding.found if finding.error is None else [finding.error] * len(names)
    for name, one in zip(names, found, strict=True):
        if isinstance(one, DeserializationError) and one.file is None:
            one.file = name
        yield place, name, one


def _names(one: Input, place: Place, part: Part) -> Iterator[str]:
    if place.archive is None:
        yield one.name
        return
    from jaxexp._archive.archive import parts_of

    opened, _ = parts_of(place.archive)
    for number in part.numbers:
        yield f"{one.name}{MEMBER}{opened.index.name(number)}"
