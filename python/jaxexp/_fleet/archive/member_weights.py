"""The weights and cases of a member: finds the archive's tensors that it uses."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._kernel.artifact.opened import tables_of

from .opened import Opened

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.cases import Case
    from jaxexp._kernel.write.options import Writing
    from jaxexp._weights.arrays.stored import Table, WithDigests
    from jaxexp._weights.bound.archived import Store


def of_table(opened: Opened, label: str, table: Table, types: Mapping[str, Any]) -> WithDigests:
    """The tensors in the table of a member's trailer, looked up when they are used. `types` have the dtype and the
    shape of each, by its name.
    """
    from jaxexp._weights.arrays.by_digest import ByDigest

    return ByDigest(opened.tensors, label, table, types)


def of_artifact(opened: Opened, label: str, artifact: _native.Artifact) -> WithDigests | None:
    """The same for an artifact that is not a function yet; None if it has no weights in the archive."""
    found = artifact.weights()
    if found is None or not opened.has_tensors(found):
        return None
    from jaxexp._kernel.artifact.inspect import shown_node, values_of
    from jaxexp._weights.arrays.stored import Table

    arguments, _ = values_of(artifact, artifact.describe(shown_node), len(found[1]))
    types = {name: value for (name, *_), value in zip(found[1], arguments, strict=True)}
    return of_table(opened, label, Table.of_trailer(*found), types)


def cases_of(opened: Opened, label: str, artifact: _native.Artifact | None) -> WithDigests | None:
    """The arrays of cases of a member, looked up when they are used; None if they are not in the archive."""
    if artifact is None or (said := artifact.cases()) is None or not said[2]:
        return None
    from jaxexp._api.cases import files

    table = files.of_trailer(said)
    if table is None or not opened.has_tensors(table):
        return None
    return of_table(opened, label, table, files.types_of(said))


def files_of_artifact(opened: Opened, label: str, artifact: _native.Artifact) -> WithDigests | None:
    """Both, for whoever moves them; None if the archive has neither."""
    weights, cases = of_artifact(opened, label, artifact), cases_of(opened, label, artifact)
    if cases is None:
        return weights
    from jaxexp._weights.arrays.stored import Together

    return Together.of(weights, cases)


def serialized(function: Any, how: Writing, cases: Sequence[Case] | None, store: Store) -> memoryview:
    """The artifact of a function that is about to become a member; its weights and large arrays of cases are stored."""
    from jaxexp._kernel.write.serialize import serialize
    from jaxexp._weights.bound.archived import stored

    if cases is not None:
        from jaxexp._api.cases import files

        sources = files.sources_of(cases)
        tables = [stored(sources, store, f"weights{files.SUFFIX}")] if sources else []
        how = how._replace(cases=files.with_files(cases, *tables), case_files=True)
    if weights := function.weights:
        how = how._replace(weights=stored(weights.sources(), store).with_other_names(weights.other_names))
    return memoryview(serialize(function.unbound, how)).toreadonly()


def files_beside(path: str | os.PathLike[str], blob: Any) -> WithDigests | None:
    """The weights and cases of an artifact that is about to become a member, in files beside it; None if it has none.

    Raises:
        DeserializationError: it is not an artifact; or these files have other tensors, too, which would be lost.
    """
    if not (said := tables_of(_native.Artifact(blob))):
        return None
    from jaxexp._weights.arrays.stored import StoredInPieces, Table, Together

    found = [StoredInPieces(path, Table.of_trailer(*one)) for one in said]
    for stored in found:
        stored.check_whole()
    return Together.of(*found)
