"""One digest for all tensors of a file, so that its header shows whether the file was replaced."""

from __future__ import annotations

from collections.abc import Mapping

from jaxexp import _native

from . import places

# The key for the digest in a file's metadata, in hexadecimal.
CONTENT = "content"


def content_of(digests: Mapping[str, bytes]) -> bytes:
    """The XXH3 digest of the joined digests of tensors, in the order of the tensors' names in UTF-8."""
    return _native.digest(b"".join(digests[name] for name in sorted(digests, key=str.encode)))


def second_name(name: str, content: bytes) -> str:
    """The name of a file of this content while it is being saved, or after a process died meanwhile."""
    return f".{name.removesuffix(places.SUFFIX)}.{content.hex()}{places.SUFFIX}"
