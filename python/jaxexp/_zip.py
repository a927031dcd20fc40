"""The end of an archive: the ZIP file's comment, which leads to the index."""

from __future__ import annotations

import dataclasses
import re
import struct

INDEX_NAME = ".jaxexp/index"
APART_FOLDER = ".jaxexp/apart/"


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
MAGIC, MAGIC_AT = b"jaxexp archive ", 22  # how the comment begins, and where: behind the end of a ZIP file
TAIL_SIZE = MAGIC_AT + _COMMENT_SIZE
_PATTERN = re.compile(
    rb"PK\x05\x06.{16}" + re.escape(struct.pack("<H", _COMMENT_SIZE)) + rb"jaxexp archive 1, "
    rb"index ([0-9a-f]{16}) ([0-9a-f]{8}), root ([0-9a-f]{8}) ([0-9a-f]{8}), xxh3 ([0-9a-f]{32})",
    re.DOTALL,
)
_FIXED = b"PK\5\6" + bytes(16) + struct.pack("<H", _COMMENT_SIZE) + (_COMMENT % (0, 0, 0, 0, "0" * 32)).encode()


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
