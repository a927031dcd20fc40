"""Passes that look at one artifact after another: members of archives and files alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp._errors import ChangedArtifactError, DeserializationError, WeightsError
from jaxexp._fleet.archive.archive import parts_of
from jaxexp._fleet.archive.handle import Handle
from jaxexp._fleet.archive.parts import input_of, opened_in_worker
from jaxexp._fleet.engine import work
from jaxexp._fleet.engine.engine import Finding, Task, findings
from jaxexp._fleet.engine.errors import packed, unpacked
from jaxexp._fleet.engine.work import FILE, OF_ARTIFACTS, Input, Part, Parts, Unusable
from jaxexp._fleet.places.source import Source

from .files_beside import Stamped, are_unchanged, beside, of_json
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
    one: Callable[..., Any],
    given: Iterable[Input | Unusable],
    means: Means,
    from_json: Callable[[Any], Any],
    *,
    options: dict[str, Any] | None = None,
    about: dict[str, Any] | None = None,
    reads_files: bool = False,
    still_holds: Callable[[Part, str, Any], bool] = lambda part, name, found: True,
) -> Iterator[Result]:
    """Has workers look at artifacts with JAX, and yields each with its place, its name, and its result or an error.

    Args:
        title: the name of the pass.
        one: a function of a module. Workers call it with the artifact's source, its kind of place, its name below the
            place that was given, and the options; it returns a JSON value.
        given: the artifacts. Those in a journal that could not be read are tried again.
        means: who does it.
        from_json: makes the result of that value. A value in a journal may be anything.
        options: arguments of `one`; they are pickled.
        about: the same for the journal, of JSON types.
        reads_files: whether results depend on files beside an artifact, too.
        still_holds: whether a result in a journal still holds, given its part, and its name as `one` gets it.
    """
    how = _How(one, options or {}, reads_files)

    def of_part(part: Part, found: Any) -> list[Any]:
        if len(found) != part.units:
            raise ValueError(len(found))
        return [
            unpacked(said["error"]) if "error" in said else _Seen(from_json(said["found"]), of_json(said["files"]))
            for said in found
        ]

    def is_current(part: Part, found: list[Any]) -> bool:
        return all(
            not isinstance(seen, _ELSEWHERE)
            if isinstance(seen, Exception)
            else are_unchanged(part, seen.files) and still_holds(part, name, seen.found)
            for name, seen in zip(_below(part), found, strict=True)
        )

    home = "_fleet.passes.one_by_one:in_worker"
    task = Task(title, home, how, about or {}, True, _SHARE_BYTES, _UNIT_BYTES, of_part, is_current)
    for finding in findings(task, given, means):
        place: Any = finding.input.about
        names = _names(finding, place)
        found = finding.found if finding.error is None else [finding.error] * len(names)
        for name, seen in zip(names, found, strict=True):
            if isinstance(seen, DeserializationError) and seen.file in (None, os.path.abspath(name)):
                seen.file = name  # as the user writes it
            yield place, name, seen.found if isinstance(seen, _Seen) else seen


class _Seen(NamedTuple):
    """A result, and the files beside the artifact that it depends on."""

    found: Any
    files: Stamped


class _How(NamedTuple):
    """What workers do; see `results`."""

    one: Callable[..., Any]
    options: dict[str, Any]
    reads_files: bool


def _names(finding: Finding, place: Place) -> list[str]:
    if finding.part is None or place.archive is None:
        return [finding.input.name]
    opened, _ = parts_of(place.archive)
    return [opened.label_of(number) for number in finding.part.numbers]


def _below(part: Part) -> Iterator[str]:
    """The name of each artifact below its place, as workers find them."""
    kind, inside, *_ = part.input.place
    if kind == FILE:
        yield part.input.place[2]
        return
    opened, _ = parts_of(part.input.about.archive)
    for number in part.numbers:
        yield _inside(inside, opened.index.name(number))


def _inside(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def in_worker(parts: Parts, how: _How) -> list[Any]:
    """Looks at artifacts: returns for each part a list with a JSON object for each unit."""

    def of_part(place: tuple[Any, ...], numbers: Sequence[int]) -> list[Any]:
        kind, inside, *address = place
        if kind == FILE:
            path, name = place[1:]
            return [_seen(how, Source(path, path), FILE, name)]
        with opened_in_worker(*address) as opened:
            handles = [Handle(opened, number, opened.index.name(number)) for number in numbers]
            return [_seen(how, Source(h.label, handle=h), kind, _inside(inside, h.name)) for h in handles]

    return work.each(parts, of_part)


def _seen(how: _How, source: Source, kind: str, name: str) -> dict[str, Any]:
    try:
        files = beside(source) if how.reads_files else ()  # first, because one may be replaced while it is read
        return {"found": how.one(source, kind, name, **how.options), "files": files}
    except OF_ARTIFACTS as error:
        return {"error": packed(error)}
