"""Passes that look at one artifact after another: members of archives and files alike."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp import _native
from jaxexp._errors import ChangedArtifactError, DeserializationError, ExportError, ExportTypeError, WeightsError
from jaxexp._fleet.archive.archive import parts_of
from jaxexp._fleet.archive.handle import Handle
from jaxexp._fleet.archive.verification import input_of, opened_in_worker
from jaxexp._fleet.engine.engine import (
    FILE,
    OF_ARTIFACTS,
    Finding,
    Input,
    Means,
    Part,
    Parts,
    Task,
    Unusable,
    each,
    findings,
)
from jaxexp._fleet.engine.worker import packed, unpacked
from jaxexp._fleet.places.inspect import Digests, digests_of
from jaxexp._fleet.places.load import check
from jaxexp._fleet.places.source import Source
from jaxexp._fleet.places.verify import beside as path_beside
from jaxexp._kernel.artifact.opened import tables_of
from jaxexp._kernel.io.version import stamp
from jaxexp._public import public

from .given import Place, places
from .given import inputs as inputs_of

if TYPE_CHECKING:
    from jaxexp._api.cases.report import CheckReport
    from jaxexp._compat.compatibility import Compatibility
    from jaxexp._fleet.archive.handle import Handle
    from jaxexp._fleet.archive.opened import Opened
    from jaxexp._fleet.engine.engine import Means, Part, Unusable, Workers
    from jaxexp._fleet.places.source import Source

    from .given import GivenToMany, Names


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

    return each(parts, of_part)


def _seen(how: _How, source: Source, kind: str, name: str) -> dict[str, Any]:
    try:
        files = beside(source) if how.reads_files else ()  # first, because one may be replaced while it is read
        return {"found": how.one(source, kind, name, **how.options), "files": files}
    except OF_ARTIFACTS as error:
        return {"error": packed(error)}


@public
def check_many(
    artifacts: Iterable[GivenToMany],
    *,
    tolerance: Any = None,
    max_drawn_bytes: int = 1 << 32,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Iterator[tuple[str, CheckReport | Exception]]:
    """Checks many artifacts as `check` does, with the workers of an executor.

    Args:
        artifacts: as in `verify_many`; each member of an archive is one.
        tolerance, max_drawn_bytes: as in `Exported.check`.
        executor: as in `compatibility_many`.
        journal: as in `verify_many`; it has the reports, too, and forgets them when JAX, the machine or flags change.
        timeout: as in `verify_many`.

    Returns:
        An iterator of names, each with its report, or its error if it cannot be loaded, as in `compatibility_many`.

    Raises:
        ExportError: the tolerance is negative, or not finite.
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> broken = [name for name, found in check_many(["models/"]) if isinstance(found, Exception) or not found.ok]
    """
    given = places(artifacts, "check_many")
    means = Means(executor, journal=journal, timeout=timeout)
    return ((name, one) for _, name, one in checked(given, means, tolerance, max_drawn_bytes))


def checked(given: Iterable[Place | Unusable], means: Means, tolerance: Any, max_drawn_bytes: int) -> Iterator[Result]:
    """The same, with the place of each artifact."""
    from jaxexp._api.cases.report import CheckReport
    from jaxexp._kernel.artifact.cases import Tolerance

    within = None if tolerance is None else Tolerance.of(tolerance)
    about: dict[str, Any] = {"tolerance": None if within is None else list(within), "max_drawn_bytes": max_drawn_bytes}
    if means.journal is not None:
        from jaxexp._api.cases.calling import environment

        about["environment"] = environment()
    return results(
        "check", _report, inputs(given), means, CheckReport.from_json,
        options={"tolerance": within, "max_drawn_bytes": max_drawn_bytes}, about=about, reads_files=True,
    )  # fmt: skip


def _report(source: Source, kind: str, name: str, *, tolerance: Any, max_drawn_bytes: int) -> Any:
    return check(source.given, tolerance=tolerance, max_drawn_bytes=max_drawn_bytes).to_json()


@public
def compatibility_many(
    artifacts: Iterable[GivenToMany],
    *,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Iterator[tuple[str, Compatibility | Exception]]:
    """Tells who can load each of many artifacts, as `compatibility` does, with the workers of an executor.

    Args:
        artifacts: as in `verify_many`; each member of an archive is one.
        executor: as in `verify_many`. Modules are parsed under Python's global lock, so processes help, and threads do
            not.
        journal: as in `verify_many`; it has the results, too.
        timeout: as in `verify_many`.

    Returns:
        An iterator of names, each with its result, or with the error if it cannot be read, in the order in which they
            are found. Only a few shares of the work are read ahead: a million artifacts need no more memory than a
            thousand.

    Raises:
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> for name, found in compatibility_many(["fleet.zip"], executor=client.get_executor()):
        ...     print(name, found.readable_by("0.6.2"))
    """
    given = places(artifacts, "compatibility_many")
    means = Means(executor, journal=journal, timeout=timeout)
    return ((name, one) for _, name, one in described(given, means))


def described(given: Iterable[Place | Unusable], means: Means) -> Iterator[Result]:
    """The same, with the place of each artifact."""
    from jaxexp._compat.compatibility import from_json

    return results("compatibility", _facts, inputs(given), means, from_json)


def _facts(source: Source, kind: str, name: str) -> Any:
    from jaxexp._compat.compatibility import compatibility_of, to_json

    with source.named():
        return to_json(compatibility_of(source.read()))


@public
def digests_many(
    artifacts: Iterable[GivenToMany],
    *,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Iterator[tuple[str, Digests | Exception]]:
    """The digests of many artifacts and of their meanings, as `digests` returns them, with the workers of an executor.

    Args:
        artifacts: as in `verify_many`; each member of an archive is one.
        executor: as in `compatibility_many`.
        journal: as in `verify_many`; it has the results, too.
        timeout: as in `verify_many`.

    Returns:
        An iterator of names, each with its result or its error, as in `compatibility_many`.

    Raises:
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> names = collections.defaultdict(list)
        >>> for name, found in digests_many(["fleet.zip"], executor=client.get_executor()):
        ...     if not isinstance(found, Exception):
        ...         names[found.meaning].append(name)
    """
    given = places(artifacts, "digests_many")
    means = Means(executor, journal=journal, timeout=timeout)
    return ((name, one) for _, name, one in digested(given, means))


def digested(given: Iterable[Place | Unusable], means: Means) -> Iterator[Result]:
    """The same, with the place of each artifact."""
    return results("digest", _digests, inputs(given), means, _of_json, reads_files=True)


def _of_json(said: dict[str, Any]) -> Digests:
    return Digests(str(said["sha256"]), str(said["meaning"]))


def _digests(source: Source, kind: str, name: str) -> dict[str, Any]:
    return dataclasses.asdict(digests_of(source))


@public
def spread(
    function: Callable[[str | Handle], Any],
    artifacts: Iterable[GivenToMany],
    *,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Iterator[tuple[str, Any]]:
    """Calls a function with each of many artifacts, with the workers of an executor.

    Args:
        function: it takes a path or a URL, or the `Handle` of a member, and returns a JSON value: None, a bool, a
            number, a text, or a list or dict of these. Workers have to find it by its name in its module.
        artifacts: as in `verify_many`; each member of an archive is one.
        executor: as in `compatibility_many`.
        journal: as in `verify_many`; it has the results, too. It does not notice that the function has changed.
        timeout: as in `verify_many`.

    Returns:
        An iterator of names, each with what the function returned for it. An ExportError, OSError or ImportError that
            it raised takes the place of that; any other exception ends the iteration.

    Raises:
        TypeError: the function has no name, as a lambda; or, while the iterator is used, it returns something else.
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> def size(artifact):
        ...     return jaxexp.inspect(artifact).total_bytes
        >>> largest = max(spread(size, ["models/"]), key=lambda found: found[1])
    """
    name = getattr(function, "__qualname__", "<")
    if "<" in name:
        raise ExportTypeError(f"spread takes a function that workers find by its name in a module, not {function!r}")
    given = inputs(places(artifacts, "spread"))
    means = Means(executor, journal=journal, timeout=timeout)
    found = results(
        f"{function.__module__}.{name}", _called, given, means, lambda said: said, options={"function": function}
    )
    return ((name, one) for _, name, one in found)


def _called(source: Source, kind: str, name: str, *, function: Callable[[Any], Any]) -> Any:
    found = function(source.given)
    return json.loads(json.dumps(found))  # the same as from a journal; a TypeError says what is no JSON value
