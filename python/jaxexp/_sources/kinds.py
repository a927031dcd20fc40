"""What a file is, by its beginning and its name: an artifact, an archive, or neither. Damage does not change it."""

from __future__ import annotations

import enum
import os
import struct

from jaxexp import _native


class Kind(enum.Enum):
    """What is verified or packed, and how."""

    ARTIFACT = "artifact"
    ARCHIVE = "archive"


ARTIFACT, ARCHIVE = Kind.ARTIFACT, Kind.ARCHIVE

# The names of artifacts; a name of the second kind counts where a file is too short to tell.
SUFFIXES, _PERHAPS = (".jaxexp", ".jax_export"), ("", ".bin")
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_HEAD = 64
_TOO_SHORT = 12
# Of the first member of an archive, whose name starts after the 30 bytes of a ZIP file's local header.
_SECTION = slice(30, 45)
# Behind the root offset of an artifact with a trailer.
_MARK, _MARK_AT = b"jaxexp\x00\x01", slice(4, 12)


def is_zip(path: str) -> bool:
    """Whether a file on this machine is a ZIP file, whoever wrote it."""
    try:
        return _beginning(path)[0][:4] in _ZIP
    except OSError:
        return False


def kind_of_file(path: str) -> Kind | None:
    """What a file on this machine is, by its beginning; None for what is neither, and for what cannot be read."""
    try:
        return _kind(*_beginning(path))
    except OSError:
        return None


def kind_in_folder(path: str) -> Kind | None:
    """What a file is that nobody asked for by its name; None for what has nothing to do with artifacts.

    Raises:
        OSError: it cannot be read.
    """
    head, size = _beginning(path)
    kind = _kind(head, size)
    suffix = os.path.splitext(path)[1]
    if kind is None and (suffix in SUFFIXES or (size < _TOO_SHORT and suffix in _PERHAPS)):
        return ARTIFACT
    return kind


def _beginning(path: str) -> tuple[bytes, int]:
    with open(path, "rb") as file:
        return file.read(_HEAD), os.fstat(file.fileno()).st_size


def _kind(head: bytes, size: int) -> Kind | None:
    if _mostly(head[_SECTION], _native.archive_section_head(0)[_SECTION]):
        return ARCHIVE
    if len(head) < _TOO_SHORT:
        return None
    if _mostly(head[_MARK_AT], _MARK):
        return ARTIFACT
    # A FlatBuffer begins with the place of its root. Others have an identifier behind it, and safetensors the text of
    # their header, behind its length.
    (root,) = struct.unpack_from("<I", head)
    is_other = head[4:8].isalnum() or (head[4:8] == bytes(4) and head[8:9] == b"{")
    return ARTIFACT if 4 <= root < size and root % 4 == 0 and not is_other else None


def _mostly(found: bytes, expected: bytes) -> bool:
    """Whether more than half of the bytes are as expected: so much damage does not make another file of it."""
    return sum(a == b for a, b in zip(found, expected, strict=False)) > len(expected) // 2
