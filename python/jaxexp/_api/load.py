"""Reading artifacts: from a buffer, and from many buffers and files at once; and what a caller asks of them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError, PolicyError, SignatureError, WeightsError
from jaxexp._kernel.artifact.words import check_flags
from jaxexp._kernel.function import data
from jaxexp._kernel.io.files import is_url, path_here
from jaxexp._kernel.io.lock import worker_count
from jaxexp._kernel.io.other_files import instead_of_artifact
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
    from jaxexp._weights.files.header import Table
    from jaxexp._weights.files.places import Take
    from jaxexp._weights.files.reading import Tensors
else:  # so that `typing.get_type_hints` takes `deserialize`, as it takes that of jax.export
    Buffer = Policy = Any

_read = reader.read


@public
def deserialize(blob: Buffer, *, policy: Policy | None = None) -> Exported:
    """Reads a function from the bytes that `Exported.serialize` returned, in jaxexp or in any `jax.export` since JAX
    0.4.22.

    All metadata is verified now. The fields are decoded on the first access to one of them, except fields that JAX or a
    registered function might refuse. The module and the VJPs are read from the buffer, and compared with their digests,
    when they are needed. So the function keeps `bytes` in use; a memoryview of them may be released. Any other buffer
    (a bytearray, a mapped file, a read-only view of either) is copied first, so you may change it afterwards.

    Verification covers the structure of the artifact. A loaded function is a program, and may run any custom call that
    is registered in the process. Load only artifacts that you trust, or pass a policy.

    Args:
        blob: an object with a contiguous buffer: bytes, bytearray, memoryview, mmap or an array of bytes. Bytes after
            the artifact are ignored.
        policy: the allowed contents of the artifact and its VJPs; None allows everything. It is checked before the
            function is returned, and not again for functions and artifacts that you make from it.

    Raises:
        DeserializationError: the bytes are not an artifact that can be read here. The error names the place, the
            requirement and the content. Functions registered for pytree nodes may also refuse the data.
        PolicyError: the policy does not allow something in the artifact. The error names it, its place, and the field
            that would allow it.
        TypeError: `blob` is not a buffer, or not a contiguous one (then the error is also a BufferError); or `policy`
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


class Trust(NamedTuple):
    """What a caller asks of an artifact and of the files that it uses, as `load` says.

    Attributes:
        signed: the files that are signed; None for all.
    """

    policy: Policy | None = None
    signed: SignedFiles | None = None
    verify: bool = False
    stable: bool = False

    @classmethod
    def of(
        cls, policy: Policy | None, signed_by: SignedBy | None = None, verify: bool = False, stable: bool = False
    ) -> Trust:
        """What the arguments of `load` say."""
        check_policy(policy)
        check_flags(verify=verify, stable=stable)
        if signed_by is None:
            return cls(policy, None, verify, stable)
        from jaxexp._signing.reading import SignedFiles

        return cls(policy, SignedFiles(signed_by), verify, stable)

    @property
    def check_size(self) -> Callable[[int], None] | None:
        """Is called with a size before more than that is read; None if any size will do."""
        return None if self.policy is None else self.policy.check_size

    def executables(self, path: str | os.PathLike[str] | None, used_by: str) -> FileBytes | None:
        """The bytes of a file of executables, if it has to be signed; None otherwise."""
        if self.signed is None or path is None:
            return None
        return self.signed.opened(path_here(path, "executables="), used_by)

    def function(
        self, buffer: Any, executables: str | os.PathLike[str] | None = None, code: FileBytes | None = None
    ) -> Exported:
        """The function in bytes that were read; of a function with weights, the program. `code` is what is in the file
        of executables, if it was read already.
        """
        exported = deserialize(buffer, policy=self.policy)
        if self.verify:
            verify_modules(exported)
        if executables is not None:
            from jaxexp._executables.executables import attach  # most functions do not need it

            attach(exported, executables, code)
        return exported

    def with_files(self, exported: Exported, path: str | os.PathLike[str]) -> Exported:
        """A function from a file with its weights and cases, which are in files beside it. They are opened when they
        are needed; now, if they have to be signed or verified.
        """
        give_cases(exported, functools.partial(self._tensors, path, "in pieces"), verify=self.verify)
        if data.weights_in_trailer(exported) is None:
            return exported
        from jaxexp._weights.bound.program import stored  # imports what calls need, which most functions load later

        take: Take = "copied" if self.stable else "mapped"
        weights = stored(exported, lambda table, _: self._tensors(path, take, table))
        if self.verify:
            weights.check_digests()
        return BoundExported.of(exported, weights)

    def _tensors(self, path: str | os.PathLike[str], take: Take, table: Table) -> Tensors:
        """The tensors of a table in files beside a path."""
        from jaxexp._weights.files.reading import Opening, StoredTensors

        if self.signed is None:
            return StoredTensors(path, table, Opening(take))
        check = functools.partial(self.signed.check, used_by=os.fsdecode(path))
        return StoredTensors(path, table, Opening.signed(check))


def give_cases(exported: Exported, stored: Callable[[Table], Tensors | None], *, verify: bool = False) -> Cases | None:
    """Lets a function find the arrays of its cases in files beside its artifact, if there are some, and returns these
    cases. `stored` finds the files, given what the trailer says of them; None if they are missing. With `verify`, they
    are read now.
    """
    cases = data.cases_of(exported)
    if cases is None or not cases.table.files:
        return None
    from jaxexp._weights.files.header import Table

    from .cases.files import reader_of

    if (found := stored(Table.of_trailer(*cases.table))) is None:
        return None
    if verify:
        found.check_digests()
    cases = cases.beside(reader_of(found))
    data.note(exported, cases=cases)
    return cases


def refuse_both(name: str, policy: Policy | None, executables: str | os.PathLike[str] | None) -> None:
    """Raises an ExportError if both are given. The name is the artifact's, for the message, and may be empty."""
    if executables is not None and policy is not None:
        raise ExportError(
            f"{f'loading {name!r}: ' if name else ''}policy= and executables= exclude each other, because executables "
            "are native code, which no policy can check. Leave out one of the two"
        )


def refuse_weights_beside_url(exported: Exported, url: str) -> None:
    """Raises a WeightsError if there are weights: without them, the function takes an unexpected first argument."""
    if (weights := data.weights_in_trailer(exported)) is not None:
        names = ", ".join(repr(name) for name, *_ in weights[0])
        raise WeightsError(
            "", "a program without weights, or a member of an archive (its weights are read by URL, too)",
            f"one with weights beside it in {names}: copy all files into one folder, and load from it", file=url,
        )  # fmt: skip


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
    makes the functions. Artifacts with equal metadata, such as versions of one model, are verified and decoded once.
    They share abstract values, tree structures and shardings.

    Python's cyclic garbage collector pauses while this runs.

    Args:
        artifacts: paths of files (str or os.PathLike) and buffers, in any mix. For members of archives, use
            `Archive.load_all`. Folders and URLs are not accepted. Modules of large files are read when they are first
            used, as in `load`.
        workers: the number of threads, including the caller's; by default one for each CPU that the process may use.
        on_error: ``"raise"`` raises the error of the first item that fails, in the order of `artifacts`. ``"return"``
            puts the exception in place of the function, and reads the other items.
        policy: the allowed contents of the artifacts, as in `deserialize`.
        signed_by: the trusted signer of the files, as in `load`. All files are then read as a whole, one after the
            other, and verified first.
        stable: as in `load`.

    Returns:
        The functions, in the order of `artifacts`; with ``on_error="return"``, an exception for each item that failed.

    Raises:
        DeserializationError: as in `deserialize`. Its `file` is the path, or ``item 17`` for a buffer.
        PolicyError: as in `deserialize`, with `file` as above.
        SignatureError: as in `load`.
        OSError: a file cannot be read.
        TypeError: an item is neither a path nor a buffer, `policy` is not a Policy, or `signed_by` is not a SignedBy.
        ExportError: `workers` or `on_error` has a value that is not allowed; or `signed_by` is given, and an item is a
            buffer.

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
    trust = Trust.of(policy, signed_by, stable=stable)
    refused: dict[int, Exception] = {}
    given = items
    if policy is not None or trust.signed is not None:
        given = []
        for i, item in enumerate(items):
            try:
                given.append(_admitted(item, trust))
            except (SignatureError, PolicyError, OSError) as error:
                refused[i] = error
                given.append(None)
                if manner.raises:  # the items before it may have errors, too, and come first
                    break
    # With a policy, files are read as a whole, so that what runs is what was checked.
    most = None if policy is None or trust.signed is not None else policy.max_artifact_bytes
    results, failed = reader.items(given, given is items, most)
    for i in failed:
        results[i] = refused.get(i, results[i])

    def name(i: int) -> str:
        return os.fsdecode(items[i]) if isinstance(items[i], (str, os.PathLike)) else f"item {i}"

    def with_files(i: int, exported: Exported) -> Exported:
        return trust.with_files(exported, items[i]) if isinstance(items[i], (str, os.PathLike)) else exported

    return _finished(results, failed, name, manner, with_files)


def _admitted(item: Any, trust: Trust) -> Any:
    """An item, as it may be read: a file that has to be signed is read now, and a buffer may not be too large. The size
    of another file is checked when it is opened.
    """
    if trust.signed is None:
        if trust.check_size is not None and isinstance(item, (bytes, bytearray, memoryview)):
            trust.check_size(memoryview(item).nbytes)
        return item
    if not isinstance(item, (str, os.PathLike)):
        from jaxexp._signing.reading import unnamed

        raise unnamed("a buffer")
    return trust.signed.opened(item, check_size=trust.check_size)


def load_slices(
    owner: Any, extents: Sequence[tuple[int, int, Any]], name: Callable[[int], str], manner: Manner
) -> list[Any]:
    """The functions in parts of one buffer, which they share, and which is copied if it may change. As `load_many`.

    Args:
        extents: (offset, size, modules) of each artifact, where `modules` are the (offset, size) of modules that are
            stored apart from their artifact, the function's first; empty if there are none.
        name: the name of an artifact for errors, by its place.
    """
    results, failed = manner.reader().slices(owner, list(extents))
    return _finished(results, failed, name, manner)


def _finished(
    results: list[Any],
    failed: Sequence[int],
    name: Callable[[int], str],
    manner: Manner,
    complete: Callable[[int, Any], Exported] | None = None,
) -> list[Any]:
    """The functions, which the policy allows, each completed; or errors that name the file, or the first of them.

    Args:
        results: functions; and in the places `failed` errors, and sizes that the policy does not allow.
        name: the name of an artifact for errors, by its place.
        complete: gives a program its files.
    """
    policy, wrong = manner.policy, set(failed)
    for i in failed if policy is None and complete is None else range(len(results)):
        error = found = results[i]
        if not isinstance(found, Exception):
            try:
                if policy is not None:
                    (policy.check_size if i in wrong else policy.check)(found)
                if complete is not None:
                    results[i] = complete(i, found)
                continue
            except ExportError as refused:
                error = refused
        results[i] = error = _about(error, name(i))
        if manner.raises:
            raise error
    return results


def _about(error: Exception, name: str) -> Exception:
    """The error about an artifact of this name."""
    if isinstance(error, (DeserializationError, PolicyError)):
        error.file = name
        if isinstance(error, DeserializationError):
            error.found = instead_of_artifact(error.found, error.path, b"")
    elif isinstance(error, FileNotFoundError) and ("::" in name or is_url(name)):
        return FileNotFoundError(error.errno, f"{error.strerror}. {_OTHER_PLACES}", name)
    elif isinstance(error, IsADirectoryError):
        advice = f"load_many takes the files in it, as in sorted(pathlib.Path({name!r}).glob('*.jaxexp'))"
        return IsADirectoryError(error.errno, f"{error.strerror}. {advice}", name)
    elif not isinstance(error, (OSError, SignatureError)):  # which name the file
        error.add_note(f"This is about {name}.")
    return error


_OTHER_PLACES = "load_many reads files and buffers; Archive.load_all loads members of an archive, and load from a URL"
