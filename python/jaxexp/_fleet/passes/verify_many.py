"""`verify_many`: checks with many workers that many artifacts are whole, wherever they are."""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._fleet.archive import verification
from jaxexp._fleet.archive.verification import Verification
from jaxexp._fleet.engine.engine import FILE, OF_ARTIFACTS, Finding, Means, Part, Parts, Unusable, each, findings
from jaxexp._fleet.engine.worker import packed
from jaxexp._fleet.places import verify
from jaxexp._fleet.places.source import MEMBER, Source, beside, is_url
from jaxexp._fleet.places.verify import checked_other_file
from jaxexp._kernel.artifact import texts
from jaxexp._kernel.artifact.chain import chain
from jaxexp._kernel.io import files
from jaxexp._public import public

from .given import Place, inputs, places
from .one_by_one import Seen, are_current, named_as_given, stamped, units_of

if TYPE_CHECKING:
    from jaxexp._fleet.engine.engine import Workers
    from jaxexp._fleet.places.source import Opened
    from jaxexp._policy.policy import Policy

    from .given import GivenToMany


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
            `timeout`; another process uses the journal; or `timeout` is negative.
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


class InFile(NamedTuple):
    """The result for a file, after all of its bytes were read.

    Attributes:
        size: of the file.
        has_digests: whether the artifact has any.
        bytes_behind: how many bytes follow the end of the artifact.
        what: what the file has, if it is no artifact but another file of jaxexp; empty for an artifact.
        absolute_paths: the absolute paths of source files that the modules name.
        weights: the files of weights and cases beside it: from a worker, their names; then their paths, each with its
            `stamp`.
    """

    size: int = 0
    has_digests: bool = False
    bytes_behind: int = 0
    what: str = ""
    absolute_paths: Sequence[str] = ()
    weights: Sequence[Any] = ()

    @classmethod
    def of(cls, said: Any) -> InFile:
        found = cls(*said)
        are_numbers = type(found.size) is type(found.bytes_behind) is int and isinstance(found.has_digests, bool)
        texts = (found.what, *found.absolute_paths, *found.weights)
        if len(said) != len(found) or not (are_numbers and all(isinstance(text, str) for text in texts)):
            raise ValueError(said)
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class VerifiedPlace:
    """The result for a file, or for some members of an archive, after all of their bytes were read.

    Attributes:
        place: what it is.
        count: how many members; 1 for a file.
        errors: the errors by name.
        file: the result for a file that could be read, as far as its error allows.
        is_last: whether all of an archive was read.
    """

    place: Place
    count: int
    errors: dict[str, Exception]
    file: InFile = dataclasses.field(default_factory=InFile)
    is_last: bool = False


def verified(given: Iterable[Place | Unusable], means: Means, policy: Policy | None) -> Iterator[VerifiedPlace]:
    """Verifies files and archives, and yields each result as it arrives."""
    task = dataclasses.replace(
        verification.task(means, policy),
        home="_fleet.passes.verify_many:in_worker",
        decoded=_decoded,
        is_current=_is_current,
    )
    parts = inputs(given, lambda place, opened, names: Verification(opened, names, place).inputs())
    for finding in findings(task, parts, means):
        yield _seen(finding)


def _decoded(part: Part, result: Any) -> Any:
    return units_of(part, result, InFile.of) if part.input.place[0] == FILE else verification.decoded(part, result)


def _is_current(part: Part, found: Any) -> bool:
    """Whether a result in a journal still holds: of an archive, its identity says so."""
    return part.input.place[0] != FILE or are_current(part, found)


def _seen(finding: Finding) -> VerifiedPlace:
    about: Any = finding.input.about
    if isinstance(about, Verification):
        return _in_archive(finding, about)
    seen = Seen(error=finding.error) if finding.error is not None else finding.found[0]
    file = seen.found or InFile(about.size or 0)
    # In the user's words: the folder may have been named in another way.
    weights = [(beside(about.name, name), *stamp) for name, (_, *stamp) in zip(file.weights, seen.files, strict=False)]
    if seen.error is None:
        return VerifiedPlace(about, 1, {}, file._replace(weights=weights))
    errors = {about.name: named_as_given(seen.error, about.name)}
    return VerifiedPlace(about, 1, errors, file._replace(weights=weights, bytes_behind=0))


def _in_archive(finding: Finding, parts: Verification) -> VerifiedPlace:
    place = parts.about
    name = place.archive.name
    try:
        count, errors = parts.take(finding)
    except (DeserializationError, OSError, ImportError) as error:  # in a file of weights, outside of its tensors
        return VerifiedPlace(place, 0, {name: error}, is_last=parts.is_done)
    return VerifiedPlace(place, count, {f"{name}{MEMBER}{one}": e for one, e in errors}, is_last=parts.is_done)


# --- in workers -----------------------------------------------------------------------------------------------------


def in_worker(parts: Parts, options: dict[str, Any]) -> list[Any]:
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
        return [_in_file(place[1], known.get(place[1]), policy)]

    return each(parts, found)


def _in_file(path: str, known: Any, policy: Policy | None) -> dict[str, Any]:
    """The result for a file, as far as it could be read, the files beside it, and an error. `known` is what
    `_native.verify_files` says.
    """
    source, said = Source(path, path), dict[str, Any](files=())
    opened = source.opened(None if policy is None else policy.check_size)
    try:
        with source.named() if is_url(path) else files.named_in_errors(path):
            if known is not None and known[-1] is None:
                found, has_files = _in_local(path, *known)
            else:
                found, has_files = _other(path, policy) or _read(opened), True
            said["found"] = found
            if has_files and not found.what:
                names = opened.names()
                said["files"] = stamped(path, names)  # first, because a file may be replaced while it is read
                read = [os.path.basename(file) for file, _ in verify.files_of(opened)]
                said["found"] = found._replace(weights=names if is_url(path) else read)
            if policy is not None:
                from jaxexp._api.load import deserialize

                deserialize(opened.buffer, policy=policy)  # only the program: its weights were verified
    except OF_ARTIFACTS as error:
        said["error"] = packed(error)
    return said


def _in_local(
    path: str, size: int, has_digests: bool, has_files: bool, absolute_paths: Sequence[str], said: Any, wrong: None
) -> tuple[InFile, bool]:
    texts.check(*said)
    behind = 0
    if has_digests:
        with files.regular(path) as file:
            (end,) = struct.unpack("<12xI", file.read(16))  # the end of the artifact, as it says itself
        behind = max(0, size - end)
    return InFile(size, has_digests, behind, absolute_paths=absolute_paths), has_files


def _other(path: str, policy: Policy | None) -> InFile | None:
    """The result for another file of jaxexp; None for anything else."""
    if is_url(path):
        return None
    size = os.path.getsize(path)
    if policy is not None:
        policy.check_size(size)
    other = checked_other_file(path)
    return None if other is None else InFile(size, other.has_digests, what=other.what)


def _read(opened: Opened) -> InFile:
    size, artifact = memoryview(opened.buffer).nbytes, opened.artifact
    verify.check_program(artifact)
    has_digests = artifact.trailer() is not None
    modules = {link.module_place: link.module() for link in chain(artifact)}  # which functions may share
    paths = {path for module in modules.values() for path in _native.absolute_paths(module)}
    return InFile(size, has_digests, size - artifact.size if has_digests else 0, "", sorted(paths))
