"""Which tensors a file has, in one digest: a file that was replaced is recognized by its header."""

from __future__ import annotations

from collections.abc import Mapping

from jaxexp import _native

# Where the metadata of a file has it, in hexadecimal.
CONTENT = "content"


def content_of(digests: Mapping[str, bytes]) -> bytes:
    """The XXH3 digest of the digests of tensors, one after the other, in the order of the tensors' names in UTF-8."""
    return _native.digest(b"".join(digests[name] for name in sorted(digests, key=str.encode)))
