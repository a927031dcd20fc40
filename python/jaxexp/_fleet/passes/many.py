"""Passes over many artifacts: `verify_many`, `check_many`, `compatibility_many`, `digests_many`, and `spread` with a
function of the user. First what they are given, then what workers find out about one artifact after another."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import itertools
import json
import os
import stat
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from jaxexp import _native
from jaxexp._errors import ChangedArtifactError, DeserializationError, ExportError, ExportTypeError, WeightsError, cause
from jaxexp._fleet.archive import verification
from jaxexp._fleet.archive.archive import Archive, Handle, matching, only, parts_of
from jaxexp._fleet.archive.verification import Verification
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
from jaxexp._fleet.places import verify
from jaxexp._fleet.places.folders import Folders
from jaxexp._fleet.places.inspect import Digests, digests_of
from jaxexp._fleet.places.load import loaded
from jaxexp._fleet.places.source import MEMBER, Kind, Opened, Source, beside, is_archive, path_in, split
from jaxexp._fleet.places.verify import Verified
from jaxexp._kernel.artifact import texts
from jaxexp._kernel.artifact.chain import chain
from jaxexp._kernel.artifact.words import meant
from jaxexp._kernel.io import files, remote
from jaxexp._kernel.io.files import is_url
from jaxexp._kernel.io.remote import stamp
from jaxexp._public import public

if TYPE_CHECKING:
    from jaxexp._api.cases.report import CheckReport
    from jaxexp._compat.compatibility import Compatibility
    from jaxexp._fleet.archive.opened import OpenArchive
    from jaxexp._fleet.engine.engine import Workers
    from jaxexp._policy.policy import Policy

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
        ExportError: while the iterator is used: something is given, and there is no artifact in it.
    """
    if isinstance(given, (str, bytes, bytearray, memoryview, os.PathLike, Archive, Handle)):
        raise ExportTypeError(
            f"{function} takes many artifacts, in a list or another iterable, not {type(given)}: give it [...] for one"
        )
    return _of_all(list(given), folders or Folders(), function)


def _of_all(given: list[GivenToMany], folders: Folders, function: str) -> Iterator[Place | Unusable]:
    every = itertools.chain.from_iterable(_of(one, folders, function) for one in given)
    order = -1
    for order, found in enumerate(every):
        if isinstance(found, Unusable):
            yield Unusable(found.name, found.error, Place(found.name, order, ""))
        else:
            yield dataclasses.replace(found, order=order)
    if given and order < 0:
        named = f" whose name matches {' or '.join(map(repr, folders.include))}" if folders.include else ""
        raise ExportError(f"there is no artifact in {', '.join(map(repr, given))}{named}{folders.said()}")


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
        elif place.archive is None:  # one unit
            path = place.name if is_url(place.name) else os.path.abspath(place.name)
            size, identity = _identity(path) if place.size is None else (place.size, [place.size, place.version])
            where = FILE, path, place.inside
            yield Input(place.name, identity, where, range(1), lambda *_, size=size: [size], place)
        else:
            try:
                yield from of_archive(place, *parts_of(place.archive))
            except (DeserializationError, OSError) as error:
                yield Unusable(place.name, error, place)


def _identity(path: str) -> tuple[int, list[Any]]:
    """The size of a file, and a value that changes when its content does. The reader says why it cannot be read."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode):  # opening a pipe would wait for its writer
            with open(path, "rb") as file:
                file.seek(max(0, found.st_size - _TAIL))
                return found.st_size, [found.st_size, found.st_mtime_ns, _native.digest(file.read(_TAIL)).hex()]
    return 0, []


# --- one artifact after another --------------------------------------------------------------------------------------


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
        yield verification.input_of(opened, opened.numbers(names), prefix(place), place)

    return inputs(given, of_archive)


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

    home = "_fleet.passes.many:in_worker"
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
        opened = verification.opened_in_worker(*place[2:])
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


# --- all bytes of all artifacts --------------------------------------------------------------------------------------


@public
def verify_many(
    artifacts: Iterable[GivenToMany],
    *,
    executor: Workers | None = None,
    workers: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    policy: Policy | None = None,
    timeout: float | None = None,
) -> dict[str, Exception]:
    """Checks that many artifacts are whole, as `verify` and `Archive.verify` do, with the workers of an executor.

    The work is cut into shares by bytes; large archives are cut, too. If a worker dies, only its share is done again.
    An artifact that kills each worker is reported, and the others are verified.

    Args:
        artifacts: paths of files, archives and folders; members of archives, as in ``"fleet.zip::resnet/*"``; URLs (a
            URL that ends in ``/`` is a folder); Archives and Handles. A folder stands for its artifacts and archives,
            which are known by their names or first bytes. All paths must be valid for all workers.
        executor: a `concurrent.futures.Executor`, such as a ThreadPoolExecutor, a ProcessPoolExecutor or a cluster's
            executor; or a function that makes one, which is called again when a dead worker breaks it. None for this
            process.
        workers: the number of threads that verify a share; by default one for each CPU, or one with an executor.
        journal: a file that records finished work. If the call is interrupted, the same call resumes from there;
            artifacts that have changed since then are verified again.
        policy: the allowed contents of the artifacts, as in `deserialize`. With a policy, the workers import JAX.
        timeout: how many seconds to wait for the next result, in case the executor has no workers; None to wait
            forever. A large artifact takes long.

    Returns:
        The errors by the names of the artifacts: a DeserializationError, a PolicyError, or an OSError for an artifact
            that cannot be read.

    Raises:
        JournalError: the journal is damaged, or belongs to another pass.
        ExportError: the workers cannot run jaxexp, or run another release than this process; no result came within
            `timeout`; another process uses the journal; `timeout` is negative; or nothing given has an artifact.
        OSError: the journal cannot be written.
        TypeError: other processes cannot find an artifact, such as a buffer; or `policy` is not a Policy.

    Example:
        >>> with concurrent.futures.ThreadPoolExecutor(8) as executor:
        ...     damaged = verify_many(["models/", "fleet.zip"], executor=executor, journal="verify.journal")
    """
    if policy is not None:
        from jaxexp._policy.policy import check_is_policy

        check_is_policy(policy)
    means = Means(executor, workers, journal, timeout)
    found: dict[str, Exception] = {}
    for one in verified(places(artifacts, "verify_many"), means, policy):
        found.update(one.errors)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class VerifiedPlace:
    """The result for a file, or for some members of an archive, after all of their bytes were read.

    Attributes:
        place: what it is.
        count: how many members; 1 for a file.
        errors: the errors by name.
        file: what a file has, as far as its error allows.
        is_last: whether all of an archive was read.
    """

    place: Place
    count: int
    errors: dict[str, Exception]
    file: Verified = dataclasses.field(default_factory=Verified)
    is_last: bool = False


def verified(given: Iterable[Place | Unusable], means: Means, policy: Policy | None) -> Iterator[VerifiedPlace]:
    """Verifies files and archives, and yields each result as it arrives."""

    def decoded(part: Part, found: Any) -> Any:
        return units_of(part, found, Verified.of) if part.input.place[0] == FILE else verification.decoded(part, found)

    def is_current(part: Part, found: Any) -> bool:  # of an archive, its identity says so
        return part.input.place[0] != FILE or are_current(part, found)

    task = dataclasses.replace(
        verification.task(means, policy),
        home="_fleet.passes.many:verify_in_worker",
        decoded=decoded,
        is_current=is_current,
    )
    parts = inputs(given, lambda place, opened, names: Verification(opened, names, place).inputs())
    for finding in findings(task, parts, means):
        about: Any = finding.input.about
        yield _in_archive(finding, about) if isinstance(about, Verification) else _in_file(finding, about)


def _in_file(finding: Finding, place: Place) -> VerifiedPlace:
    seen = Seen(error=finding.error) if finding.error is not None else finding.found[0]
    file = seen.found or Verified(place.size or 0)
    # In the user's words: the folder may have been named in another way.
    if not is_url(place.name):
        file = file._replace(files=[(beside(place.name, os.path.basename(name)), size) for name, size in file.files])
    if seen.error is None:
        return VerifiedPlace(place, 1, {}, file)
    return VerifiedPlace(place, 1, {place.name: named_as_given(seen.error, place.name)}, file._replace(bytes_behind=0))


def _in_archive(finding: Finding, parts: Verification) -> VerifiedPlace:
    place = parts.about
    name = place.archive.name
    try:
        count, errors = parts.take(finding)
    except (DeserializationError, OSError, ImportError) as error:  # in a file of weights, outside of its tensors
        return VerifiedPlace(place, 0, {name: error}, is_last=parts.is_done)
    return VerifiedPlace(place, count, {f"{name}{MEMBER}{one}": e for one, e in errors}, is_last=parts.is_done)


def verify_in_worker(parts: Parts, options: dict[str, Any]) -> list[Any]:
    """Reads files and parts of archives: returns what `units_of` reads for a file, and the result of
    `verification.read_part`.
    """
    policy = options["policy"]
    here = [place[1] for place, _ in parts if place[0] == FILE and not is_url(place[1])]
    # A policy may refuse to read a file. What it looks at takes longer than reading, which threads would do.
    known = {} if policy else dict(zip(here, _native.verify_files(here, options["threads"]), strict=True))

    def found(place: tuple[Any, ...], numbers: Sequence[int]) -> Any:
        if place[0] != FILE:
            return verification.read_part(place, numbers, **options)
        return [_read_file(place[1], known.get(place[1]), policy)]

    return each(parts, found)


def _read_file(path: str, known: Any, policy: Policy | None) -> dict[str, Any]:
    """The result for a file, as far as it could be read, the files beside it, and an error. `known` is what
    `_native.verify_files` says.
    """
    source, said, is_here = Source(path, path), dict[str, Any](files=()), not is_url(path)
    opened = source.opened(None if policy is None else policy.check_size)
    try:
        with files.named_in_errors(path) if is_here else source.named():
            if known is not None and known[-1] is None:
                found, has_files = _read_before(path, *known)
            else:
                if is_here and policy is not None:
                    policy.check_size(os.path.getsize(path))
                found, has_files = (is_here and verify.checked_other_file(path)) or _read(opened), True
            said["found"] = found
            if has_files and not found.what:
                said["files"] = stamped(path, opened.names())  # first, because a file may be replaced while it is read
                said["found"] = found._replace(files=verify.files_of(opened))
            if policy is not None:
                from jaxexp._api.load import deserialize

                deserialize(opened.buffer, policy=policy)  # only the program: its weights were verified
    except OF_ARTIFACTS as error:
        said["error"] = packed(error)
    return said


def _read_before(
    path: str, size: int, has_digests: bool, has_files: bool, absolute_paths: Sequence[str], said: Any, wrong: None
) -> tuple[Verified, bool]:
    texts.check(*said)
    behind = 0
    if has_digests:
        with files.regular(path) as file:
            (end,) = struct.unpack("<12xI", file.read(16))  # the end of the artifact, as it says itself
        behind = max(0, size - end)
    return Verified(size, has_digests, behind, absolute_paths=absolute_paths), has_files


def _read(opened: Opened) -> Verified:
    found = verify.check_program(opened)
    modules = {link.module_place: link.module() for link in chain(opened.artifact)}  # which functions may share
    paths = {path for module in modules.values() for path in _native.absolute_paths(module)}
    return found._replace(absolute_paths=sorted(paths))
