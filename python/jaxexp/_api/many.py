"""Reading many artifacts at once: files, buffers, and parts of one buffer, such as the members of an archive."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError, PolicyError, SignatureError
from jaxexp._kernel.function import data
from jaxexp._kernel.io.other_files import instead_of_artifact
from jaxexp._kernel.io.workers import worker_count
from jaxexp._public import public

from .exported import BoundExported, Exported
from .exported import reader as one_reader
from .load import check_policy, give_cases_beside, stored_weights

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from jaxexp._policy.policy import Policy
    from jaxexp._signing.reading import SignedFiles
    from jaxexp._signing.signed_by import SignedBy

OnError = Literal["raise", "return"]


@dataclasses.dataclass(frozen=True, slots=True)
class Manner:
    """The options for reading many artifacts; `load_many` explains them."""

    workers: int | None = None
    on_error: OnError = "raise"
    policy: Policy | None = None

    def __post_init__(self) -> None:
        check_policy(self.policy)

    @property
    def raises(self) -> bool:
        """Whether the first error is raised, and ends the work."""
        return self.on_error == "raise"

    def reader(self) -> _native.ReadMany:
        """A reader with these options, or an ExportError.

        It checks a policy only against what artifacts say of themselves; its caller checks the functions.
        """
        if self.on_error not in ("raise", "return"):
            raise ExportError(f'on_error has to be "raise" or "return", found {self.on_error!r}')
        admit = None if self.policy is None else self.policy.check_declared
        return one_reader.many(worker_count(self.workers), self.raises, admit)


@overload
def load_many(
    artifacts: Iterable[str | os.PathLike[str] | Buffer],
    *,
    workers: int | None = None,
    on_error: Literal["raise"] = "raise",
    policy: Policy | None = None,
    signed_by: SignedBy | None = None,
    stable: bool = False,
) -> list[Exported]: ...
@overload
def load_many(
    artifacts: Iterable[str | os.PathLike[str] | Buffer],
    *,
    workers: int | None = None,
    on_error: Literal["return"],
    policy: Policy | None = None,
    signed_by: SignedBy | None = None,
    stable: bool = False,
) -> list[Exported | Exception]: ...
@public
def load_many(
    artifacts: Iterable[str | os.PathLike[str] | Buffer],
    *,
    workers: int | None = None,
    on_error: OnError = "raise",
    policy: Policy | None = None,
    signed_by: SignedBy | None = None,
    stable: bool = False,
) -> list[Exported] | list[Exported | Exception]:
    """Reads functions from many files or buffers at once, faster than `load` or `deserialize` for each.

    Several threads read the files and verify the metadata, without Python's global lock. Meanwhile the caller's thread
    makes the functions, whose fields are decoded on the first access to one of them. Artifacts with equal metadata,
    such as versions of one model with different weights, are verified once, and decoded once. They share what cannot
    change: abstract values, tree structures and shardings.

    Python's cyclic garbage collector pauses while this runs.

    Args:
        artifacts: paths of files (str or os.PathLike) and buffers, in any mix, but no folders, no URLs and no members
            of archives (see `Archive.load_all`). Small files are read as a whole. Modules of large files are read when
            they are first used, as `load` explains.
        workers: how many threads may work, counting the caller's; by default one for each CPU that the process may use.
        on_error: what happens if an item fails. ``"raise"`` raises the error of the first item that fails, in the order
            of `artifacts`. ``"return"`` puts the exception in the place of the function and reads the other items.
        policy: what the artifacts may contain, as in `deserialize`.
        signed_by: who has to have signed the files, as in `load`. Then all of them are read as a whole, one after the
            other, before anything is made of them.
        stable: as in `load`.

    Returns:
        The functions, in the order of `artifacts`; with ``on_error="return"``, an exception for each item that failed.

    Raises:
        DeserializationError: as in `deserialize`. Its `file` is the path, or ``item 17`` for a buffer.
        PolicyError: as in `deserialize`, with `file` as above.
        SignatureError: as in `load`.
        OSError: a file cannot be read.
        TypeError: an item is neither a path nor a buffer; or `policy` is not a Policy, or `signed_by` no SignedBy.
        ExportError: `workers` or `on_error` has a value that is not allowed; or an item is a buffer, which cannot be
            signed.

    Example:
        >>> functions = load_many(sorted(pathlib.Path("models").glob("*.jaxexp")))
    """
    if isinstance(artifacts, (str, bytes, bytearray, memoryview, os.PathLike)):
        raise ExportTypeError(
            f"load_many reads many artifacts, in a list or another iterable, not {type(artifacts)}: "
            "use load or deserialize for one"
        )
    items: list[Any] = list(artifacts)
    manner = Manner(workers, on_error, policy)
    reader = manner.reader()
    if signed_by is not None:
        return _load_signed(items, reader, manner, signed_by)
    if policy is None:
        results, failed = reader.items(items, True, None)
        failed = _with_weights(items, results, failed, stable=stable)
        return _finish(results, failed, lambda i: _place(items[i], i), manner)
    refused = _too_large(items, policy)
    given: list[Any] = [None if i in refused else item for i, item in enumerate(items)] if refused else items
    # Read as a whole, so that what runs is what was checked.
    results, failed = reader.items(given, False, policy.max_artifact_bytes)
    for i in failed:
        if i in refused:
            results[i] = refused[i]
        elif isinstance(results[i], int):
            results[i] = _size_error(policy, results[i])
    failed = _without_refused(results, failed, manner)
    failed = _with_weights(items, results, failed, stable=stable)
    return _finish(results, failed, lambda i: _place(items[i], i), manner)


def _load_signed(items: list[Any], reader: _native.ReadMany, manner: Manner, by: SignedBy) -> list[Any]:
    """What `load_many` returns for signed files."""
    from jaxexp._signing.reading import SignedFiles, unnamed

    signed = SignedFiles(by)
    check_size = None if manner.policy is None else manner.policy.check_size
    refused: dict[int, Exception] = {}
    given: list[Any] = []
    for i, item in enumerate(items):
        if not isinstance(item, (str, os.PathLike)):
            raise unnamed("a buffer")
        try:
            given.append(signed.opened(item, check_size=check_size))
        except (SignatureError, PolicyError, OSError) as error:
            refused[i] = error
            given.append(None)
            if manner.raises:  # the items before it may have errors, too, and come first
                break
    results, failed = reader.items(given, False, None)
    for i in failed:
        results[i] = refused.get(i, results[i])
    failed = _without_refused(results, failed, manner)
    failed = _with_weights(items, results, failed, signed)
    return _finish(results, failed, lambda i: _place(items[i], i), manner)


def load_slices(
    owner: Any, extents: Sequence[tuple[int, int, Any]], name: Callable[[int], str], manner: Manner
) -> list[Any]:
    """The functions in parts of one buffer, which they share. Otherwise as `load_many`.

    Args:
        owner: the buffer. It is copied if it may change.
        extents: (offset, size, modules) of each artifact, where `modules` are the (offset, size) of modules that are
            stored apart from their artifact, the function's first; empty if there are none.
        name: the name of an artifact for errors, by its place.
        manner: how they are read.

    Returns:
        As `load_many`.
    """
    results, failed = manner.reader().slices(owner, list(extents))
    return _finish(results, _without_refused(results, failed, manner), name, manner)


def _with_weights(
    items: Sequence[Any],
    results: list[Any],
    failed: list[int],
    signed: SignedFiles | None = None,
    stable: bool = False,
) -> list[int]:
    """Gives programs from files their weights, or puts errors in their place; returns the indices of all errors."""
    without = set(failed)
    for i, (item, program) in enumerate(zip(items, results, strict=False)):  # an error may have ended the work
        if isinstance(program, Exception) or not isinstance(item, (str, os.PathLike)):
            continue
        try:
            give_cases_beside(program, item, signed)
            if data.weights_in_trailer(program) is None:
                continue
            results[i] = BoundExported.of(program, stored_weights(program, item, signed, stable))
        except (DeserializationError, SignatureError) as error:
            results[i] = error
            without.add(i)
    return sorted(without)


def _place(item: Any, index: int) -> str:
    """The name of an item for errors."""
    return os.fsdecode(item) if isinstance(item, (str, os.PathLike)) else f"item {index}"


def _too_large(items: Sequence[Any], policy: Policy) -> dict[int, PolicyError]:
    """The errors of buffers that are too large. The size of a file is checked when it is opened."""
    errors = {}
    for i, item in enumerate(items):
        if isinstance(item, (bytes, bytearray, memoryview)) and (error := _size_error(policy, memoryview(item).nbytes)):
            errors[i] = error
    return errors


def _size_error(policy: Policy, size: int) -> PolicyError | None:
    try:
        policy.check_size(size)
    except PolicyError as error:
        return error
    return None


def _finish(results: list[Any], failed: list[int], name: Callable[[int], str], manner: Manner) -> list[Any]:
    """Adds file names to errors, and raises the first error if `on_error` says so."""
    for i in failed:
        error = results[i]
        if isinstance(error, (DeserializationError, PolicyError)):
            error.file = name(i)
            if isinstance(error, DeserializationError) and error.path:
                error.found = instead_of_artifact(error.found, error.path, b"")
        elif isinstance(error, FileNotFoundError) and ("::" in name(i) or "://" in name(i)):
            results[i] = error = FileNotFoundError(error.errno, f"{error.strerror}. {_OTHER_PLACES}", name(i))
        elif isinstance(error, IsADirectoryError):
            advice = f"load_many takes the files in it, as in sorted(pathlib.Path({name(i)!r}).glob('*.jaxexp'))"
            results[i] = error = IsADirectoryError(error.errno, f"{error.strerror}. {advice}", name(i))
        elif not isinstance(error, (OSError, SignatureError)):  # which name the file
            error.add_note(f"This is about {name(i)}.")
        if manner.raises:
            raise error
    return results


_OTHER_PLACES = "load_many reads files and buffers; Archive.load_all loads members of an archive, and load from a URL"


def _without_refused(results: list[Any], failed: list[int], manner: Manner) -> list[int]:
    """Replaces functions that the policy does not allow with errors; returns the indices of all errors."""
    if manner.policy is None:
        return failed
    refused = set(failed)
    for i, exported in enumerate(results):
        if i in refused:
            continue
        try:
            manner.policy.check(exported)
        except ExportError as error:
            results[i] = error
            refused.add(i)
            if manner.raises:
                break
    return sorted(refused)
