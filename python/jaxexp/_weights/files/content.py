"""One digest for all tensors of a file, so that its header shows whether the file was replaced."""

from __future__ import annotations

from collections.abc import Mapping

from jaxexp import _native

from . import places

# The key for the digest in a file's metadata, in hexadecimal.
CONTENT = "content"
# How many digits of the digest are in names.
_SHORT = 16


def content_of(digests: Mapping[str, bytes]) -> bytes:
    """The XXH3 digest of the joined digests of tensors, in the order of the tensors' names in UTF-8."""
    return _native.digest(b"".join(digests[name] for name in sorted(digests, key=str.encode)))


def own_name(name: str, content: bytes) -> str:
    """A name like this one that files of other content do not get: its end is a part of the digest."""
    digest, stem = content.hex()[:_SHORT], name.removesuffix(places.SUFFIX)
    if stem.endswith(f"-{digest}"):
        return name
    own = f"{stem}-{digest}{places.SUFFIX}"
    return own if len(own.encode()) <= places.LONGEST_NAME else f"weights-{digest}{places.SUFFIX}"


def second_name(name: str, content: bytes) -> str:
    """The name of a file of this content while it is being saved, or after a process died meanwhile."""
    return f".{name.removesuffix(places.SUFFIX)}.{content.hex()}{places.SUFFIX}"
