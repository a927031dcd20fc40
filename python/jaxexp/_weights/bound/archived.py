"""Functions with weights as members of an archive, which stores each tensor once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.write.options import Writing
from jaxexp._kernel.write.serialize import serialize
from jaxexp._weights.arrays.stored import StoredFile, StoredTensor, Table
from jaxexp._weights.arrays.weights import Weights
from jaxexp._weights.files.content import content_of, own_name
from jaxexp._weights.files.layout import plan
from jaxexp._weights.files.writing import Source, head_of


def serialized(
    program: ExportedData,
    weights: Weights,
    store: Callable[[Sequence[Source]], dict[str, bytes]],
    vjp_order: int,
    strict: bool,
) -> bytearray:
    """The artifact of the program, whose trailer says which tensors are its weights.

    `store` puts tensors into the archive, and returns their digests by name.
    """
    sources = weights.sources()
    digests = store(sources)
    tensors = tuple(StoredTensor(source.name, 0, source.size, digests[source.name]) for source in sources)
    table = Table((_file(sources, digests),), tensors).with_other_names(weights.other_names)
    return serialize(program, Writing(vjp_order, strict=strict, weights=table))


def _file(sources: Sequence[Source], digests: dict[str, bytes]) -> StoredFile:
    """The file for the weights when they are taken out of the archive: the same for all functions that have them."""
    content = content_of(sources, digests)
    name = own_name("weights.safetensors", content)
    (planned,) = plan(name, sources, None)
    return StoredFile(name, len(head_of(planned)) + planned.data_size, content)
