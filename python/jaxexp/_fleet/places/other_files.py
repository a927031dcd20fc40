"""Checks jaxexp's files that are not artifacts: compiled code, and weights without their program."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from jaxexp._errors import WeightsError
from jaxexp._kernel.artifact.words import counted
from jaxexp._kernel.io.files import regular
from jaxexp._kernel.io.other_files import EXECUTABLES, is_tensors

if TYPE_CHECKING:
    from jaxexp._weights.files.reading import TensorFiles

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
