"""Weights and cases of functions that become members of an archive, which stores each tensor once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxexp._weights.arrays.stored import StoredFile, StoredTensor, Table
from jaxexp._weights.files.content import content_of, own_name
from jaxexp._weights.files.layout import plan
from jaxexp._weights.files.writing import Source, head_of

#: Puts tensors into an archive, and returns their digests by name.
Store = Callable[[Sequence[Source]], dict[str, bytes]]


def stored(sources: Sequence[Source], store: Store, name: str = "weights.safetensors") -> Table:
    """The table for the trailer of a member, whose tensors are put into its archive. `name` is that of the file for
    them when they are taken out.
    """
    digests = store(sources)
    tensors = tuple(StoredTensor(source.name, 0, source.size, digests[source.name]) for source in sources)
    return Table((_file(sources, digests, name),), tensors)


def _file(sources: Sequence[Source], digests: dict[str, bytes], name: str) -> StoredFile:
    """The file: the same for all functions that have these tensors."""
    content = content_of(sources, digests)
    name = own_name(name, content)
    (planned,) = plan(name, sources, None)
    return StoredFile(name, len(head_of(planned)) + planned.data_size, content)
