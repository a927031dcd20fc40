"""Arrays of one XXH3-128 digest, wherever they lie in a longer text.

Each 1,024 bytes of a text have 16 stripes of 64. For each 8 bytes at the same place in these, a digest has two sums: of
the numbers, and of products of the halves of numbers that are combined with the secret. Where one half is that of the
secret, the product is 0, whatever the other half is.
"""

from __future__ import annotations

import numpy as np

_STRIPE, _BLOCK = 64, 1024
# The first half of the secret's first two parts of 8 bytes, in xxhash's documentation.
_SECRETS = (bytes.fromhex("b8fe6c39"), bytes.fromhex("7c01812c"))


def pair(size: int, position: int) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of uint32 and this size that can stand for each other at a position of a text."""
    data = bytearray(np.arange(1, size + 1, dtype=np.uint32).tobytes())
    block = -position % _BLOCK
    assert block + _BLOCK <= len(data)
    made = []
    for change in (0, 1 << 20):
        for stripe, secret in enumerate(_SECRETS):
            place = block + stripe * _STRIPE
            other_half = 0x40000000 + (change if stripe else -change)
            data[place : place + 8] = secret + other_half.to_bytes(4, "little")
        made.append(np.frombuffer(bytes(data), np.uint32))
    return made[0], made[1]
