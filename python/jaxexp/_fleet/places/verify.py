"""`verify`: checks that an artifact is whole, wherever it is, without JAX."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp import _native
from jaxexp._kernel.artifact.chain import check_modules
from jaxexp._kernel.artifact.opened import opened
from jaxexp._public import public

from .other_files import checked_other_file
from .source import Source, beside_url, is_url, source

if TYPE_CHECKING:
    from .source import Given


@public
def verify(artifact: Given) -> None:
    """Checks that an artifact is whole: its structure, all digests, and the bytecode of its modules.

    This reads all of the artifact, but loads nothing and does not import JAX. Weights in files beside it, or in its
    archive, are read, too, and compared with their digests. For a URL, these files are expected in the same folder and
    read by ranges. For a buffer or a file object, only the program is verified, because its weights could be anywhere.
    Without digests (from `jax.export`, or written with ``trailer=False``), some damage cannot be noticed. The path of
    a file of executables, or of a safetensors file, is verified as what it is.
    `Archive.verify` checks all members of an archive in threads.

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.

    Raises:
        DeserializationError: it is damaged, or not an artifact. The error says where, what was expected, and what was
            found, and names the file, if there is one.
        KeyError: the archive has no such member.
        OSError: the file, or one with weights, cannot be opened.
        TypeError: `load` does not accept it.

    Example:
        >>> jaxexp.verify("fleet.zip::resnet/b8")
    """
    found = source(artifact, "verify")
    if found.path is not None and found.is_file and checked_other_file(found.path) is not None:
        return
    program = checked(found)
    if found.path is not None:
        weights_of(found.path, program.artifact)
    elif (weights := found.stored_weights()) is not None:
        with found.named():
            weights.check_digests()


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
        artifact = opened(buffer)
        check_modules(artifact)
    return Checked(buffer, artifact)


def weights_of(path: str, artifact: _native.Artifact) -> tuple[tuple[str, int], ...]:
    """Reads the files of weights beside a whole artifact, compares them with their digests, and returns their paths or
    URLs and their sizes.

    Raises:
        DeserializationError: one of them is damaged; the error names it.
        OSError: one of them cannot be read.
    """
    from jaxexp._weights.arrays.stored import Stored, StoredBehind, Table

    found = artifact.weights()
    if found is None:
        return ()
    table = Table.of_trailer(*found)

    def beside(name: str) -> str:
        return beside_url(path, name) if is_url(path) else os.path.join(os.path.dirname(path), name)

    stored = StoredBehind(path, table, beside) if is_url(path) else Stored(path, table)
    stored.check_digests()
    return tuple((beside(file.name), file.size) for file in table.files)
