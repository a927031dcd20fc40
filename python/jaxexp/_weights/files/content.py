"""One digest for all tensors of a file, so that its header shows whether the file was replaced."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from jaxexp import _native

from . import places

# The key for the digest in a file's metadata, in hexadecimal.
CONTENT = "content"
# How many digits of the digest are in names.
_SHORT = 16


# A tensor: its name, dtype and shape in the file, and the XXH3 digest of its bytes.
Entry: TypeAlias = "tuple[str, str, tuple[int, ...], bytes]"


def content_of(tensors: Iterable[Entry]) -> bytes:
    """The XXH3 digest of all tensors, as JSON, in the order of their names in UTF-8."""
    rows = [(name, dtype, shape, digest.hex()) for name, dtype, shape, digest in _sorted(tensors)]
    return _native.digest(json.dumps(rows, separators=(",", ":")).encode())


def is_content(content: str, tensors: Sequence[Entry]) -> bool:
    """Whether this is the digest in hexadecimal, also as the first files had it: of the tensors' digests alone."""
    first = _native.digest(b"".join(digest for *_, digest in _sorted(tensors)))
    return content in (content_of(tensors).hex(), first.hex())


def _sorted(tensors: Iterable[Entry]) -> list[Entry]:
    return sorted(tensors, key=lambda tensor: tensor[0].encode())


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
