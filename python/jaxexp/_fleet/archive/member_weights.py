"""The weights and cases of a member: finds the archive's tensors that it uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from jaxexp import _native
from jaxexp._errors import WeightsError
from jaxexp._kernel.artifact.opened import tables_of

from .opened import Opened

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.cases import Case
    from jaxexp._kernel.write.options import Writing
    from jaxexp._weights.files.header import Source, Table
    from jaxexp._weights.files.reading import Tensors

#: Puts tensors into an archive, and returns their digests by name.
Store: TypeAlias = "Callable[[Sequence[Source]], dict[str, bytes]]"


def of_table(opened: Opened, label: str, table: Table, types: Mapping[str, Any]) -> Tensors:
    """The tensors in the table of a member's trailer, looked up when they are used: the archive has no names for them.

    `types` have the dtype and the shape of each, by its name; the bytes do not say these.
    """
    from jaxexp._weights.files.dtypes import held_as, size_of, type_of, unnamed
    from jaxexp._weights.files.header import Source, Tensor, damaged
    from jaxexp._weights.files.reading import Tensors, in_pieces

    archive = opened.tensors  # it outlives the archive

    def find(place: int) -> Source:
        stored = table.tensors[place]
        name, type_ = stored.name, types[stored.name]
        there = archive.place(stored.digest)
        if there is None or there[1] != stored.size:
            found = "none" if there is None else f"one of {there[1]:,} bytes"
            expected = f"a tensor of {stored.size:,} bytes with the digest {stored.digest.hex()}"
            raise WeightsError(name, expected, found, file=label)
        held = held_as(str(type_.dtype), type_.shape)
        if held is None or size_of(*held) != stored.size:
            expected = f"as many bytes as {type_of(type_)} has"
            raise WeightsError(name, expected, f"{stored.size:,}", file=label)
        start, end = there[0], there[0] + there[1]
        of, identity = unnamed(str(type_.dtype), type_.shape), archive.identity

        def whole() -> memoryview:
            found = archive.bytes_of(Tensor(name, *held, start, end))
            # A file that was mapped when the archive was opened does not change. Another one may have been replaced.
            if identity is None and (digest := _native.digest(found)) != stored.digest:
                error = damaged(archive.name, name, stored.digest, digest)
                error.found += ": it is damaged, or the file has changed since it was opened; open it again"
                raise error
            return found

        origin = None if identity is None else (*identity, start, end)
        return Source(name, *held, lambda: in_pieces(whole()), origin, stored.digest, of, archive.name, whole)

    names = (tensor.name for tensor in table.tensors)
    return Tensors(names, find, repr(label), stable=archive.stable, table=table)


def of_artifact(opened: Opened, label: str, artifact: _native.Artifact) -> Tensors | None:
    """The same for an artifact that is not a function yet; None if it has no weights in the archive."""
    found = artifact.weights()
    if found is None or not opened.has_tensors(found):
        return None
    from jaxexp._kernel.artifact.inspect import shown_node, values_of
    from jaxexp._weights.files.header import Table

    arguments, _ = values_of(artifact, artifact.describe(shown_node), len(found[1]))
    types = {name: value for (name, *_), value in zip(found[1], arguments, strict=True)}
    return of_table(opened, label, Table.of_trailer(*found), types)


def cases_of(opened: Opened, label: str, artifact: _native.Artifact | None) -> Tensors | None:
    """The arrays of cases of a member, looked up when they are used; None if they are not in the archive."""
    if artifact is None or (said := artifact.cases()) is None or not said[2]:
        return None
    from jaxexp._api.cases import files

    table = files.of_trailer(said)
    if table is None or not opened.has_tensors(table):
        return None
    return of_table(opened, label, table, files.types_of(said))


def files_of_artifact(opened: Opened, label: str, artifact: _native.Artifact) -> Tensors | None:
    """Both, for whoever moves them; None if the archive has neither."""
    from jaxexp._weights.files.reading import together

    return together(of_artifact(opened, label, artifact), cases_of(opened, label, artifact))


def serialized(function: Any, how: Writing, cases: Sequence[Case] | None, store: Store) -> memoryview:
    """The artifact of a function that is about to become a member; its weights and large arrays of cases are stored."""
    from jaxexp._kernel.write.serialize import serialize

    if cases is not None:
        from jaxexp._api.cases import files

        sources = files.sources_of(cases)
        tables = [_table(sources, store, f"weights{files.SUFFIX}")] if sources else []
        how = how._replace(cases=files.with_files(cases, *tables), case_files=True)
    if weights := function.weights:
        table = _table(weights.sources(), store, "weights.safetensors")
        how = how._replace(weights=table.with_other_names(weights.other_names))
    return memoryview(serialize(function.unbound, how)).toreadonly()


def _table(sources: Sequence[Source], store: Store, name: str) -> Table:
    """The table for the trailer of a member, whose tensors are put into its archive. It has one file for them when they
    are taken out, called like `name`, and the same for all functions that have these tensors.
    """
    from jaxexp._weights.files.header import StoredFile, StoredTensor, Table, content_of, plan
    from jaxexp._weights.files.places import own_name

    digests = store(sources)
    content = content_of(sources, digests)
    (planned,) = plan(own_name(name, content), sources)
    file = StoredFile(planned.name, planned.size, content)
    tensors = (StoredTensor(source.name, 0, source.size, digests[source.name]) for source in sources)
    return Table((file,), tuple(tensors))


def files_beside(path: str | os.PathLike[str], blob: Any) -> Tensors | None:
    """The weights and cases of an artifact that is about to become a member, in files beside it; None if it has none.

    Raises:
        DeserializationError: it is not an artifact; or these files have other tensors, too, which would be lost.
    """
    if not (said := tables_of(_native.Artifact(blob))):
        return None
    from jaxexp._weights.files.header import Table
    from jaxexp._weights.files.reading import Opening, StoredTensors, together

    found = [StoredTensors(path, Table.of_trailer(*one), Opening("in pieces")) for one in said]
    for stored in found:
        stored.check_whole()
    return together(*found)
