"""An artifact, wherever it is, as the runtime takes it: verified, and judged before a plugin sees it."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp import _runtime
from jaxexp._errors import DeserializationError, WeightsError
from jaxexp._fleet.places.source import Source, source
from jaxexp._kernel.artifact.opened import explain, opened
from jaxexp._kernel.artifact.words import listed
from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import HEAD
from jaxexp._kernel.io.remote import stamp

if TYPE_CHECKING:
    from jaxexp._fleet.places.load import Check
    from jaxexp._fleet.places.source import Given
    from jaxexp._policy.policy import Policy
    from jaxexp._signing.reading import SignedFiles
    from jaxexp._signing.signed_by import SignedBy

_REMOTE = "weights are read from files on this machine: copy all files into one folder"


class Trust(NamedTuple):
    """What a session asks of the files that it uses, as `Session` says."""

    policy: Policy | None
    signed_by: SignedBy | None
    stable: bool


class OpenedProgram(NamedTuple):
    """An artifact for the runtime.

    Attributes:
        program: what plugins get.
        source: where it is.
        buffer: its bytes, if they cannot be read again.
        check_file: refuses files that are not signed, if they have to be.
        version: which state of its file it is.
        mapped: the archive whose weights are mapped, and which state of it that is.
    """

    program: _runtime.Program
    source: Source
    buffer: Any
    check_file: Check | None
    version: tuple[int, int | str] | None
    mapped: tuple[str, files.Identity] | None

    def check_mapped(self) -> None:
        """Compares the weights with their digests if somebody has written into the archive in which they are mapped: an
        append leaves them alone. Raises a WeightsError or a ChangedArtifactError.
        """
        if self.mapped is not None and files.written_to(*self.mapped) is not None:
            weights = self.source.opened().weights()
            assert weights is not None
            weights.check_digests()

    def check_is_same(self) -> None:
        """Raises a DeserializationError if the file, which is read again, is another one now."""
        if self.version is not None and self.version != _version_of(self.source):
            raise DeserializationError("", "the file that the session was loaded from", "another one", self.source.name)


def program_of(artifact: Given, trust: Trust) -> OpenedProgram:
    """The artifact, which the policy allows. Errors are those of `Session`."""
    policy, signed_by, stable = trust
    if policy is not None:
        from jaxexp._policy.policy import check_is_policy  # most sessions have no policy

        check_is_policy(policy)
    found = source(artifact, "Session", signed_by, stable)
    version, mapped = _version_of(found), _mapped_by(found, trust)
    signed, used_by = None, found.path
    if found.handle is not None:
        signed, used_by = found.handle._opened.signed, found.handle._opened.source.name
    elif signed_by is not None:
        from jaxexp._signing.reading import SignedFiles

        signed = SignedFiles(signed_by)
    with found.named():
        try:
            program, buffer = _opened(found, signed, trust)
        except DeserializationError as error:
            head = files.beginning(found.path, HEAD) if found.is_file and found.path is not None else found.buffer
            explain(error, b"" if head is None else head)
            raise
        if policy is not None:
            from jaxexp._policy.limits.limits import Limits  # most programs are not judged

            from .judging import judge

            judge(policy, program)
            if policy.max_case_bytes is not None:
                Limits(policy).cases(
                    opened(found.read() if buffer is None else buffer), f"the artifact of {program.name}"
                )
    check_file = None if signed is None else partial(signed.check, used_by=used_by)
    if found.is_file and found.path is not None:  # which is read again, perhaps from another folder
        found = Source(found.name, path=os.path.abspath(found.path))
    return OpenedProgram(program, found, buffer, check_file, version if buffer is None else None, mapped)


def _mapped_by(found: Source, trust: Trust) -> tuple[str, files.Identity] | None:
    """The file of an archive that the program will be mapped from, as it is now."""
    if found.handle is None or trust.stable or trust.signed_by is not None or found.handle._opened.signed is not None:
        return None
    archive = found.handle._opened.source
    if archive.whole is None or archive.address is None:
        return None
    return archive.address[0], files.identity_of(archive.address[0])


def _version_of(found: Source) -> tuple[int, int | str] | None:
    """What changes with a file on this machine; None for what is none, or is not there."""
    try:
        return stamp(found.path) if found.is_file and found.path is not None else None
    except OSError:  # opening it says what is wrong
        return None


def _opened(found: Source, signed: SignedFiles | None, trust: Trust) -> tuple[_runtime.Program, Any]:
    """The program, and its bytes if they cannot be read again."""
    check_size = None if trust.policy is None else trust.policy.check_size
    if found.handle is not None:
        if check_size is not None:
            check_size(found.handle.size)
        archive = found.handle._opened.source
        if signed is not None:
            buffer = found.read()
            content: Any = archive.content  # types can say since Python 3.12 that it is a buffer
            return _runtime.Program.of_bytes(content, content.memory(), member=found.handle.name), buffer
        if archive.whole is not None and archive.address is not None:  # a file on this machine
            return _runtime.Program.of_archive(archive.address[0], found.handle.name, trust.stable), None
    if found.is_file:
        assert found.path is not None
        if signed is not None:
            content = signed.opened(found.path, check_size=check_size)
            return _runtime.Program.of_bytes(content, content.memory(), found.path), content
        if check_size is not None:
            check_size(os.path.getsize(found.path))
        with files.named_in_os_errors(found.path):
            return _runtime.Program.of_file(found.path), None
    buffer = found.read(check_size)
    program = _runtime.Program.of_bytes(buffer)
    if (found.handle is not None or found.path is not None) and (names := program.weights_files):
        expected = f"a program without weights ({_REMOTE})"
        raise WeightsError("", expected, f"one with weights in {listed(names, repr, most=3)}", file=found.name)
    return program, buffer
