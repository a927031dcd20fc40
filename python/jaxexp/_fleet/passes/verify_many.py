"""`verify_many`: checks with many workers that many artifacts are whole, wherever they are."""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp import _native
from jaxexp._errors import ChangedArtifactError, DeserializationError, ExportError, PolicyError, WeightsError
from jaxexp._fleet.archive import verification
from jaxexp._fleet.archive.verification import Verification
from jaxexp._fleet.engine.engine import FILE, Finding, Means, Part, Parts, Unusable, each, findings
from jaxexp._fleet.engine.worker import packed, unpacked
from jaxexp._fleet.places import verify
from jaxexp._fleet.places.source import MEMBER, Source, is_url, link_of_file
from jaxexp._fleet.places.verify import checked_other_file
from jaxexp._kernel.artifact import texts
from jaxexp._kernel.artifact.chain import chain
from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import HEAD, instead_of_artifact
from jaxexp._kernel.io.remote import stamp
from jaxexp._public import public

from .given import Place, inputs, places
from .one_by_one import stamped

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
    """The result for a file, after all of its bytes were read. Its error is packed on its way from a worker, and in a
    journal.

    Attributes:
        size: of the file.
        has_digests: whether the artifact has any.
        weights: the files of weights and cases beside it, each with its `stamp`.
        error: what is wrong with the artifact, its weights or its cases; None if they are whole and allowed.
        bytes_behind: how many bytes follow the end of the artifact.
        what: what the file has, if it is no artifact but another file of jaxexp; empty for an artifact.
        absolute_paths: the absolute paths of source files that the modules name.
    """

    size: int = 0
    has_digests: bool = False
    weights: Sequence[tuple[str, int, int | str]] = ()
    error: Any = None
    bytes_behind: int = 0
    what: str = ""
    absolute_paths: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class VerifiedPlace:
    """The result for a file, or for some members of an archive, after all of their bytes were read.

    Attributes:
        place: what it is.
        count: how many members; 1 for a file.
        errors: the errors by name.
        file: the result for a file that could be read.
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
    if part.input.place[0] != FILE:
        return verification.decoded(part, result)
    found = InFile(*result)
    are_numbers = type(found.size) is type(found.bytes_behind) is int
    are_texts = isinstance(found.what, str) and all(isinstance(path, str) for path in found.absolute_paths)
    if len(result) != len(found) or not (are_numbers and are_texts and isinstance(found.has_digests, bool)):
        raise ValueError(result)
    error = None if found.error is None else _named(unpacked(found.error), part.input.name)
    return found._replace(weights=[_weights_file(part.input.place[1], *file) for file in found.weights], error=error)


def _weights_file(path: str, name: Any, size: Any, version: Any) -> tuple[str, int, int | str]:
    if not isinstance(name, str) or type(size) is not int or type(version) not in (int, str):
        raise ValueError
    if _folder(name) != _folder(path):  # nobody looks at files, or asks servers, that only a journal names
        raise ValueError
    return name, size, version


def _folder(path: str) -> str:
    """The folder of a file; of a URL, the same URL without the file and its query."""
    if not is_url(path):
        return os.path.dirname(path)
    link = link_of_file(path)
    return path.replace(link, link.partition("?")[0].rpartition("/")[0], 1)


def _is_current(part: Part, found: Any) -> bool:
    """Whether the weights beside a file are unchanged. What is wrong with them may have been mended since."""
    if part.input.place[0] != FILE:
        return True
    if isinstance(found.error, (WeightsError, ChangedArtifactError)):
        return False
    try:
        return all(stamp(name) == tuple(then) for name, *then in found.weights)
    except (OSError, ImportError):
        return False


def _seen(finding: Finding) -> VerifiedPlace:
    about: Any = finding.input.about
    if isinstance(about, Verification):
        return _in_archive(finding, about)
    name = about.name
    if finding.error is not None:
        return VerifiedPlace(about, 1, {name: _named(finding.error, name)})
    # In the user's words: the folder may have been named in another way.
    weights = [(_as_given(file, name), *stamped) for file, *stamped in finding.found.weights]
    error = finding.found.error
    return VerifiedPlace(about, 1, {} if error is None else {name: error}, finding.found._replace(weights=weights))


def _in_archive(finding: Finding, parts: Verification) -> VerifiedPlace:
    place = parts.about
    name = place.archive.name
    try:
        count, errors = parts.take(finding)
    except (DeserializationError, OSError, ImportError) as error:  # in a file of weights, outside of its tensors
        return VerifiedPlace(place, 0, {name: error}, is_last=parts.is_done)
    return VerifiedPlace(place, count, {f"{name}{MEMBER}{one}": e for one, e in errors}, is_last=parts.is_done)


def _as_given(name: str, artifact: str) -> str:
    return name if is_url(name) else os.path.join(os.path.dirname(artifact), os.path.basename(name))


def _named(error: Exception, name: str) -> Exception:
    if isinstance(error, DeserializationError) and error.file is None:
        error.file = name
    return error


# --- in workers -----------------------------------------------------------------------------------------------------


def in_worker(parts: Parts, options: dict[str, Any]) -> list[Any]:
    """Reads files and parts of archives: returns an `InFile` for a file, and the result of `verification.read_part`."""
    policy = options["policy"]
    paths = [place[1] for place, _ in parts if place[0] == FILE and not is_url(place[1])]
    too_large = {} if policy is None else _too_large(paths, policy)
    said = iter(_native.verify_files([path for path in paths if path not in too_large], options["threads"]))

    def found(place: tuple[Any, ...], numbers: Sequence[int]) -> Any:
        if place[0] != FILE:
            return verification.read_part(place, numbers, **options)
        if (path := place[1]) in too_large:
            return too_large[path]
        one = _in_remote(path, policy) if is_url(path) else _in_local(path, *next(said))
        return one if one.error is not None or policy is None else _allowed(path, one, policy)

    return each(parts, found)


def _too_large(paths: Sequence[str], policy: Policy) -> dict[str, InFile]:
    """The files that the policy does not let anybody read."""
    found = {}
    for path in paths:
        try:
            size = os.path.getsize(path)
        except OSError:  # whoever reads it says what is wrong
            continue
        try:
            with Source(path, path).named():
                policy.check_size(size)
        except PolicyError as error:
            found[path] = InFile(size, error=packed(error))
    return found


def _in_local(
    path: str, size: int, has_digests: bool, has_files: bool, absolute_paths: Sequence[str], said: Any, wrong: Any
) -> InFile:
    if isinstance(wrong, int):
        raise OSError(wrong, os.strerror(wrong), path)
    found = InFile(size, has_digests, absolute_paths=absolute_paths)
    if wrong is not None:
        try:
            other = checked_other_file(path)
        except DeserializationError as damage:
            return found._replace(error=packed(damage))
        if other is not None:
            return InFile(size, other.has_digests, what=other.what)
        where, expected, what = wrong
        error = DeserializationError(where, expected, _found(what, where, path))
        return found._replace(error=packed(error))
    try:
        texts.check(*said)
    except DeserializationError as damage:
        return found._replace(error=packed(damage))
    if has_digests:
        with files.regular(path) as file:
            _, end = struct.unpack("<12sI", file.read(16))  # the end of the artifact, as it says itself
        found = found._replace(bytes_behind=max(0, size - int(end)))
    if not has_files:
        return found
    return _with_files(found, Source(path, path).opened())


def _in_remote(url: str, policy: Policy | None) -> InFile:
    size, found = 0, Source(url, url).opened(None if policy is None else policy.check_size)
    try:
        with found.source.named():
            size = memoryview(found.buffer).nbytes
            verify.check_program(artifact := found.artifact)
    except ExportError as error:
        return InFile(size, error=packed(error))
    has_digests = artifact.trailer() is not None
    behind = size - artifact.size if has_digests else 0
    modules = {link.module_place: link.module() for link in chain(artifact)}  # which functions may share
    paths = {path for module in modules.values() for path in _native.absolute_paths(module)}
    return _with_files(InFile(size, has_digests, (), None, behind, "", sorted(paths)), found)


def _with_files(said: InFile, found: Opened) -> InFile:
    """Adds the result for the weights and cases beside an artifact that is whole."""
    assert found.source.path is not None
    try:
        stamps = stamped(found.source.path, found.names())  # first, because a file may be replaced while it is read
        read = verify.files_of(found)
    except ExportError as error:
        return said._replace(error=packed(error), bytes_behind=0)
    weights = [(file, size, version) for (file, _), (_, size, version) in zip(read, stamps, strict=True)]
    return said._replace(weights=weights)


def _found(what: str, where: str, path: str) -> str:
    """What a file has in place of an artifact, and what to do."""
    try:
        with files.regular(path) as file:
            return instead_of_artifact(what, where, file.read(HEAD))
    except OSError:  # it was there a moment ago
        return what


def _allowed(path: str, found: InFile, policy: Policy) -> InFile:
    """Adds what a policy finds in the function."""
    from jaxexp._api.load import deserialize

    source = Source(path, path)
    try:
        with source.named():
            # The program is enough: its weights were verified, and it is not called.
            deserialize(source.read(policy.check_size), policy=policy)
    except ExportError as error:
        return found._replace(error=packed(error), bytes_behind=0)
    return found
