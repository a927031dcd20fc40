"""`digests`: what an artifact can be known by, wherever it is."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from jaxexp._errors import ExportError
from jaxexp._kernel.artifact.opened import opened
from jaxexp._public import public

from .source import Source, source
from .verify import weights_beside

if TYPE_CHECKING:
    from jaxexp._weights.files.reading import Tensors

    from .source import Given


@public
@dataclasses.dataclass(frozen=True, slots=True)
class Digests:
    """What an artifact can be known by: two SHA-256 digests, as hexadecimal numbers.

    Attributes:
        sha256: of its bytes, as `sha256sum` prints it for the file. For a member of an archive, of the artifact that
            `Archive.unpack` writes.
        meaning: of the program: its modules without the names of functions and without locations, its signature without
            the name of the function, its VJPs, and the content of its weights. Equal programs have equal meanings,
            wherever and whenever they were exported and however they were written. Compare meanings that one release of
            jaxexp computed: other releases of JAX may lower the same function to another program.
    """

    sha256: str
    meaning: str


@public
def digests(artifact: Given) -> Digests:
    """The SHA-256 digests of an artifact and of its meaning.

    All of the artifact is read, and its weights. The modules are parsed, but nothing is compiled.

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.

    Raises:
        DeserializationError: the bytes are not an artifact, or are damaged.
        ExportError: it is a buffer or a file object, and has weights in files beside it, which could be anywhere.
        KeyError: the archive has no such member.
        OSError: the file, or one with weights, cannot be opened.
        TypeError: `load` does not accept it.

    Example:
        >>> jaxexp.digests("model.jaxexp").meaning == jaxexp.digests("again.jaxexp").meaning
    """
    return digests_of(source(artifact, "digests"))


def digests_of(found: Source) -> Digests:
    """The same for a source."""
    from jaxexp._api.exported import reader
    from jaxexp._compat.meaning import meaning_of

    with found.named():
        buffer = found.read()
        exported = reader.read(buffer)
        weights = _weights(found, buffer)
        return Digests(hashlib.sha256(buffer).hexdigest(), meaning_of(exported, _digests(weights)))


def _weights(found: Source, buffer: object) -> Tensors | None:
    artifact = opened(buffer)
    if artifact.weights() is None:
        return None
    weights = found.stored_weights() if found.path is None else weights_beside(found.path, artifact)
    if weights is None:
        raise ExportError(
            "the weights of this artifact are in files beside it, and are part of its meaning: give the artifact's path"
        )
    return weights


def _digests(weights: Tensors | None) -> list[bytes]:
    """The SHA-256 digests of weights, in the order of the arguments."""
    if weights is None:
        return []
    from jaxexp._weights.files.header import sha256

    return [sha256(tensor.pieces()) for tensor in weights.sources()]
