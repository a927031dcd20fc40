"""Which tensors a file has, in one digest: a file that was replaced is recognized by its header."""

from __future__ import annotations

from collections.abc import Mapping

from jaxexp import _native

from . import places

# Where the metadata of a file has it, in hexadecimal.
CONTENT = "content"


def content_of(digests: Mapping[str, bytes]) -> bytes:
    """The XXH3 digest of the digests of tensors, one after the other, in the order of the tensors' names in UTF-8."""
    return _native.digest(b"".join(digests[name] for name in sorted(digests, key=str.encode)))


def second_name(name: str, content: bytes) -> str:
    """Where a file of this content is while it is saved, or after a process died while it saved."""
    return f".{name.removesuffix(places.SUFFIX)}.{content.hex()}{places.SUFFIX}"
