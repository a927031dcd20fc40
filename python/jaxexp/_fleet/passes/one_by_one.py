"""Passes that look at one artifact after another: members of archives and files alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._errors import ChangedArtifactError, DeserializationError, WeightsError
from jaxexp._fleet.archive.archive import parts_of
from jaxexp._fleet.archive.handle import Handle
from jaxexp._fleet.archive.parts import input_of, opened_in_worker
from jaxexp._fleet.engine import work
from jaxexp._fleet.engine.engine import Finding, Task, findings
from jaxexp._fleet.engine.errors import packed, unpacked
from jaxexp._fleet.engine.work import FILE, OF_ARTIFACTS, Input, Part, Parts, Unusable
from jaxexp._fleet.places.source import Source

from .given import Place
from .given import inputs as inputs_of

if TYPE_CHECKING:
    from jaxexp._fleet.archive.opened import Opened
    from jaxexp._fleet.engine.crew import Means

    from .given import Names

# An artifact takes some milliseconds, whatever its size; this many are a share.
_SHARE_BYTES, _UNIT_BYTES = 1 << 24, 1 << 18

# Errors that may be gone while the artifact is the same.
_ELSEWHERE = (OSError, ImportError, WeightsError, ChangedArtifactError)

Result = tuple[Place, str, Any]


def inputs(
    given: Iterable[Place | Unusable], prefix: Callable[[Place], str] = lambda place: ""
) -> Iterator[Input | Unusable]:
    """Files, and the members of archives, whose names get the prefix for workers."""

    def of_archive(place: Place, opened: Opened, names: Names) -> Iterator[Input]:
        opened.check()
        yield input_of(opened, opened.numbers(names), prefix(place), place)

    return inputs_of(given, of_archive)


def results(
    title: str,
    home: str,
    given: Iterable[Input | Unusable],
    means: Means,
    decoded: Callable[[Any], Any],
    *,
    options: Any = None,
    about: dict[str, Any] | None = None,
    still_holds: Callable[[Part, str, Any], bool] = lambda part, name, found: True,
) -> Iterator[Result]:
    """Has workers look at artifacts with JAX, and yields each with its place, its name, and its result or an error.

    Arguments are as in `Task`, but `decoded` and `still_holds` are called for each artifact that could be read, the
    second one with its part and its name below the place, as in `looked_at`. Those in a journal that could not be read
    are tried again. `home` returns what `looked_at` does.
    """

    def of_part(part: Part, found: Any) -> list[Any]:
        if len(found) != part.units:
            raise ValueError(len(found))
        return [unpacked(one) if isinstance(one, list) else decoded(one) for one in found]

    def is_current(part: Part, found: list[Any]) -> bool:
        return all(
            not isinstance(one, _ELSEWHERE) and (isinstance(one, Exception) or still_holds(part, name, one))
            for name, one in zip(_below(part), found, strict=True)
        )

    task = Task(title, home, options, about or {}, True, _SHARE_BYTES, _UNIT_BYTES, of_part, is_current)
    for finding in findings(task, given, means):
        place: Any = finding.input.about
        names = _names(finding, place)
        found = finding.found if finding.error is None else [finding.error] * len(names)
        for name, one in zip(names, found, strict=True):
            if isinstance(one, DeserializationError) and one.file in (None, os.path.abspath(name)):
                one.file = name  # as the user writes it
            yield place, name, one


def _names(finding: Finding, place: Place) -> list[str]:
    if finding.part is None or place.archive is None:
        return [finding.input.name]
    opened, _ = parts_of(place.archive)
    return [opened.label_of(number) for number in finding.part.numbers]


def _below(part: Part) -> Iterator[str]:
    """The name of each artifact below its place, as `looked_at` finds them in a worker."""
    kind, inside, *_ = part.input.place
    if kind == FILE:
        yield part.input.place[2]
        return
    opened, _ = parts_of(part.input.about.archive)
    for number in part.numbers:
        yield _inside(inside, opened.index.name(number))


def _inside(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def looked_at(parts: Parts, do: Callable[[Source, str, str], Any]) -> list[Any]:
    """Has a function look at each artifact, in a worker.

    Args:
        parts: where they are.
        do: is called with the artifact's source, its kind of place, and its name below the place that was given. It
            returns a JSON object.

    Returns:
        For each part a list with an item for each unit: the object, or its error as a list.
    """

    def of_part(place: tuple[Any, ...], numbers: Sequence[int]) -> list[Any]:
        kind, inside, *address = place
        if kind == FILE:
            path, name = place[1:]
            return [_result(do, Source(path, path), FILE, name)]
        with opened_in_worker(*address) as opened:
            handles = [Handle(opened, number, opened.index.name(number)) for number in numbers]
            return [_result(do, Source(h.label, handle=h), kind, _inside(inside, h.name)) for h in handles]

    return work.each(parts, of_part)


def _result(do: Callable[[Source, str, str], Any], source: Source, kind: str, name: str) -> Any:
    try:
        return do(source, kind, name)
    except OF_ARTIFACTS as error:
        return packed(error)
