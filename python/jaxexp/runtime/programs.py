"""An artifact, wherever it is, as the runtime takes it: verified, and judged before a plugin sees it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp import _runtime
from jaxexp._errors import WeightsError
from jaxexp._fleet.places.source import source
from jaxexp._kernel.artifact.opened import opened
from jaxexp._kernel.artifact.words import listed
from jaxexp._kernel.io import files

if TYPE_CHECKING:
    from jaxexp._fleet.places.source import Given, Source
    from jaxexp._policy.policy import Policy
    from jaxexp._signing.signed_by import SignedBy


_REMOTE = "those are read from files on this machine: copy all files into one folder"
_SIGNED = "signed_by covers no weights here: jaxexp.load reads signed weights"


class Opened(NamedTuple):
    """An artifact for the runtime.

    Attributes:
        program: what plugins get.
        source: where it is.
        buffer: its bytes, if they cannot be read again.
        policy: what its cases may have.
        is_signed: whether only what is signed may be read, which files beside it are not.
    """

    program: _runtime.Program
    source: Source
    buffer: Any
    policy: Policy | None
    is_signed: bool

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.source.name


def program_of(artifact: Given, policy: Policy | None, signed_by: SignedBy | None, stable: bool) -> Opened:
    """The artifact, which the policy allows.

    Raises:
        DeserializationError: it is damaged. The error names the file.
        PolicyError: it has what the policy does not allow.
        SignatureError: it is not signed.
        ExportError: as in `Session`.
        OSError: the file cannot be opened.
        KeyError: the archive has no such member.
        TypeError: it is no artifact.
    """
    if policy is not None:
        from jaxexp._policy.policy import check_is_policy  # most sessions have no policy

        check_is_policy(policy)
    found = source(artifact, "Session", signed_by, stable)
    with found.named():
        program, buffer = _opened(found, signed_by, stable, policy)
        if policy is not None:
            from jaxexp._policy.limits.limits import Limits

            from .judging import judge

            judge(policy, program)
            if policy.max_case_bytes is not None:
                Limits(policy).cases(
                    opened(found.read() if buffer is None else buffer), f"the artifact of {program.name}"
                )
    return Opened(program, found, buffer, policy, signed_by is not None)


def _opened(
    found: Source, signed_by: SignedBy | None, stable: bool, policy: Policy | None
) -> tuple[_runtime.Program, Any]:
    """The program, and its bytes if they cannot be read again."""
    check_size = None if policy is None else policy.check_size
    if found.handle is not None and signed_by is None:
        if check_size is not None:
            check_size(found.handle.size)
        archive = found.handle._opened.source
        if archive.whole is not None and archive.address is not None:  # a file on this machine
            # What was judged must stay what it is.
            own = stable or policy is not None
            return _runtime.Program.of_archive(archive.address[0], found.handle.name, own), None
    if found.is_file:
        assert found.path is not None
        if signed_by is not None:
            from jaxexp._signing.reading import SignedFiles

            # Types can say since Python 3.12 that it is a buffer.
            signed: Any = SignedFiles(signed_by).opened(found.path, check_size=check_size)
            return _without_weights(_runtime.Program.of_bytes(signed, ""), found, _SIGNED), signed
        if check_size is not None:
            check_size(os.path.getsize(found.path))
        with files.named_in_os_errors(found.path):
            return _runtime.Program.of_file(found.path), None
    buffer = found.read(check_size)
    program = _runtime.Program.of_bytes(buffer, "")
    if found.handle is not None or found.path is not None:
        _without_weights(program, found, _SIGNED if found.handle is not None and signed_by is not None else _REMOTE)
    return program, buffer


def _without_weights(program: _runtime.Program, found: Source, why: str) -> _runtime.Program:
    """The program. Raises a WeightsError if it has weights, which are not read from where it is."""
    if names := program.weights_files:
        expected = f"a program without weights ({why})"
        raise WeightsError("", expected, f"one with weights in {listed(names, repr, most=3)}", file=found.name)
    return program
