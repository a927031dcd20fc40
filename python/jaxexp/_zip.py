"""The bytes of ZIP files of stored members, as in PKWARE's APPNOTE.TXT 6.3.10, and the comment that leads to an index.

Dates and attributes are the same for all members, so equal members make equal files.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

ALIGNMENT = 64
INDEX_NAME = ".jaxexp/index"
APART_FOLDER = ".jaxexp/apart/"

_LOCAL, _CENTRAL, _END, _END64, _LOCATOR64 = b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7"
_VERSION, _VERSION64, _UNIX = 20, 45, 3 << 8
_UTF8 = 1 << 11  # names are
_DATE = 1 << 5 | 1  # the first day of 1980, the first that can be said
_MODE = 0o100644 << 16  # a file that its owner may write
_ALIGNED = 0xD935  # the extra field of zipalign: a number, and as many zeros as it takes
_MOST16, _MOST32 = 0xFFFF, 0xFFFFFFFF


def local_header(name: str, size: int, crc32: int, position: int) -> bytes:
    """What stands in front of a member's bytes, which then begin at a multiple of `ALIGNMENT`."""
    encoded = name.encode()
    least = 30 + len(encoded) + 6
    padding = -(position + least) % ALIGNMENT
    return (
        struct.pack("<4s5H3I2H", _LOCAL, _VERSION, _UTF8, 0, 0, _DATE, crc32, size, size, len(encoded), 6 + padding)
        + encoded
        + struct.pack("<3H", _ALIGNED, 2 + padding, ALIGNMENT)
        + bytes(padding)
    )


def central_header(name: str, size: int, crc32: int, header_position: int) -> bytes:
    encoded = name.encode()
    far = header_position >= _MOST32
    extra = struct.pack("<2HQ", 1, 8, header_position) if far else b""
    version = _VERSION64 if far else _VERSION
    return (
        struct.pack(
            "<4s6H3I5H2I",
            *(_CENTRAL, _UNIX | version, version, _UTF8, 0, 0, _DATE, crc32, size, size),
            *(len(encoded), len(extra), 0, 0, 0, _MODE, _MOST32 if far else header_position),
        )
        + encoded
        + extra
    )


def end(count: int, position: int, size: int, comment: bytes) -> bytes:
    """The end of a file: of `count` members, whose central directory of `size` bytes is at `position`."""
    parts = []
    if count >= _MOST16 or position >= _MOST32 or size >= _MOST32:
        at = position + size
        version = _UNIX | _VERSION64
        parts += [
            struct.pack("<4sQ2H2I4Q", _END64, 44, version, _VERSION64, 0, 0, count, count, size, position),
            struct.pack("<4sIQI", _LOCATOR64, 0, at, 1),
        ]
    shown = min(count, _MOST16)
    parts += [
        struct.pack("<4s4H2IH", _END, 0, 0, shown, shown, min(size, _MOST32), min(position, _MOST32), len(comment)),
        comment,
    ]
    return b"".join(parts)


def directory(files: Sequence[tuple[str, bool, int, int, int, int]], index: Mapping[str, Any]) -> bytes:
    """The central directory: of `ArchiveRecords.files` and the index, in the order in which they lie in the file."""
    headers = [
        (position - header, APART_FOLDER + name if apart else name, size, crc32)
        for name, apart, position, header, size, crc32 in files
    ]
    headers.append((index["position"] - index["header"], INDEX_NAME, index["stored_size"], index["crc32"]))
    return b"".join(central_header(name, size, crc32, start) for start, name, size, crc32 in sorted(headers))


def last_bytes(
    files: Sequence[tuple[str, bool, int, int, int, int]], index: Mapping[str, Any], position: int, pointer: Pointer
) -> bytes:
    """All that stands behind the index, from a position on."""
    central = directory(files, index)
    return central + end(len(files) + 1, position, len(central), pointer.comment())


@dataclasses.dataclass(frozen=True, slots=True)
class Pointer:
    """Where an index is in the file, where its root is in the index, and the root's digest: the ZIP file's comment."""

    position: int
    size: int
    root_position: int
    root_size: int
    root_digest: bytes

    def comment(self) -> bytes:
        text = _COMMENT % (self.position, self.size, self.root_position, self.root_size, self.root_digest.hex())
        return text.encode()


_COMMENT = "jaxexp archive 1, index %016x %08x, root %08x %08x, xxh3 %s"
_COMMENT_SIZE = len(_COMMENT % (0, 0, 0, 0, "0" * 32))
TAIL_SIZE = 22 + _COMMENT_SIZE
_PATTERN = re.compile(
    rb"PK\x05\x06.{16}" + re.escape(struct.pack("<H", _COMMENT_SIZE)) + rb"jaxexp archive 1, "
    rb"index ([0-9a-f]{16}) ([0-9a-f]{8}), root ([0-9a-f]{8}) ([0-9a-f]{8}), xxh3 ([0-9a-f]{32})",
    re.DOTALL,
)
MAGIC = b"jaxexp archive "  # which no other file has 22 bytes behind an end of a ZIP file
_FIXED = _END + bytes(16) + struct.pack("<H", _COMMENT_SIZE) + (_COMMENT % (0, 0, 0, 0, "0" * 32)).encode()


def pointer(tail: bytes) -> Pointer | None:
    """What the last `TAIL_SIZE` bytes of an archive say; None where they are something else."""
    found = _PATTERN.fullmatch(tail)
    if found is None:
        return None
    position, size, root_position, root_size = (int(text, 16) for text in found.groups()[:4])
    return Pointer(position, size, root_position, root_size, bytes.fromhex(found[5].decode()))


def resembles_tail(tail: bytes) -> bool:
    """Whether most of what such bytes have in common is there: then they are damaged, and not something else."""
    fixed = [i for i, byte in enumerate(_FIXED) if byte not in b"\0" + b"0"]
    return len(tail) == TAIL_SIZE and 2 * sum(tail[i] == _FIXED[i] for i in fixed) > len(fixed)
