"""One digest for all tensors of a file, so that its header shows whether the file was replaced."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from jaxexp import _native

from . import places

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The key for the digest in a file's metadata, in hexadecimal.
CONTENT = "content"
# How many digits of the digest are in names.
_SHORT = 16


class Typed(Protocol):
    """A tensor, as it is in a file or will be."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def sha256(pieces: Iterable[Buffer]) -> bytes:
    """The SHA-256 of bytes, for comparisons where somebody may have made an equal XXH3 digest."""
    digester = hashlib.sha256()
    for piece in pieces:
        digester.update(piece)
    return digester.digest()


def content_of(tensors: Iterable[Typed], digests: Mapping[str, bytes]) -> bytes:
    """The XXH3 digest of the names, dtypes, shapes and digests of a file's tensors, as JSON in the order of the names
    in UTF-8. `digests` has those of the tensors by name.
    """
    in_order = sorted(tensors, key=lambda tensor: tensor.name.encode())
    rows = [(tensor.name, tensor.dtype, tensor.shape, digests[tensor.name].hex()) for tensor in in_order]
    return _native.digest(json.dumps(rows, separators=(",", ":")).encode())


def is_content(content: str, tensors: Iterable[Typed], digests: Mapping[str, bytes]) -> bool:
    """Whether this is that digest in hexadecimal, also as the first files had it: of the tensors' digests alone."""
    first = _native.digest(b"".join(digests[name] for name in sorted(digests, key=str.encode)))
    return content in (content_of(tensors, digests).hex(), first.hex())


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
