"""Files and bytes of which one bit has changed."""

from __future__ import annotations

from pathlib import Path


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    """With a bit of the byte at this position changed; a negative one counts from the end."""
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


def flip(path: Path, at: int | bytes, behind: int = 0) -> bytes:
    """Changes a bit of a byte of a file: at this position, or so far behind the place where these bytes begin. Returns
    what the file has now.
    """
    data = path.read_bytes()
    start = data.index(at) if isinstance(at, bytes) else at
    path.write_bytes(changed := flipped(data, start + behind))
    return changed
