"""`load` makes a function from an artifact, wherever it is; `check` and `record` compare and add calls of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import BusyError, DeserializationError, ExportError
from jaxexp._kernel.artifact.opened import opened
from jaxexp._kernel.artifact.words import check_flags
from jaxexp._kernel.io import files, lock
from jaxexp._kernel.io.other_files import ARTIFACT
from jaxexp._public import public

from .source import Opened, source, split, stored_beside

if TYPE_CHECKING:
    from jaxexp._api.cases.report import CheckReport as CheckReport
    from jaxexp._api.exported import Exported
    from jaxexp._api.load import Trust
    from jaxexp._kernel.artifact.cases import Case, Cases
    from jaxexp._policy.policy import Policy
    from jaxexp._signing.signed_by import SignedBy
    from jaxexp._weights.files.reading import Check as Check

    from .source import Given, Source


@public
def load(
    artifact: Given,
    *,
    policy: Policy | None = None,
    verify: bool = False,
    executables: str | os.PathLike[str] | None = None,
    signed_by: SignedBy | None = None,
    stable: bool = False,
) -> Exported:
    """Reads a function from a file that `Exported.save` wrote, from a member of an archive, or from bytes of
    `Exported.serialize`.

    A file below 1 MB is read at once. From a larger file with a trailer, each module is read when it is first used; the
    file stays open until then. `Exported.save` replaces files, which does not affect loaded functions. If another
    program changes the file in place, the function stays the same, or the first use of a module raises a
    DeserializationError. With a policy, the whole file is read at once, so that the checked code is the code that runs.

    A function that was saved with weights is returned as a `BoundExported`. Its files of weights must be in the same
    folder, and are opened when the first weight is needed; weights of a member are in its archive. From a buffer or a
    file object, the result is the program, which takes the weights as its first argument.

    Args:
        artifact: a path, as a str or an object such as `pathlib.Path`; a member of an archive, as in
            ``"fleet.zip::resnet/b8"`` (the archive may be a URL) or as a `Handle`; a binary file object, which is read
            from its position to its end; or a buffer, as for `deserialize`. A str with ``://`` is a URL that fsspec
            supports, which is read as a whole.
        policy: the allowed contents of the artifact, as in `deserialize`.
        verify: whether to read all modules, weights and cases now, and to compare them with their digests. By default,
            a module is compared when it is first used, and for weights only the sizes and the digest in their files'
            headers are compared. The bytecode of a module is checked when it is used.
        executables: a file that `Exported.precompile` wrote. It has native code: trust it as you trust a program. Eager
            calls use the code that fits. If no code fits, they compile as always, and `Exported.executables` says why;
            it is empty if the file has code of other functions only.
        signed_by: the trusted signer of the artifact, its weights and the file of executables; `sign` signs files. Each
            file is read once, as a whole, and compared with the signed SHA-256 before its bytes are used, so weights
            are copied to memory instead of mapped. This needs the package ``model-signing`` (extra ``jaxexp[sign]``).
        stable: whether files of weights are copied to memory when they are opened, instead of mapped. If another
            program shortens a mapped file, the process ends with SIGBUS; if it writes to the file, calls may compute
            with the new bytes.

    Raises:
        DeserializationError: as in `deserialize`; the error names the file. Or the artifact is behind a URL, and its
            weights are in files beside it.
        PolicyError: as in `deserialize`; the error names the file.
        SignatureError: a file has no signature by `signed_by`, or has changed since it was signed.
        ExportError: both `policy` and `executables` are given: a policy cannot judge native code. Or `signed_by` is
            given for a buffer, a file object or a URL. Or `signed_by` or `stable` is given for a `Handle`: open its
            archive with them.
        ImportError: `signed_by` is given, and ``model-signing`` is not installed.
        KeyError: the archive has no such member.
        OSError: a file cannot be opened.
        TypeError: `artifact` has another type, or is a file object opened for text; `policy` is not a Policy, or
            `signed_by` is not a SignedBy.

    Example:
        >>> exported = load("model.jaxexp")
        >>> exported = load("fleet.zip::resnet/b8", policy=Policy(platforms=("cpu",)))
        >>> exported = load("model.jaxexp", signed_by=SignedBy(public_key="release.pub"))
    """
    return _load("load", artifact, policy, verify, executables, signed_by, stable)


def _load(
    function: str,
    artifact: Given,
    policy: Policy | None,
    verify: bool = False,
    executables: str | os.PathLike[str] | None = None,
    signed_by: SignedBy | None = None,
    stable: bool = False,
) -> Exported:
    """`load` for a function that the user called."""
    from jaxexp._api.load import Trust, refuse_both  # which import JAX

    found = source(artifact, function, signed_by, stable)
    refuse_both(found.name, policy, executables)
    trust = Trust.of(policy, signed_by if found.handle is None else None, verify, stable)
    return loaded(found.opened(trust.check_size), trust, executables)


def loaded(found: Opened, trust: Trust, executables: str | os.PathLike[str] | None = None) -> Exported:
    """The function of an artifact, as `trust` says; of a member, whose archive was opened so."""
    from jaxexp._api.load import give_cases, refuse_weights_beside_url
    from jaxexp._kernel.function.data import kept_by

    place = found.source
    if place.handle is not None:
        return place.handle.load(policy=trust.policy, verify=trust.verify, executables=executables)
    with place.named():
        code = trust.executables(executables, place.name)  # before anything is made of the artifact
        if trust.signed is not None:
            found.buffer = trust.signed.opened(place.name, check_size=trust.check_size)
        exported = trust.function(found.buffer, executables, code)
        if place.path is None:
            return exported
        if place.is_file:
            exported = trust.with_files(exported, place.path)
        else:
            refuse_weights_beside_url(exported, place.path)
            give_cases(exported, lambda table: stored_beside(place.name, table))
        for one in (exported, exported.unbound):  # of a function with weights, two
            vars(kept_by(one))["file"] = place.name
        return exported


def cases_in(source: Source, buffer: Any, policy: Policy | None = None, check: Check | None = None) -> tuple[Case, ...]:
    """The cases in an artifact of these bytes. `check` raises an error if a file beside it is not to be used."""
    from jaxexp._api.cases.files import reader_of
    from jaxexp._kernel.artifact.cases import Cases
    from jaxexp._weights.files.reading import Opening

    with source.named():
        found = Opened(source, buffer)
        if policy is not None:
            from jaxexp._policy.limits.limits import Limits

            Limits(policy).cases(found.artifact, f"the artifact of {found.artifact.fun_name}")
        said = found.artifact.cases()
    if said is None:
        return ()
    stored = found.cases(None if check is None else Opening.signed(check))
    return Cases.of_trailer(said, None if stored is None else reader_of(stored)).all


def check_by(
    call: Callable[[int, Sequence[Any]], Sequence[Any]],
    paths: Callable[[int], Sequence[str]],
    name: str,
    cases: Sequence[Case],
    facts: Mapping[str, str],
    tolerance: Any,
    max_drawn_bytes: int,
) -> CheckReport:
    """Checks cases. `call` calls the VJP of an order (0 for the function itself) with flat arguments, and returns its
    flat results, and `paths` returns their paths. `facts` say what runs the function.
    """
    from jaxexp._api.cases import machine
    from jaxexp._api.cases.replaying import replayed

    here = machine.described(facts)
    return replayed(name, cases, call, paths, here, tolerance, max_drawn_bytes)


@public
def check(
    artifact: Given,
    *,
    tolerance: Any = None,
    max_drawn_bytes: int = 1 << 32,
    policy: Policy | None = None,
    signed_by: SignedBy | None = None,
) -> CheckReport:
    """Repeats the recorded calls of an artifact, and compares the results with the recorded ones.

    This runs the function: check only artifacts that you trust, or pass a policy.

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.
        tolerance, max_drawn_bytes: as in `Exported.check`.
        policy, signed_by: as in `load`.

    Raises:
        ExportError: as in `Exported.check` and `load`.
        DeserializationError: as in `load`.
        PolicyError: as in `load`.
        SignatureError: as in `load`.
        ImportError: as in `load`.
        KeyError: the archive has no such member.
        OSError: a file cannot be opened.
        TypeError: `load` does not accept an argument.

    Example:
        >>> assert jaxexp.check("model.jaxexp").ok
    """
    function = _load("check", artifact, policy, signed_by=signed_by)
    return function.check(tolerance=tolerance, max_drawn_bytes=max_drawn_bytes)


@public
def record(path: str | os.PathLike[str], cases: Iterable[Any], *, replace: bool = False) -> tuple[Case, ...]:
    """Calls a saved function, and adds the arguments and results to its file as cases, so that `check` can repeat the
    calls.

    Only the trailer is written again; the bytes for `jax.export` stay the same. The new file replaces the old one when
    it is complete.

    Args:
        path: the file. Weights must be beside it.
        cases: as in `Exported.save`.
        replace: whether the new cases replace the old cases of the file. By default, they are added.

    Returns:
        All cases of the file.

    Raises:
        ExportError: as in `Exported.save`; or `path` is a URL.
        DeserializationError: the file is not an artifact, is damaged, or has no trailer (`migrate` writes one); or its
            weights are missing or damaged.
        BusyError: another writer saved the file meanwhile. Its file stays.
        OSError: a file cannot be read or written.
        TypeError: a case is neither a tuple nor a dict.

    Example:
        >>> jaxexp.record("model.jaxexp", [(np.ones((8, 784), np.float32),)])
    """
    from jaxexp._api.cases import files as beside
    from jaxexp._api.cases.recording import recorded

    check_flags(replace=replace)
    name = files.path_here(path, "record", ". A function that is not saved yet takes cases= in save")
    if split(name)[1] is not None:
        raise ExportError(
            f"record writes files, and {name!r} is a member of an archive: ArchiveWriter.add takes cases="
        )
    with lock.locked(name) as read, files.named_in_errors(name):
        blob = memoryview(files.file_bytes(name, at_once=True))  # type: ignore[arg-type]  # a buffer
        if opened(blob).trailer() is None:
            raise DeserializationError(
                "trailer", "a trailer, which holds the cases", "no trailer: migrate writes an artifact with one"
            )
        made = recorded(load(name, verify=True), cases, add=not replace)

        def write(placed: Cases) -> None:
            with files.replacing(name, ARTIFACT) as file:
                file.write(_native.with_cases(blob, placed.for_trailer()))
                if not os.path.samestat(os.fstat(read.fileno()), os.stat(name)):
                    raise BusyError(f"{name!r} was saved by another writer meanwhile; record again")

        with lock.folder_locked(os.path.dirname(os.path.realpath(name))):
            beside.save(name, made, write)
    return made
