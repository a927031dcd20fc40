"""`check` and `record`: whether an artifact still computes what was recorded, wherever it is."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import BusyError, DeserializationError, ExportError
from jaxexp._kernel.artifact.opened import opened
from jaxexp._kernel.io import files, lock
from jaxexp._public import public

from .load import load
from .source import is_url

if TYPE_CHECKING:
    from jaxexp._api.cases.report import CheckReport
    from jaxexp._kernel.artifact.cases import Case, Cases
    from jaxexp._policy.policy import Policy
    from jaxexp._signing.signed_by import SignedBy

    from .source import Given


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

    name = os.fsdecode(path)
    if is_url(name):
        raise ExportError(f"record writes files on this machine: {name!r} is a URL")
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
