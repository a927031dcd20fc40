"""`load` makes a function from an artifact, wherever it is; `check` and `record` compare and add calls of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import BusyError, DeserializationError, ExportError
from jaxexp._kernel.artifact.opened import opened
from jaxexp._kernel.io import files, lock
from jaxexp._public import public

from .source import Opened, is_url, source, split, stored_beside

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

    A file below 1 MB is read at once. From a larger one with a trailer, each module is read when it is first used; the
    file stays open until then. `Exported.save` replaces files, which does not affect loaded functions. If another
    program changes the file in place, the function stays what it was, or the first use of a module raises a
    DeserializationError. With a policy, the whole file is read at once, so that the code that runs is the code that was
    checked.

    If the function was saved with weights, it is returned as a `BoundExported`. The files of weights, which have to be
    in the same folder, are opened when the first weight is needed; weights of a member are in its archive. Bytes
    without a folder give the program, which takes the weights as its first argument.

    Args:
        artifact: a path, as a str or an object such as `pathlib.Path`; a member of an archive, as in
            ``"fleet.zip::resnet/b8"`` (the archive may be a URL) or as a `Handle`; a binary file object, which is read
            from where it is to its end; or a buffer, as for `deserialize`. A str with ``://`` is a URL that fsspec
            supports; all of it is read.
        policy: what the artifact may contain, as in `deserialize`.
        verify: whether to read all modules now, also those of VJPs, and compare them with their digests; otherwise
            each module is compared when it is first used. With True, weights and cases are read and compared with
            their digests, too; otherwise only the sizes of weights are checked, and the digest of their content that
            their files state. The bytecode of a module is checked when it is used.
        executables: a file that `Exported.precompile` wrote. It has native code, which can do anything that the process
            may do, so trust it as you trust a program. Eager calls use the code that fits; if none does, they compile
            as always, and `Exported.executables` says why.
        signed_by: who has to have signed the artifact, its weights and the file of executables; `sign` signs files.
            Signatures are verified first of all. Each file is read once, as a whole, and these bytes are compared with
            the signed SHA-256 before anything looks at them, and then used: weights are copied to memory instead of
            mapped. This needs the package ``model-signing`` (extra ``jaxexp[sign]``).
        stable: whether files of weights are copied to memory when they are opened, instead of mapped. If another
            program shortens a mapped file, the process ends with SIGBUS; if it writes to the file, calls may compute
            with the new bytes.

    Raises:
        DeserializationError: as in `deserialize`; it names the file. Or the artifact is at a URL, and its weights are
            in files beside it.
        PolicyError: as in `deserialize`; it names the file.
        SignatureError: a file is not signed by whom `signed_by` says, or is not what was signed.
        ExportError: both `policy` and `executables` are given: a policy cannot judge native code. Or `signed_by` is
            given, and the artifact is not in a file on this machine, but a buffer, a file object or behind a URL; or it
            is a `Handle`, whose archive has to be opened with `signed_by`; the same holds for `stable`.
        ImportError: `signed_by` is given, and ``model-signing`` is not installed.
        KeyError: the archive has no such member.
        OSError: a file cannot be opened.
        TypeError: `artifact` is none of these, or a file object opened for text; or `policy` is not a Policy, or
            `signed_by` no SignedBy.

    Example:
        >>> exported = load("model.jaxexp")
        >>> exported = load("fleet.zip::resnet/b8", policy=Policy(platforms=("cpu",)))
        >>> exported = load("model.jaxexp", signed_by=SignedBy(public_key="release.pub"))
    """
    from jaxexp._api.load import Trust, refuse_both  # which import JAX

    found = source(artifact, "load", signed_by, stable)
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
        vars(kept_by(exported))["file"] = place.name
        return exported


def cases_in(
    source: Source, buffer: Any = None, policy: Policy | None = None, check: Check | None = None
) -> tuple[Case, ...]:
    """The cases in an artifact.

    Args:
        source: where it is.
        buffer: its bytes, if they cannot be read again.
        policy: what they may have.
        check: raises an error if a file beside the artifact is not to be used.
    """
    from jaxexp._api.cases.files import reader_of
    from jaxexp._kernel.artifact.cases import Cases
    from jaxexp._weights.files.reading import Opening

    with source.named():
        found = source.opened() if buffer is None else Opened(source, buffer)
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
    """Checks cases.

    Args:
        call: calls the VJP of an order (0 for the function itself) with flat arguments, and returns its flat results.
        paths: the paths of the results of this VJP.
        name: what the report calls the function.
        cases: the cases.
        facts: what runs the function.
        tolerance, max_drawn_bytes: as in `Exported.check`.
    """
    from jaxexp._api.cases import machine
    from jaxexp._api.cases.replaying import replayed

    here = machine.described(facts)
    return replayed(name, cases, call, paths, here, machine.explained, tolerance, max_drawn_bytes)


@public
def check(
    artifact: Given,
    *,
    tolerance: Any = None,
    max_drawn_bytes: int = 1 << 32,
    policy: Policy | None = None,
    signed_by: SignedBy | None = None,
) -> CheckReport:
    """Makes the calls again that were recorded in an artifact, and compares the results with the recorded ones.

    This runs the function: check only what you trust, or pass a policy.

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
    return load(artifact, policy=policy, signed_by=signed_by).check(
        tolerance=tolerance, max_drawn_bytes=max_drawn_bytes
    )


@public
def record(path: str | os.PathLike[str], cases: Iterable[Any], *, replace: bool = False) -> tuple[Case, ...]:
    """Makes calls of a saved function, and adds what they took and returned to its file, for `check` to make again.

    Only the trailer is written again: everything that `jax.export` reads keeps its bytes. The new file takes the place
    of the old one when it is complete.

    Args:
        path: the file. Its weights, if it has some, are beside it.
        cases: as in `Exported.save`.
        replace: whether the new cases take the place of those that the file has. Otherwise they are added.

    Returns:
        All cases of the file.

    Raises:
        ExportError: as in `Exported.save`; or `path` is a URL.
        DeserializationError: the file is not an artifact, is damaged, or has no trailer; `migrate` writes one.
        BusyError: another writer saves the file meanwhile. Its file stays.
        OSError: a file cannot be read or written.
        TypeError: a case is neither a tuple nor a dict.

    Example:
        >>> jaxexp.record("model.jaxexp", [(np.ones((8, 784), np.float32),)])
    """
    from jaxexp._api.cases import files as beside
    from jaxexp._api.cases.recording import recorded

    name = files.path_of(path, "record", ". A function that is not saved yet takes cases= in save")
    if is_url(name):
        raise ExportError(f"record writes files on this machine: {name!r} is a URL")
    if split(name)[1] is not None:
        raise ExportError(
            f"record writes files, and {name!r} is a member of an archive: ArchiveWriter.add takes cases="
        )
    with lock.locked(name) as read, files.named_in_errors(name):
        blob = memoryview(files.file_bytes(name, at_once=True))  # type: ignore[arg-type]  # a buffer
        if opened(blob).trailer() is None:
            raise DeserializationError(
                "trailer", "a trailer, which cases are in", "none: migrate writes an artifact with one"
            )
        made = recorded(load(name), cases, add=not replace)

        def write(placed: Cases) -> None:
            with files.replacing(name) as file:
                file.write(_native.with_cases(blob, placed.for_trailer()))
                if not os.path.samestat(os.fstat(read.fileno()), os.stat(name)):
                    raise BusyError(f"{name!r} was saved by another writer meanwhile; record again")

        with lock.folder_locked(os.path.dirname(os.path.realpath(name))):
            beside.save(name, made, write)
    return made
