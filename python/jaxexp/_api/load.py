"""Reading artifacts: from a buffer, and from a file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError, PolicyError, SignatureError, WeightsError
from jaxexp._kernel.function import data
from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import instead_of_artifact
from jaxexp._kernel.io.workers import worker_count
from jaxexp._kernel.read.decode import verified, verify_modules
from jaxexp._public import public

from .exported import BoundExported, Exported, reader

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from jaxexp._kernel.artifact.cases import Cases
    from jaxexp._native import FileBytes
    from jaxexp._policy.policy import Policy
    from jaxexp._signing.reading import SignedFiles
    from jaxexp._signing.signed_by import SignedBy
    from jaxexp._weights.arrays.weights import Weights
    from jaxexp._weights.files.header import Table
    from jaxexp._weights.files.places import Take
    from jaxexp._weights.files.reading import Opening, Tensors
else:  # so that `typing.get_type_hints` takes `deserialize`, as it takes that of jax.export
    Buffer = Policy = Any

_read = reader.read


@public
def deserialize(blob: Buffer, *, policy: Policy | None = None) -> Exported:
    """Reads a function from the bytes that `Exported.serialize` returned, in jaxexp or in any `jax.export` since JAX
    0.4.22.

    All metadata is verified now. The fields are decoded on the first access to one of them, except fields that JAX or a
    registered function might refuse. The module and the VJPs are read from the buffer when they are needed, and
    compared with their digests then. So `bytes` stay in use as long as the function does; a memoryview of them may be
    released. Any other buffer (a bytearray, a mapped file, a read-only view of either) is copied first, so you may
    change it afterwards.

    Verification covers the structure, not what the module does. A loaded function is a program, and may run any custom
    call that is registered in the process. Load only what you trust, or pass a policy, which is checked before the
    function is returned.

    Args:
        blob: an object with a contiguous buffer: bytes, bytearray, memoryview, mmap or an array of bytes. Bytes after
            the artifact are ignored.
        policy: what the artifact may contain; None allows anything. It is checked only here, not again for VJPs,
            specialized functions and new artifacts that you make from the function later.

    Raises:
        DeserializationError: the bytes are not an artifact that can be read here. The error says where, what was
            expected, and what was found. Functions registered for pytree nodes may also refuse the data.
        PolicyError: the artifact contains something that the policy does not allow. The error says what, where, and
            which field would allow it.
        TypeError: `blob` is not a contiguous buffer (the error is a BufferError, too, if it is a buffer), or `policy`
            is not a Policy.
    """
    if policy is None:
        return _read(blob)
    check_policy(policy)
    with contextlib.suppress(TypeError):  # not a buffer, which is refused below
        policy.check_size(memoryview(blob).nbytes)
    artifact = verified(blob)
    policy.check_declared(artifact)
    exported: Exported = reader.decode(artifact)
    policy.check(exported)
    return exported


def check_policy(policy: object) -> None:
    """Raises ExportTypeError if what a caller passed as `policy` is neither a policy nor None."""
    if policy is not None:
        from jaxexp._policy.policy import check_is_policy

        check_is_policy(policy)


def load_file(
    path: str,
    policy: Policy | None,
    verify: bool,
    executables: str | os.PathLike[str] | None,
    signed_by: SignedBy | None = None,
    stable: bool = False,
) -> Exported:
    """What `load` returns for a file."""
    with files.named_in_errors(path):
        check_size = None if policy is None else policy.check_size
        signed = code = None
        if signed_by is not None:
            from jaxexp._signing.reading import SignedFiles

            signed = SignedFiles(signed_by)
            if executables is not None:  # before anything is made of the artifact
                code = signed.opened(executables, path)
            buffer: Any = signed.opened(path, check_size=check_size)  # which types can say since Python 3.12
            exported = deserialize(buffer, policy=policy)
        elif check_size is not None:
            exported = deserialize(files.read(path, check_size), policy=policy)
        else:
            exported = reader.read(files.opened(path))
        if verify:
            verify_modules(exported)
        if executables is not None:
            give_executables(exported, executables, code)
        give_cases_beside(exported, path, signed, verify=verify)
        if data.weights_in_trailer(exported) is None:
            return exported
        weights = stored_weights(exported, path, signed, stable)
    if verify:
        weights.check_digests()  # errors name the file of weights
    return BoundExported.of(exported, weights)


def give_cases(exported: Exported, stored: Callable[[Table], Tensors | None], *, verify: bool = False) -> Cases | None:
    """Lets a function find the arrays of its cases in files beside its artifact, if there are some, and returns these
    cases. `stored` finds the files, given what the trailer says of them; None if they are missing. With `verify`, they
    are read now.
    """
    cases = data.cases_of(exported)
    if cases is None or not cases.table.files:
        return None
    from jaxexp._api.cases.files import reader_of
    from jaxexp._weights.files.header import Table

    if (found := stored(Table.of_trailer(*cases.table))) is None:
        return None
    if verify:
        found.check_digests()
    cases = cases.beside(reader_of(found))
    data.note(exported, cases=cases)
    return cases


def give_cases_beside(
    exported: Exported, path: str | os.PathLike[str], signed: SignedFiles | None = None, *, verify: bool = False
) -> None:
    """The same for files on this machine, which are opened when they are needed. With `signed`, they are read now, and
    have to be among these.
    """

    def stored(table: Table) -> Tensors:
        from jaxexp._weights.files.reading import StoredTensors

        return StoredTensors(path, table, _opening(path, signed, "in pieces"))

    give_cases(exported, stored, verify=verify)


def stored_weights(
    exported: Exported, path: str | os.PathLike[str], signed: SignedFiles | None = None, stable: bool = False
) -> Weights:
    """The weights in files beside a program, which are mapped later; copied to memory later if they are to be stable.
    With `signed`, they are read now, and have to be among these.

    Raises:
        DeserializationError: they do not fit the program.
        SignatureError: they are not signed.
    """
    from jaxexp._weights.bound.program import stored  # imports what calls need, which most functions load later
    from jaxexp._weights.files.reading import StoredTensors

    how = _opening(path, signed, "copied" if stable else "mapped")
    return stored(exported, lambda table, _: StoredTensors(path, table, how))


def _opening(path: str | os.PathLike[str], signed: SignedFiles | None, take: Take) -> Opening:
    """How files beside an artifact are opened, unless they have to be signed."""
    from jaxexp._weights.files.reading import Opening

    if signed is None:
        return Opening(take)
    return Opening.signed(functools.partial(signed.check, used_by=os.fsdecode(path)))


def load_bytes(
    buffer: Buffer, policy: Policy | None, verify: bool, executables: str | os.PathLike[str] | None
) -> Exported:
    """What `load` returns for bytes; for a function with weights, the program."""
    exported = deserialize(buffer, policy=policy)
    if verify:
        verify_modules(exported)
    if executables is not None:
        give_executables(exported, executables)
    return exported


def refuse_both(name: str, policy: Policy | None, executables: str | os.PathLike[str] | None) -> None:
    """Raises an ExportError if both are given. The name is the artifact's, for the message, and may be empty."""
    if executables is not None and policy is not None:
        raise ExportError(
            f"{f'loading {name!r}: ' if name else ''}a policy says what a program may contain, and executables are "
            "native code, which no policy can check. Leave out one of the two"
        )


def refuse_weights_beside_url(exported: Exported, url: str) -> None:
    """Raises a WeightsError if there are weights: without them, the function takes an unexpected first argument."""
    if (weights := data.weights_in_trailer(exported)) is not None:
        names = ", ".join(repr(name) for name, *_ in weights[0])
        raise WeightsError(
            "", "a program without weights, or a member of an archive (its weights are read by URL, too)",
            f"one with weights beside it in {names}: copy all files into one folder, and load from it", file=url,
        )  # fmt: skip


def give_executables(exported: Exported, path: str | os.PathLike[str], file: FileBytes | None = None) -> None:
    """Makes a function use the code in a file of executables; `file` is its bytes, if they were read already."""
    from jaxexp._executables.executables import attach  # most functions do not need it

    attach(exported, path, file)


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
        return reader.many(worker_count(self.workers), self.raises, admit)


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
