"""`verify_many`: whether many artifacts are whole, wherever they are, by many workers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jaxexp._bulk.engine import Finding, Task, findings
from jaxexp._bulk.errors import unpacked
from jaxexp._bulk.work import FILE, Input, Part, Unusable
from jaxexp._errors import DeserializationError
from jaxexp._public import public

from .folders import Folders
from .given import Place, inputs, places, several
from .passes import stamp
from .source import MEMBER, is_url

if TYPE_CHECKING:
    from jaxexp._archive.opened import Opened
    from jaxexp._archive.verified import InParts
    from jaxexp._bulk.crew import Workers
    from jaxexp._policy.policy import Policy

    from .given import GivenToMany, Names


@public
def verify_many(
    artifacts: Iterable[GivenToMany],
    *,
    executor: Workers | None = None,
    workers: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    policy: Policy | None = None,
) -> dict[str, Exception]:
    """Checks that many artifacts are whole, as `verify` and `Archive.verify` do, by the workers of an executor.

    The work is cut into shares by bytes, large archives too. A worker that dies costs its share, which is done again;
    an artifact of which workers die each time is reported, and the others are verified.

    Args:
        artifacts: paths of files, archives and folders; members of archives, as in ``"fleet.zip::resnet/*"``; URLs, of
            which one that ends in ``/`` is a folder; Archives and Handles. Of a folder, artifacts and archives are
            taken. Workers have to find them by the same names.
        executor: a `concurrent.futures.Executor`, such as a ThreadPoolExecutor, a ProcessPoolExecutor or what Dask's
            `client.get_executor()` returns; or a function that makes one, which is called again when a dead worker
            breaks it. None for this process.
        workers: how many threads verify a share; by default one for each CPU, and a single one if there is an executor.
        journal: a file that remembers what is done. If the call is interrupted, the same call goes on from there; what
            has changed since is verified again.
        policy: what the artifacts may contain, as in `deserialize`. With it, the workers import JAX.

    Returns:
        The errors of artifacts that are not whole, by their names: a DeserializationError, a PolicyError, or an OSError
        for what cannot be read.

    Raises:
        JournalError: the journal is damaged, or one of another pass. (It is a DeserializationError.)
        ExportError: the workers cannot run jaxexp, or another release than this process; or another process has the
            journal.
        OSError: the journal cannot be written.
        TypeError: something is given that other processes could not find, such as a buffer; or `policy` is no Policy.

    Example:
        >>> with concurrent.futures.ThreadPoolExecutor(8) as executor:
        ...     damaged = verify_many(["models/", "fleet.zip"], executor=executor, journal="verify.journal")
    """
    from jaxexp._api.load import check_policy

    check_policy(policy)
    given = places(several(artifacts, "verify_many"), Folders(), "verify_many")
    found: dict[str, Exception] = {}
    for one in verified(given, executor=executor, workers=workers, journal=journal, policy=policy):
        found.update(one.errors)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Verified:
    """A file, or some members of an archive, of which all bytes were read.

    Attributes:
        place: what it is.
        count: how many members; 1 for a file.
        errors: the errors by names.
        size: of a file.
        has_digests: of a file; None if it is not known.
        weights: the files of weights beside a file, with their sizes.
        is_last: whether all of an archive was read.
        bytes_behind: how many bytes follow the end of a file's artifact.
    """

    place: Place
    count: int
    errors: dict[str, Exception]
    size: int = 0
    has_digests: bool | None = None
    weights: tuple[tuple[str, int], ...] = ()
    is_last: bool = False
    bytes_behind: int = 0


def verified(
    given: Iterable[Place | Unusable],
    *,
    executor: Workers | None,
    workers: int | None,
    journal: str | os.PathLike[str] | None,
    policy: Policy | None,
) -> Iterator[Verified]:
    """Verifies files and archives, and yields what is found as it is found.

    Raises:
        Exception: as `verify_many`.
    """
    from jaxexp._archive.verified import SHARE_BYTES, UNIT_BYTES, InParts, threads_of

    task = Task(
        "verify",
        "_sources.passes:verify",
        options={"threads": threads_of(workers, executor), "policy": policy},
        about={"policy": None if policy is None else repr(policy)},
        with_jax=policy is not None,
        share_bytes=SHARE_BYTES,
        unit_bytes=UNIT_BYTES,
        decoded=_decoded,
        is_current=_is_current,
    )

    def in_parts(place: Place, opened: Opened, names: Names) -> Iterator[Input]:
        return InParts(opened, names, place).inputs()

    with task.journal(journal) as remembered:
        for finding in findings(task, inputs(given, in_parts), executor, remembered):
            yield from _seen(finding)


def _decoded(part: Part, result: Any) -> Any:
    if part.input.place[0] != FILE:
        from jaxexp._archive.verified import InParts

        return InParts.decoded(part, result)
    size, has_digests, weights, error, behind = result
    if type(size) is not int or not isinstance(has_digests, bool) or type(behind) is not int:
        raise ValueError
    error = None if error is None else unpacked(error)
    if isinstance(error, DeserializationError) and error.file is None:
        error.file = part.input.name
    return size, has_digests, [_weights_file(*file) for file in weights], error, behind


def _weights_file(name: Any, size: Any, version: Any) -> tuple[str, int, int | str]:
    if not isinstance(name, str) or type(size) is not int or type(version) not in (int, str):
        raise ValueError
    return name, size, version


def _is_current(part: Part, found: Any) -> bool:
    """Whether the weights beside a file are as they were. What could not be read is tried again."""
    if part.input.place[0] != FILE:
        return not isinstance(found, Exception)
    _, _, weights, error, _ = found
    if isinstance(error, (OSError, ImportError)):
        return False
    try:
        return all(stamp(name) == list(then) for name, *then in weights)
    except (OSError, ImportError):
        return False


def _seen(finding: Finding) -> Iterator[Verified]:
    place: Any = finding.input.about
    if isinstance(finding.input, Unusable):
        yield Verified(place, 1, {place.name: finding.input.error})
    elif finding.input.place[0] != FILE:
        yield from _of_archive(finding, place)
    elif finding.error is not None:
        yield Verified(place, 1, {place.name: _named(finding.error, place.name)})
    else:
        size, has_digests, weights, error, behind = finding.found
        beside = tuple((_as_given(name, place.name), size) for name, size, _ in weights)
        errors = {} if error is None else {place.name: error}
        yield Verified(place, 1, errors, size, has_digests if error is None else None, beside, bytes_behind=behind)


def _as_given(name: str, artifact: str) -> str:
    """A file beside an artifact, with the folder as the user wrote it."""
    return name if is_url(name) else os.path.join(os.path.dirname(artifact), os.path.basename(name))


def _of_archive(finding: Finding, parts: InParts) -> Iterator[Verified]:
    place = parts.about
    archive = place.archive
    try:
        count, errors = parts.take(finding)
        named = {f"{archive.name}{MEMBER}{name}": error for name, error in errors}
        yield Verified(place, count, named, is_last=parts.is_done)
    except (DeserializationError, OSError, ImportError) as error:  # of a file of weights, outside of its tensors
        yield Verified(place, 0, {archive.name: error}, is_last=parts.is_done)


def _named(error: Exception, name: str) -> Exception:
    if isinstance(error, DeserializationError) and error.file is None:
        error.file = name
    return error
