"""`verify`: checks that an artifact is whole, wherever it is, without JAX."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp import _native
from jaxexp._errors import WeightsError
from jaxexp._kernel.artifact import texts
from jaxexp._kernel.artifact.chain import check_modules
from jaxexp._kernel.artifact.opened import opened, tables_of
from jaxexp._kernel.artifact.words import counted
from jaxexp._kernel.io.files import file_bytes, named_in_errors, regular
from jaxexp._kernel.io.other_files import EXECUTABLES, is_tensors
from jaxexp._public import public

from .source import Source, beside_url, is_url, source

if TYPE_CHECKING:
    from jaxexp._executables.executables import Executable as Executable
    from jaxexp._signing.reading import SignedFiles
    from jaxexp._signing.signed_by import SignedBy
    from jaxexp._weights.files.header import Table
    from jaxexp._weights.files.reading import Check, StoredTensors, TensorFiles, Tensors

    from .source import Given


_HEAD = 9  # bytes that tell these files apart


class OtherFile(NamedTuple):
    """A whole file.

    Attributes:
        what: what it has, in words.
        has_digests: whether any damage would have been noticed.
        bytes_behind: how many bytes follow its end, such as those of a write that was not finished.
    """

    what: str
    has_digests: bool
    bytes_behind: int = 0


def checked_other_file(path: str) -> OtherFile | None:
    """Reads all of a file of executables, or of a safetensors file; None for anything else.

    Raises:
        DeserializationError: it is damaged.
        OSError: it cannot be read.
    """
    with regular(path) as file:
        head = file.read(_HEAD)
    if not is_other_file(head):
        return None
    return _executables(path) if head.startswith(EXECUTABLES) else _weights(path)


def is_other_file(head: bytes) -> bool:
    """Whether a file is one of executables, or a safetensors file, by its first 9 bytes."""
    return head.startswith(EXECUTABLES) or is_tensors(head)


def tensors_in(path: str) -> TensorFiles | None:
    """The tensors of a safetensors file, or of several by their index; None for anything else.

    Raises:
        WeightsError: a header is damaged.
        OSError: one of several files cannot be read.
    """
    from jaxexp._weights.files import places, reading

    if not path.endswith(places.INDEX_SUFFIX):
        try:
            with regular(path) as file:
                if not is_tensors(file.read(_HEAD)):
                    return None
        except OSError:  # another place, or what reads it says what is wrong
            return None
    return reading.open_tensors(path, "in pieces")


def _executables(path: str) -> OtherFile:
    from jaxexp._executables.file import ExecutablesFile

    found = ExecutablesFile(path)
    for record in found.records:
        found.code(record)
    return OtherFile(f"compiled code of {counted(len(found.records), 'call')}", True, os.stat(path).st_size - found.end)


def _weights(path: str) -> OtherFile:
    from jaxexp._weights.files.header import content_of, is_content, xxh3
    from jaxexp._weights.files.reading import open_file

    file = open_file(path)
    what = counted(len(file.header.tensors), "weight")
    if file.content is None:  # written by another program
        return OtherFile(what, False)
    tensors = file.header.tensors
    digests = {name: xxh3(file.source(name).pieces()) for name in tensors}
    if not is_content(file.content, tensors.values(), digests):
        found = content_of(tensors.values(), digests).hex()
        raise WeightsError("", f"content {file.content}, as its header says", f"content {found}", file=path)
    return OtherFile(what, True)


def is_file_of_executables(path: str) -> bool:
    """Whether a path leads to a file of executables, by its first bytes."""
    try:
        with regular(path) as file:
            return file.read(len(EXECUTABLES)) == EXECUTABLES
    except OSError:
        return False


def check_executables(path: str, check_file: Check | None = None) -> None:
    """Checks that a file is one of executables, all but their code, which is compared with its digest when it is used.

    Args:
        path: the file.
        check_file: refuses the file, before anything looks at it, if it has to be signed and is not.

    Raises:
        ExecutablesError: it is something else, or damaged.
        OSError: it cannot be opened.
    """
    from jaxexp._executables.file import ExecutablesFile

    content: Any = None  # a buffer, which types can say since Python 3.12
    if check_file is not None:
        content = file_bytes(path, at_once=True)
        check_file(path, content)
    ExecutablesFile(path, content)


def executables_in(path: str, *, check: bool) -> tuple[Executable, ...]:
    """Everything in a file of executables; `why` is None for code that this process could use. This imports JAX.

    Args:
        path: the file.
        check: whether to compare the code with its digests.

    Raises:
        ExecutablesError: the file is damaged.
        OSError: it cannot be opened.
    """
    from jaxexp._executables.executables import Executables

    return Executables(path).all(check=check)


@public
def verify(artifact: Given, *, signed_by: SignedBy | None = None) -> None:
    """Checks that an artifact is whole: its structure, all digests, and the bytecode of its modules.

    This reads all of the artifact, but loads nothing and does not import JAX. Weights and cases in files beside it, or
    in its archive, are read, too, and compared with their digests. For a URL, these files are expected in the
    same folder and read by ranges. For a buffer or a file object, only the program is verified, because these files
    could be anywhere. Without digests (from `jax.export`, or written with ``trailer=False``), some damage cannot be
    noticed. What only JAX and the process that loads it can judge is left open, as in `inspect`. The path of a file of
    executables, or of a safetensors file, is verified as what it is. `Archive.verify` checks all members of an archive
    in threads.

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.
        signed_by: who has to have signed the artifact and its weights, as in `load`. Every file in the signature is
            then read and compared, whatever it is.

    Raises:
        SignatureError: a file is not signed by whom `signed_by` says, is not what was signed, or is missing.
        ExportError: `signed_by` is given, and the artifact is not in a file on this machine.
        ImportError: `signed_by` is given, and ``model-signing`` is not installed.
        DeserializationError: it is damaged, or not an artifact. The error says where, what was expected, and what was
            found, and names the file, if there is one.
        KeyError: the archive has no such member.
        OSError: the file, or one with weights, cannot be opened.
        TypeError: `load` does not accept it.

    Example:
        >>> jaxexp.verify("fleet.zip::resnet/b8")
    """
    found = source(artifact, "verify", signed_by)
    if signed_by is not None and found.path is not None:
        from jaxexp._signing.reading import SignedFiles

        with found.named():
            verify_signed(found.path, SignedFiles(signed_by))
        return
    if signed_by is not None and found.handle is not None:
        found.handle._opened.check_listed()
    if found.path is not None and found.is_file:
        with found.named():
            if checked_other_file(found.path) is not None:
                return
    program = checked(found)
    if found.path is not None:
        files_of(found.path, program.artifact)
    elif (stored := found.stored_files()) is not None:
        with found.named():
            stored.check_digests()


class Signed(NamedTuple):
    """A file that is signed, and the files that it uses.

    Attributes:
        buffer: its bytes.
        artifact: what they are; None for a file that is no artifact, such as one of executables.
        weights: the paths and sizes of the files with its weights and cases.
    """

    buffer: Any
    artifact: _native.Artifact | None
    weights: tuple[tuple[str, int], ...] = ()


def verify_signed(path: str, signed: SignedFiles, check_size: Callable[[int], None] | None = None) -> Signed:
    """Verifies a file, its weights, and every file in its signature. Nothing is made of a file before its digest was
    compared. `check_size` is called with the size of the file, before it is read.

    Raises:
        SignatureError: one of them is not signed, not what was signed, or missing.
        DeserializationError: an artifact is signed, and damaged.
        OSError: a file cannot be read.
    """
    buffer: Any = signed.opened(path, check_size=check_size)  # which types can say since Python 3.12
    signed.check_listed(path)
    with named_in_errors(path):
        if is_other_file(bytes(memoryview(buffer)[:9])):
            return Signed(buffer, None)
        artifact = verified(buffer)
        said = tables_of(artifact)
    if not said:
        return Signed(buffer, artifact)
    from jaxexp._weights.files.header import Table

    folder, files = os.path.dirname(path), []
    for table in (Table.of_trailer(*found) for found in said):
        stored_beside(path, table, functools.partial(signed.check, used_by=path)).check_digests()
        files += [(os.path.join(folder, file.name), file.size) for file in table.files]
    return Signed(buffer, artifact, tuple(files))


class Checked(NamedTuple):
    """An artifact that was verified completely, and its bytes."""

    buffer: Any
    artifact: _native.Artifact


def checked(source: Source) -> Checked:
    """Verifies an artifact: structure, digests, and the bytecode of its modules.

    Raises:
        DeserializationError: it is damaged; the error names it.
        OSError: it cannot be read.
    """
    with source.named():
        buffer = source.read()
        return Checked(buffer, verified(buffer))


def verified(buffer: Any) -> _native.Artifact:
    """The artifact in a buffer, all of which was read.

    Raises:
        DeserializationError: it is damaged.
    """
    artifact = opened(buffer)
    texts.check(*artifact.texts())
    check_modules(artifact)
    return artifact


def files_of(
    path: str, artifact: _native.Artifact, stored: Callable[[str, Table], StoredTensors] | None = None
) -> tuple[tuple[str, int], ...]:
    """Reads the files of weights and cases beside a whole artifact, compares them with their digests, and returns their
    paths or URLs and their sizes. `stored` finds the files of a table; by default `stored_beside`.

    Raises:
        DeserializationError: one of them is damaged; the error names it.
        OSError: one of them cannot be read.
    """
    if not (said := tables_of(artifact)):
        return ()
    from jaxexp._weights.files.header import Table

    found: list[tuple[str, int]] = []
    for table in (Table.of_trailer(*one) for one in said):
        files = (stored or stored_beside)(path, table)
        files.check_digests()
        found += zip(files.paths(), (file.size for file in table.files), strict=True)
    return tuple(found)


def weights_beside(path: str, artifact: _native.Artifact) -> Tensors | None:
    """The weights in files beside an artifact; None if it has none."""
    from jaxexp._weights.files.header import Table

    found = artifact.weights()
    return None if found is None else stored_beside(path, Table.of_trailer(*found))


def stored_beside(path: str, table: Table, check: Check | None = None) -> StoredTensors:
    """The files of a table in the folder of a path or URL, read in pieces. With `check`, they are on this machine, and
    read and checked now.
    """
    from jaxexp._weights.files.reading import Opening, StoredTensors

    if check is not None:
        return StoredTensors(path, table, Opening.signed(check))
    url_of = functools.partial(beside, path) if is_url(path) else None
    return StoredTensors(path, table, Opening("in pieces", url_of=url_of))


def beside(path: str, name: str) -> str:
    """The path or URL of a file in the folder of another one."""
    return beside_url(path, name) if is_url(path) else os.path.join(os.path.dirname(path), name)
