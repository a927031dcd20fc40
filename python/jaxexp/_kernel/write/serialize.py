"""Writes an `Exported`: to bytes, and to a file."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from jaxexp import _native
from jaxexp._errors import (
    DeserializationError,
    ExportError,
    ExportTypeError,
    Lines,
    SerializationError,
    SerializationTypeError,
    cause,
)
from jaxexp._kernel.artifact.metadata import to_json
from jaxexp._kernel.artifact.opened import writer_with
from jaxexp._kernel.codec import binding, nodes
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData, first_writer_of
from jaxexp._kernel.function.vjps import chain_up_to
from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import ARTIFACT
from jaxexp._kernel.module import locations

from .options import PLAIN, Writing

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.cases import Case

# The options of most artifacts.
_TODAY = _native.Form()
_NOTES = _native.Notes(files.WRITER, {})


def serialize(exported: ExportedData, how: Writing) -> bytearray:
    try:
        return _native.encode(*_encoder_arguments(exported, how))
    except DeserializationError as error:
        error.file = error.file or exported._kept.file
        raise


def save(exported: ExportedData, path: str | os.PathLike[str], how: Writing) -> None:
    with files.named_in_errors(exported._kept.file):
        files.replace(path, _native.EncodedParts(*_encoder_arguments(exported, how)), ARTIFACT)


def _encoder_arguments(exported: ExportedData, how: Writing) -> tuple[Any, ...]:
    binding.bind()
    if how is PLAIN and not data.has_notes(exported):  # by far the most common case
        chain, compatibility = [exported], None
        notes: _native.Notes | None = _NOTES
    else:
        chain = _chain(exported, how.vjp_order)
        if how.strict:
            _check_registrations(chain)
        notes, compatibility = _notes(chain, how), how.compatibility
    if compatibility is None:
        compatibility = data.compatibility_of(exported)
    form = _TODAY
    if compatibility is not None:
        from .reader import for_choice

        reader, chain = for_choice(chain, compatibility, 0 if how.weights is None else len(how.weights[1]))
        form = reader.form
    if how.locations != "full":
        locations.check_choice(how.locations)
        modules = [locations.rewritten(one.mlir_module_serialized, how.locations) for one in chain]
        chain = [
            one if new is one.mlir_module_serialized else dataclasses.replace(one, mlir_module_serialized=new)
            for one, new in zip(chain, modules, strict=True)
        ]
    return chain, jax.__version__, form, notes


def _check_registrations(chain: Sequence[ExportedData]) -> None:
    """Refuses nodes that only jaxexp reads."""
    trees = [tree for exported in chain for tree in (exported.in_tree, exported.out_tree)]
    if nodes.has_other_keys(trees):
        raise SerializationTypeError(
            f"{data.described(chain[0])} cannot be serialized with strict=True: its trees contain dicts with keys that "
            "are not strings. Use strings as keys, or leave out strict, if every reader has jaxexp"
        )
    missing = nodes.unregistered(trees)
    if not missing:
        return
    lines = [nodes.registration_line(name, nodetype, auxdata) for name, (nodetype, auxdata) in missing.items()]
    many = len(missing) > 1
    said = (
        f"{data.described(chain[0])} cannot be serialized with strict=True: its trees contain "
        f"{f'{len(missing)} pytree node types that are' if many else 'a pytree node type that is'} not registered for "
        f"serialization. Register {'them' if many else 'it'} here and wherever the artifact is read, or leave out "
        "strict:"
    )
    raise SerializationError(Lines.of([said, *(f"  {line}" for line in lines)]))


def _notes(chain: Sequence[ExportedData], how: Writing) -> _native.Notes | None:
    """The trailer's notes about the whole artifact. A loaded function keeps its own unless given new ones."""
    exported, metadata, sizes, padded = chain[0], how.metadata, how.sizes, how.padded
    if not how.trailer:
        given = {"metadata": metadata, "sizes": sizes, "pad": padded}
        if (what := next((name for name, value in given.items() if value is not None), None)) is None:
            return None
        raise ExportError(
            f"{data.described(exported)} cannot be serialized with {what} and trailer=False: "
            f"{what} {'are' if what == 'sizes' else 'is'} in the trailer"
        )
    cases = _cases(chain, how)
    metadata = data.metadata_of(exported) if metadata is None else metadata
    sizes = data.sizes_of(exported) if sizes is None else sizes
    padded = data.padded_of(exported) if padded is None else padded
    first = first_writer_of(exported)
    if not metadata and not sizes and not padded and how.weights is None and cases is None and first is None:
        return _NOTES
    each = [sorted(one.items()) for one in sizes]
    return _native.Notes(writer_with(files.WRITER, first), to_json(metadata), how.weights, cases, each, padded)


def _cases(chain: Sequence[ExportedData], how: Writing) -> Any:
    """The cases for the trailer: those that fit the functions that are written."""
    cases = data.cases_of(chain[0]) if how.cases is None else how.cases
    if cases is None:
        return None
    from jaxexp._kernel.artifact.cases import is_in_files  # few artifacts have some

    from . import fitting

    weights = 0 if how.weights is None else len(how.weights[1])

    def is_kept(case: Case) -> bool:
        has_place = how.case_files or not is_in_files(case)
        return has_place and case.vjp_order < len(chain) and fitting.fits(case, chain[case.vjp_order], weights)

    return cases.for_trailer(is_kept)


def _chain(exported: ExportedData, vjp_order: Any) -> list[ExportedData]:
    try:
        order: int = math.ceil(vjp_order)  # a fraction counts as the next whole number: `jax.export` counts down to 0
    except (TypeError, ValueError, OverflowError) as error:
        raise ExportTypeError(
            f"{data.described(exported)} cannot be serialized with vjp_order={vjp_order!r}: "
            "it is the number of VJPs to include, an int"
        ) from cause(error)

    def ends(found: int) -> ExportError:
        return ExportError(
            f"{data.described(exported)} cannot be serialized with vjp_order={order}: it was loaded from an "
            f"artifact that holds its VJPs up to order {found}. Serialize the original with "
            f"vjp_order={data.origin(exported)[1] + order} or more"
        )

    return chain_up_to(exported, order, ends)
