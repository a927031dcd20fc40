"""`verify`: checks that an artifact is whole, wherever it is, without JAX; or another file of jaxexp's: compiled code,
or weights without their program."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from jaxexp import _native
from jaxexp._errors import WeightsError
from jaxexp._kernel.artifact import texts
from jaxexp._kernel.artifact.chain import check_modules
from jaxexp._kernel.artifact.words import counted
from jaxexp._kernel.io.files import file_bytes, regular
from jaxexp._kernel.io.other_files import EXECUTABLES, is_tensors
from jaxexp._public import public

from .source import Opened, Source, beside, is_url, source

if TYPE_CHECKING:
    from jaxexp._executables.executables import Executable as Executable
    from jaxexp._signing.reading import SignedFiles
    from jaxexp._signing.signed_by import SignedBy
    from jaxexp._weights.files.reading import Check, Opening, StoredTensors, TensorFiles

    from .source import Given


_HEAD = 9  # bytes that tell these files apart


class OtherFile(NamedTuple):
    """A whole file.

    Attributes:
        what: what it has, in words.
        has_digests: whether any damage would have been noticed.
    """

    what: str
    has_digests: bool


def checked_other_file(path: str, content: Any = None, check: Check | None = None) -> OtherFile | None:
    """Reads all of a file of executables, or of a safetensors file; None for anything else.

    Args:
        path: the file.
        content: its bytes, if they were read and compared with a signature.
        check: compares the bytes of a safetensors file, as `Opening.check`.
    """
    head = _head(path) if content is None else bytes(memoryview(content)[:_HEAD])
    if head.startswith(EXECUTABLES):
        from jaxexp._executables.file import ExecutablesFile

        code = ExecutablesFile(path, content)
        code.check()
        return OtherFile(f"compiled code of {counted(len(code.records), 'call')}", True)
    if not is_tensors(head):
        return None
    from jaxexp._weights.files.header import content_of, is_content, xxh3
    from jaxexp._weights.files.reading import open_file

    file = open_file(path, check)
    tensors = file.header.tensors
    if file.content is not None:  # else another program wrote it
        digests = {name: xxh3(file.source(name).pieces()) for name in tensors}
        if not is_content(file.content, tensors.values(), digests):
            found = content_of(tensors.values(), digests).hex()
            raise WeightsError("", f"content {file.content}, as its header says", f"content {found}", file=path)
    return OtherFile(counted(len(tensors), "weight"), file.content is not None)


def _head(path: str) -> bytes:
    with regular(path) as file:
        return file.read(_HEAD)


def tensors_in(path: str) -> TensorFiles | None:
    """The tensors of a safetensors file, or of several by their index; None for anything else."""
    from jaxexp._weights.files import places, reading

    if not path.endswith(places.INDEX_SUFFIX):
        try:
            if not is_tensors(_head(path)):
                return None
        except OSError:  # another place, or what reads it says what is wrong
            return None
    return reading.open_tensors(path, "in pieces")


def is_file_of_executables(path: str) -> bool:
    """Whether a path leads to a file of executables, by its first bytes."""
    try:
        return _head(path).startswith(EXECUTABLES)
    except OSError:
        return False


def check_executables(path: str, check_file: Check | None = None) -> None:
    """Checks that a file is one of executables, all but their code, which is compared with its digest when it is used.
    `check_file` refuses the file, before anything looks at it, if it has to be signed and is not.
    """
    from jaxexp._executables.file import ExecutablesFile

    content: Any = None  # a buffer, which types can say since Python 3.12
    if check_file is not None:
        content = file_bytes(path, at_once=True)
        check_file(path, content)
    ExecutablesFile(path, content)


def executables_in(path: str, *, check: bool) -> tuple[tuple[Executable, ...], int]:
    """Everything in a file of executables; `why` is None for code that this process could use. Also how many bytes are
    behind it, of a record that was not finished. `check` compares the code with its digests. This imports JAX.
    """
    from jaxexp._executables.executables import Executables

    found = Executables(path)
    return found.all(check=check), found.unfinished_bytes


@public
def verify(artifact: Given, *, signed_by: SignedBy | None = None) -> None:
    """Checks that an artifact is whole: its structure, all digests, and the bytecode of its modules.

    This reads the whole artifact, but loads nothing and does not import JAX. Weights and cases in its archive or in
    files beside it (also behind a URL) are read and compared with their digests, too. For a buffer or a file object,
    only the program is verified, because these files cannot be found. In an artifact without digests (from
    `jax.export`, or written with ``trailer=False``), some damage goes unnoticed. Checks that need JAX are left out, as
    in `inspect`.

    A file of executables and a safetensors file can be verified, too. For an archive, use `Archive.verify`.

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.
        signed_by: the trusted signer of the artifact and its weights, as in `load`. Every file in the signature is then
            read and compared.

    Raises:
        SignatureError: a file has no signature by `signed_by`, has changed since it was signed, or is missing.
        ExportError: `signed_by` is given, and the artifact is not in a file on this machine.
        ImportError: `signed_by` is given, and ``model-signing`` is not installed.
        DeserializationError: the bytes are damaged, or are not an artifact. The error names the file, the place, the
            requirement and the content.
        KeyError: the archive has no such member.
        OSError: the file, or one with weights, cannot be opened.
        TypeError: `load` does not accept it.

    Example:
        >>> jaxexp.verify("fleet.zip::resnet/b8")
    """
    found = source(artifact, "verify", signed_by)
    if signed_by is not None and found.path is not None:
        from jaxexp._signing.reading import SignedFiles

        verify_signed(found.path, SignedFiles(signed_by))
        return
    if signed_by is not None and found.handle is not None:
        found.handle._opened.check_listed()
    with found.named():
        if found.path is None or not found.is_file or checked_other_file(found.path) is None:
            verified(found.opened())


class Verified(NamedTuple):
    """An artifact that was verified with the files that it uses.

    Attributes:
        opened: the artifact.
        files: the paths or URLs, and the sizes, of the files with its weights and cases. A member of an archive has
            these in its archive.
    """

    opened: Opened
    files: tuple[tuple[str, int], ...]


def verified(found: Opened, how: Opening | None = None) -> Verified:
    """Verifies an artifact: structure, digests, the bytecode of its modules, and the files of its weights and cases."""
    check_program(found.artifact)
    return Verified(found, files_of(found, how))


def check_program(artifact: _native.Artifact) -> None:
    """Verifies an artifact without the files that it uses. All of it is read."""
    texts.check(*artifact.texts())
    check_modules(artifact)


def checked(source: Source) -> Opened:
    """The same for an artifact that is opened now; errors name it."""
    with source.named():
        found = source.opened()
        check_program(found.artifact)
        return found


def files_of(found: Opened, how: Opening | None = None) -> tuple[tuple[str, int], ...]:
    """Reads the files of weights and cases of an artifact, and compares them with their digests. Returns the paths or
    URLs of those that are beside it, under the names that they were found by, and their sizes.
    """
    read: list[tuple[str, int]] = []
    for stored in found.files(how):
        stored.check_digests()
        if found.source.path is not None:
            paths = cast("StoredTensors", stored).paths()
            names = (
                paths if is_url(found.source.path) else [beside(found.source.path, os.path.basename(p)) for p in paths]
            )
            read += zip(names, (file.size for file in stored.table.files), strict=True)
    return tuple(read)


def verify_signed(
    path: str, signed: SignedFiles, check_size: Callable[[int], None] | None = None
) -> Verified | tuple[OtherFile, int]:
    """Verifies a file, its weights, and every file in its signature. Nothing is made of a file before its digest was
    compared. `check_size` is called with the size of the file, before it is read. With a file that is no artifact, such
    as one of executables, its size is returned.
    """
    source = Source(path, path)
    with source.named():
        buffer: Any = signed.opened(path, check_size=check_size)  # which types can say since Python 3.12
        signed.check_listed(path)
        check = functools.partial(signed.check, used_by=path)
        if (other := checked_other_file(path, buffer, check)) is not None:
            return other, len(buffer)
        from jaxexp._weights.files.reading import Opening

        return verified(Opened(source, buffer), Opening.signed(check))
