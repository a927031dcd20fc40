"""Reading many artifacts at once: files, buffers, and parts of one buffer, such as the members of an archive."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from jaxexp._artifact import metadata as _metadata
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError, PolicyError
from jaxexp._exported import Exported, _LoadedVjp
from jaxexp._io.workers import worker_count
from jaxexp._write import serialize as _codec

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .policy import Policy

OnError = Literal["raise", "return"]

_MAKES = types.SimpleNamespace(Exported=Exported, LoadedVjp=_LoadedVjp, metadata_from_json=_metadata.from_json)


@overload
def load_many(
    artifacts: Iterable[str | os.PathLike[str] | Buffer],
    *,
    workers: int | None = None,
    on_error: Literal["raise"] = "raise",
    policy: Policy | None = None,
) -> list[Exported]: ...
@overload
def load_many(
    artifacts: Iterable[str | os.PathLike[str] | Buffer],
    *,
    workers: int | None = None,
    on_error: Literal["return"],
    policy: Policy | None = None,
) -> list[Exported | Exception]: ...
def load_many(
    artifacts: Iterable[str | os.PathLike[str] | Buffer],
    *,
    workers: int | None = None,
    on_error: OnError = "raise",
    policy: Policy | None = None,
) -> list[Exported] | list[Exported | Exception]:
    """The functions in many files or buffers: what `load` and `deserialize` return for each, sooner.

    Files are read, and all bytes verified, in several threads, without Python's global lock; the functions are made in
    the caller's thread meanwhile. Artifacts whose metadata are equal, as those of one model with other weights inside,
    are decoded once and share what nobody can change: abstract values, tree structures and shardings.

    Python's cyclic garbage collector pauses while this runs.

    Args:
        artifacts: paths (str or os.PathLike) and buffers, in any mixture. Small files are read as a whole; large ones
            are mapped, and what `load` says of other programs that change a file is true of them.
        workers: how many threads may work, this one included; by default one for each CPU that the process may use.
        on_error: what happens when an item fails. ``"raise"`` raises the error of the first one that does, in the
            order of `artifacts`; nothing is returned. ``"return"`` puts the exception in the place of its function, and
            reads the others.
        policy: what the artifacts may contain, as in `deserialize`.

    Returns:
        A list of `Exported`, in the order of `artifacts`; with ``on_error="return"``, of `Exported` or exceptions.

    Raises:
        DeserializationError: as in `deserialize`. Its `file` is the path, or ``item 17`` for a buffer. So it is for
        PolicyError: likewise.
        OSError: a file cannot be read.
        ExportTypeError: an item is neither a path nor a buffer.
        ExportError: `workers` or `on_error` is not one of the above.

    Example:
        >>> functions = load_many(sorted(pathlib.Path("models").glob("*.jaxexp")))
    """
    if isinstance(artifacts, (str, bytes, bytearray, memoryview, os.PathLike)):
        raise ExportTypeError(
            f"load_many reads many artifacts, in a list or another iterable, not {type(artifacts)}: "
            "use load or deserialize for one"
        )
    items = list(artifacts)
    reader = _reader(workers, on_error)
    if policy is None:
        results, failed = reader.items(items, True, None)
        return _finish(results, failed, lambda i: _place(items[i], i), on_error, None)
    refused = _too_large(items, policy)
    given = [None if i in refused else item for i, item in enumerate(items)] if refused else items
    # Read as a whole, so that what runs is what was checked.
    results, failed = reader.items(given, False, policy.max_artifact_bytes)
    for i in failed:
        if i in refused:
            results[i] = refused[i]
        elif isinstance(results[i], int):
            results[i] = _size_error(policy, results[i])
    return _finish(results, failed, lambda i: _place(items[i], i), on_error, policy)


def load_slices(
    owner: Any,
    extents: Sequence[tuple[int, int, Any]],
    names: Sequence[str],
    *,
    workers: int | None = None,
    on_error: OnError = "raise",
    policy: Policy | None = None,
) -> list[Any]:
    """The functions in parts of one buffer, which they share. Otherwise as `load_many`.

    Args:
        owner: the buffer. It is copied where it is writable.
        extents: (offset, size, modules) of each artifact, where `modules` are the (offset, size) of modules that are
            stored apart from their artifact, the function's first; empty where there are none.
        names: of the artifacts, for errors.
        workers: as in `load_many`.
        on_error: as in `load_many`.
        policy: as in `load_many`. The buffer must not change while this runs.

    Returns:
        As `load_many`.
    """
    results, failed = _reader(workers, on_error).slices(owner, list(extents))
    _let_go_of_pages(owner)
    return _finish(results, failed, names.__getitem__, on_error, policy)


def _let_go_of_pages(owner: Any) -> None:
    """Takes the pages of a mapped file, which were read for the metadata, out of this process's memory.

    They stay in the system's cache, from where the next access has them back.
    """
    mapped = owner.obj if isinstance(owner, memoryview) else owner
    if sys.platform == "linux" and isinstance(mapped, mmap.mmap):
        with memoryview(mapped) as view:
            read_only = view.readonly
        if read_only:  # what was written to a private mapping would be lost
            with contextlib.suppress(OSError):
                mapped.madvise(mmap.MADV_DONTNEED)


def _reader(workers: int | None, on_error: str) -> Any:
    if on_error not in ("raise", "return"):
        raise ExportError(f'on_error has to be "raise" or "return", found {on_error!r}')
    return _codec.reader_of_many(_MAKES, worker_count(workers), on_error == "raise")


def _place(item: Any, index: int) -> str:
    """What errors call an item."""
    return os.fsdecode(item) if isinstance(item, (str, os.PathLike)) else f"item {index}"


def _too_large(items: Sequence[Any], policy: Policy) -> dict[int, PolicyError]:
    """The errors of buffers, which have a size; that of a file is known when it is opened."""
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


def _finish(
    results: list[Any], failed: list[int], name: Callable[[int], str], on_error: OnError, policy: Policy | None
) -> list[Any]:
    """Checks the policy, says of errors what they are about, and raises the first if that is asked for."""
    if policy is not None:
        failed = sorted({*failed, *_refused(results, set(failed), on_error, policy)})
    for i in failed:
        error = results[i]
        if isinstance(error, (DeserializationError, PolicyError)):
            error.file = name(i)
        elif not isinstance(error, OSError):
            error.add_note(f"This is about {name(i)}.")
        if on_error == "raise":
            raise error
    return results


def _refused(results: list[Any], failed: set[int], on_error: OnError, policy: Policy) -> list[int]:
    """Replaces functions that the policy does not allow by errors."""
    refused = []
    for i, exported in enumerate(results):
        if i in failed:
            continue
        try:
            policy.check(exported)
        except ExportError as error:
            results[i] = error
            refused.append(i)
            if on_error == "raise":
                break
    return refused
