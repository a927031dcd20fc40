"""`verify`: checks that an artifact is whole, wherever it is, without JAX; or another file of jaxexp's: compiled code,
or weights without their program."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from jaxexp._errors import WeightsError
from jaxexp._kernel.artifact import texts
from jaxexp._kernel.artifact.chain import check_modules
from jaxexp._kernel.artifact.words import counted
from jaxexp._kernel.io.files import beginning, file_bytes, is_url, regular
from jaxexp._kernel.io.other_files import EXECUTABLES, is_tensors
from jaxexp._public import public

from .source import Opened, Source, beside, source

if TYPE_CHECKING:
    from jaxexp._executables.executables import Executable as Executable
    from jaxexp._signing.reading import SignedFiles
    from jaxexp._signing.signed_by import SignedBy
    from jaxexp._weights.files.reading import Check, Opening, StoredTensors, TensorFiles

    from .source import Given


_HEAD = 9  # bytes that tell these files apart


class Verified(NamedTuple):
    """What a file has, after all of it was read.

    Attributes:
        size: its bytes.
        has_digests: whether any damage would have been noticed.
        bytes_behind: how many bytes follow the end of the artifact.
        what: in words, what is in another file of jaxexp; empty for an artifact.
        absolute_paths: those of source files that the modules name, if they were looked for.
        files: the paths or URLs, and the sizes, of the files with its weights and cases.
    """

    size: int = 0
    has_digests: bool = False
    bytes_behind: int = 0
    what: str = ""
    absolute_paths: Sequence[str] = ()
    files: Sequence[tuple[str, int]] = ()

    @classmethod
    def of(cls, said: Any) -> Verified:
        """The same from JSON, which may be anything."""
        found = cls(*said)
        numbers = (found.size, found.bytes_behind, *(size for _, size in found.files))
        names = (found.what, *found.absolute_paths, *(name for name, _ in found.files))
        are_numbers = all(type(number) is int for number in numbers) and isinstance(found.has_digests, bool)
        if len(said) != len(found) or not (are_numbers and all(isinstance(name, str) for name in names)):
            raise ValueError(said)
        return found


def checked_other_file(path: str, content: Any = None, check: Check | None = None) -> Verified | None:
    """Reads all of a file of executables, or of a safetensors file; None for anything else.

    Args:
        path: the file.
        content: its bytes, if they were read and compared with a signature.
        check: compares the bytes of a safetensors file, as `Opening.check`.
    """
    if content is None:
        with regular(path) as opened:
            head = opened.read(_HEAD)
    else:
        head = bytes(memoryview(content)[:_HEAD])
    if head.startswith(EXECUTABLES):
        from jaxexp._executables.file import ExecutablesFile

        code = ExecutablesFile(path, content)
        code.check()
        return Verified(_size(path, content), True, what=f"compiled code of {counted(len(code.records), 'call')}")
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
    return Verified(_size(path, content), file.content is not None, what=counted(len(tensors), "weight"))


def _size(path: str, content: Any) -> int:
    return os.path.getsize(path) if content is None else len(content)


def tensors_in(path: str) -> TensorFiles | None:
    """The tensors of a safetensors file, or of several by their index; None for anything else."""
    from jaxexp._weights.files import places, reading

    if not path.endswith(places.INDEX_SUFFIX) and not is_tensors(beginning(path, _HEAD)):
        return None
    return reading.open_tensors(path, "in pieces")


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


def verified(found: Opened, how: Opening | None = None) -> Verified:
    """Verifies an artifact: structure, digests, the bytecode of its modules, and the files of its weights and cases."""
    return check_program(found)._replace(files=files_of(found, how))


def check_program(found: Opened) -> Verified:
    """Verifies an artifact without the files that it uses. All of it is read."""
    artifact = found.artifact
    texts.check(*artifact.texts())
    check_modules(artifact)
    size, has_digests = memoryview(found.buffer).nbytes, artifact.trailer() is not None
    return Verified(size, has_digests, size - artifact.size if has_digests else 0)


def checked(source: Source) -> Opened:
    """The same for an artifact that is opened now; errors name it."""
    with source.named():
        found = source.opened()
        check_program(found)
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
) -> tuple[Verified, Any]:
    """Verifies a file, its weights, and every file in its signature. Nothing is made of a file before its digest was
    compared. `check_size` is called with the size of the file, before it is read. Also returns the file's bytes.
    """
    source = Source(path, path)
    with source.named():
        buffer: Any = signed.opened(path, check_size=check_size)  # which types can say since Python 3.12
        signed.check_listed(path)
        check = functools.partial(signed.check, used_by=path)
        if (other := checked_other_file(path, buffer, check)) is not None:
            return other, buffer
        from jaxexp._weights.files.reading import Opening

        return verified(Opened(source, buffer), Opening.signed(check)), buffer
