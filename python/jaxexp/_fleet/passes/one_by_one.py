"""Passes that look at one artifact after another, members of archives and files alike: `check_many`,
`compatibility_many`, `digests_many`, and `spread` with a function of the user."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp._errors import ChangedArtifactError, DeserializationError, ExportError, ExportTypeError, WeightsError, cause
from jaxexp._fleet.archive.archive import Handle, parts_of
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
from jaxexp._fleet.places.load import loaded
from jaxexp._fleet.places.source import Opened, Source, beside
from jaxexp._kernel.io.remote import stamp
from jaxexp._public import public

from .given import Place, places
from .given import inputs as inputs_of

if TYPE_CHECKING:
    from jaxexp._api.cases.report import CheckReport
    from jaxexp._compat.compatibility import Compatibility
    from jaxexp._fleet.archive.opened import OpenArchive
    from jaxexp._fleet.engine.engine import Workers

    from .given import GivenToMany, Names


Stamped = tuple[tuple[str, int, int | str], ...]


def stamped(path: str, names: Iterable[str]) -> Stamped:
    """The files as they are now. One that is not there never stays unchanged."""

    def of(name: str) -> tuple[int, int | str]:
        try:
            return stamp(beside(path, name))
        except OSError:
            return -1, ""

    return tuple((name, *of(name)) for name in names)


# An artifact takes some milliseconds, whatever its size; this many are a share.
_SHARE_BYTES, _UNIT_BYTES = 1 << 24, 1 << 18

# Errors that may be gone while the artifact is the same.
_ELSEWHERE = (OSError, ImportError, WeightsError, ChangedArtifactError)


class Seen(NamedTuple):
    """What a worker found: a result, perhaps with an error; and the files beside the artifact that it depends on."""

    found: Any = None
    error: Exception | None = None
    files: Stamped = ()


def units_of(part: Part, said: Any, of_json: Callable[[Any], Any]) -> list[Seen]:
    """The results for the units of a part. In a journal, they may be anything."""
    if len(said) != part.units:
        raise ValueError(len(said))
    return [
        Seen(
            of_json(one["found"]) if "found" in one else None,
            unpacked(one["error"]) if "error" in one else None,
            tuple((str(name), size, version) for name, size, version in one["files"]),
        )
        for one in said
    ]


def are_current(part: Part, units: Iterable[Seen]) -> bool:
    """Whether results in a journal still hold: the files beside an artifact are unchanged."""
    from jaxexp._weights.files.places import check_name

    try:
        for seen in units:
            for name, *_ in seen.files:  # nobody looks at files, or asks servers, that only a journal names
                check_name(name)
            if isinstance(seen.error, _ELSEWHERE) or any(
                stamp(beside(part.input.place[1], name)) != tuple(then) for name, *then in seen.files
            ):
                return False
    except (ExportError, OSError, ImportError):
        return False
    return True


def named_as_given(error: Exception, name: str) -> Exception:
    """An error that calls an artifact as its user does."""
    if isinstance(error, DeserializationError) and error.file in (None, os.path.abspath(name)):
        error.file = name
    return error


Result = tuple[Place, str, Any]


def members(
    given: Iterable[Place | Unusable], prefix: Callable[[Place], str] = lambda place: ""
) -> Iterator[Input | Unusable]:
    """Files, and the members of archives, whose names get the prefix for workers."""

    def of_archive(place: Place, opened: OpenArchive, names: Names) -> Iterator[Input]:
        opened.check()
        yield input_of(opened, opened.numbers(names), prefix(place), place)

    return inputs_of(given, of_archive)


def _many(
    function: str,
    look: Callable[[Iterator[Place | Unusable], Means], Iterator[Result]],
    artifacts: Iterable[GivenToMany],
    executor: Workers | None,
    journal: str | os.PathLike[str] | None,
    timeout: float | None,
) -> Iterator[tuple[str, Any]]:
    """What a public function of this name returns."""
    found = look(places(artifacts, function), Means(executor, journal=journal, timeout=timeout))
    return ((name, one) for _, name, one in found)


def results(
    title: str,
    one: Callable[..., Any],
    given: Iterable[Place | Unusable],
    means: Means,
    of_json: Callable[[Any], Any],
    *,
    about: dict[str, Any] | None = None,
    reads_files: bool = False,
    inputs: Callable[[Iterable[Place | Unusable]], Iterable[Input | Unusable]] | None = None,
    still_holds: Callable[[str, Any], bool] = lambda name, found: True,
) -> Iterator[Result]:
    """Has workers look at artifacts with JAX, and yields each with its place, its name, and its result or an error.

    Args:
        title: the name of the pass.
        one: a function that pickles. Workers call it with the artifact, which is `Opened`, and its name below the
            place that was given, of a file without the suffix; it returns a JSON value.
        given: the artifacts. Those in a journal that could not be read are tried again.
        means: who does it.
        of_json: makes the result of that value. A value in a journal may be anything.
        about: what `one` depends on, for the journal, of JSON types.
        reads_files: whether results depend on files beside an artifact, too.
        inputs: makes inputs of the artifacts; by default `inputs`.
        still_holds: whether a result in a journal still holds, given its name as `one` gets it.
    """

    def is_current(part: Part, units: list[Seen]) -> bool:
        archive = part.input.about.archive
        opened = None if archive is None else parts_of(archive)[0]
        return are_current(part, units) and all(
            seen.error is not None or still_holds(_below(part.input.place, opened, number), seen.found)
            for number, seen in zip(part.numbers, units, strict=True)
        )

    def decoded(part: Part, said: Any) -> list[Seen]:
        return units_of(part, said, of_json)

    home = "_fleet.passes.one_by_one:in_worker"
    how = one, reads_files
    task = Task(title, home, how, about or {}, True, _SHARE_BYTES, _UNIT_BYTES, decoded, is_current)
    for finding in findings(task, (inputs or members)(given), means):
        place: Any = finding.input.about
        names = _names(finding, place)
        units = finding.found if finding.error is None else [Seen(error=finding.error)] * len(names)
        for name, seen in zip(names, units, strict=True):
            yield place, name, seen.found if seen.error is None else named_as_given(seen.error, name)


def _names(finding: Finding, place: Place) -> list[str]:
    if finding.part is None or place.archive is None:
        return [finding.input.name]
    opened, _ = parts_of(place.archive)
    return [opened.label_of(number) for number in finding.part.numbers]


def _below(place: tuple[Any, ...], opened: OpenArchive | None, number: int) -> str:
    """The name of an artifact below its place: of a file, or of a member of an archive."""
    if opened is None:
        return stem(place[2])
    return f"{place[1]}/{opened.index.name(number)}" if place[1] else opened.index.name(number)


def stem(name: str) -> str:
    path = PurePosixPath(name)
    return path.with_suffix("").as_posix() if path.name else name


def in_worker(parts: Parts, how: tuple[Callable[..., Any], bool]) -> list[Any]:
    """Looks at artifacts: returns for each part a list with a JSON object for each unit. `how` has a function, and
    whether it depends on files beside artifacts.
    """

    def of_part(place: tuple[Any, ...], numbers: Sequence[int]) -> list[Any]:
        if place[0] == FILE:
            return [_seen(*how, Source(place[1], place[1]), _below(place, None, 0))]
        opened = opened_in_worker(*place[2:])
        handles = [Handle(opened, number, opened.index.name(number)) for number in numbers]
        return [_seen(*how, Source(h.label, handle=h), _below(place, opened, h._number)) for h in handles]

    return each(parts, of_part)


def _seen(one: Callable[..., Any], reads_files: bool, source: Source, name: str) -> dict[str, Any]:
    found, said = source.opened(), dict[str, Any](files=())
    try:
        if reads_files and source.path is not None:  # a member of an archive has none beside it
            with source.named():
                said["files"] = stamped(source.path, found.names())  # first, as in verify_many
        said["found"] = one(found, name)
    except OF_ARTIFACTS as error:
        said["error"] = packed(error)
    return said


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
        journal: as in `verify_many`. It records the reports, too, and drops them when JAX, the machine or the flags
            change.
        timeout: as in `verify_many`.

    Returns:
        An iterator of pairs: a name, and the report, or the error if the artifact cannot be loaded.

    Raises:
        ExportError: the tolerance is negative, or not finite.
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> broken = [name for name, found in check_many(["models/"]) if isinstance(found, Exception) or not found.ok]
    """
    look = functools.partial(checked, tolerance=tolerance, max_drawn_bytes=max_drawn_bytes)
    return _many("check_many", look, artifacts, executor, journal, timeout)


def checked(given: Iterable[Place | Unusable], means: Means, tolerance: Any, max_drawn_bytes: int) -> Iterator[Result]:
    """The same, with the place of each artifact."""
    from jaxexp._api.cases.report import CheckReport
    from jaxexp._kernel.artifact.cases import Tolerance

    within = None if tolerance is None else Tolerance.of(tolerance)
    about: dict[str, Any] = {"tolerance": None if within is None else list(within), "max_drawn_bytes": max_drawn_bytes}
    if means.journal is not None:
        from jaxexp._api.cases.calling import environment

        about["environment"] = environment()
    one = functools.partial(_report, tolerance=within, max_drawn_bytes=max_drawn_bytes)
    return results("check", one, given, means, CheckReport.from_json, about=about, reads_files=True)


def _report(found: Opened, name: str, **how: Any) -> Any:
    from jaxexp._api.load import Trust

    return loaded(found, Trust()).check(**how).to_json()


@public
def compatibility_many(
    artifacts: Iterable[GivenToMany],
    *,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Iterator[tuple[str, Compatibility | Exception]]:
    """Says which releases can load each of many artifacts, as `compatibility` does, with the workers of an executor.

    Args:
        artifacts: as in `verify_many`; each member of an archive is one.
        executor: as in `verify_many`. Modules are parsed under Python's global lock, so processes help, and threads do
            not.
        journal: as in `verify_many`. It records the results, too.
        timeout: as in `verify_many`.

    Returns:
        An iterator of pairs: a name, and the result, or the error if the artifact cannot be read. Few shares of the
        work are read ahead, so a million artifacts need no more memory than a thousand.

    Raises:
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> for name, found in compatibility_many(["fleet.zip"], executor=client.get_executor()):
        ...     print(name, found.readable_by("0.6.2"))
    """
    return _many("compatibility_many", described, artifacts, executor, journal, timeout)


def described(given: Iterable[Place | Unusable], means: Means) -> Iterator[Result]:
    """The same, with the place of each artifact."""
    from jaxexp._compat.compatibility import from_json

    return results("compatibility", _facts, given, means, from_json)


def _facts(found: Opened, name: str) -> Any:
    from jaxexp._compat.compatibility import compatibility_of, to_json

    with found.source.named():
        return to_json(compatibility_of(found.buffer))


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
        journal: as in `verify_many`. It records the results, too.
        timeout: as in `verify_many`.

    Returns:
        An iterator of pairs: a name, and the digests or the error.

    Raises:
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> names = collections.defaultdict(list)
        >>> for name, found in digests_many(["fleet.zip"], executor=client.get_executor()):
        ...     if not isinstance(found, Exception):
        ...         names[found.meaning].append(name)
    """

    def of_json(said: dict[str, Any]) -> Digests:
        return Digests(str(said["sha256"]), str(said["meaning"]))

    look = functools.partial(results, "digest", _digests, of_json=of_json, reads_files=True)
    return _many("digests_many", look, artifacts, executor, journal, timeout)


def _digests(found: Opened, name: str) -> dict[str, Any]:
    return dataclasses.asdict(digests_of(found))


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
        function: takes a path, a URL or the `Handle` of a member, and returns a JSON value: None, a bool, a number, a
            text, or a list or dict of these. Workers must be able to import it by its name.
        artifacts: as in `verify_many`; each member of an archive is one.
        executor: as in `compatibility_many`.
        journal: as in `verify_many`; it records the results, too, but does not notice changes of the function.
        timeout: as in `verify_many`.

    Returns:
        An iterator of pairs: a name, and the function's result, or the ExportError, OSError or ImportError that it
        raised. Any other exception ends the iteration.

    Raises:
        TypeError: the function has no name, like a lambda; or, while the iterator is used, it does not return a JSON
            value.
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> def size(artifact):
        ...     return jaxexp.inspect(artifact).total_bytes
        >>> largest = max(spread(size, ["models/"]), key=lambda found: found[1])
    """
    name = getattr(function, "__qualname__", "<")
    if "<" in name:
        raise ExportTypeError(f"spread takes a function that workers find by its name in a module, not {function!r}")
    call = functools.partial(_called, function=function)
    look = functools.partial(results, f"{function.__module__}.{name}", call, of_json=lambda said: said)
    return _many("spread", look, artifacts, executor, journal, timeout)


def _called(found: Opened, name: str, *, function: Callable[[Any], Any]) -> Any:
    said = function(found.source.given)
    try:
        return json.loads(json.dumps(said))  # the same as from a journal
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(  # no ExportError, which would be the result for this artifact
            f"spread: {function.__module__}.{function.__qualname__} returned {said!r:.200} for {found.source.name!r}, "
            f"and has to return a JSON value, that is None, a bool, a number of Python, a text, or a list or dict of "
            f"these: {error}"
        ) from cause(error)
