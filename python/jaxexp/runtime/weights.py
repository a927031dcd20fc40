"""Weights that a session is given in place of its own, wherever they are."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxexp import _runtime
from jaxexp._errors import ExportError
from jaxexp._fleet.places import weights
from jaxexp._fleet.places.source import source, split

from .arrays import Leaf, dtype_of, to_numpy
from .trees import Dict, tree_of

if TYPE_CHECKING:
    from jaxexp._fleet.archive.archive import Handle
    from jaxexp._fleet.places.load import Check
    from jaxexp._fleet.places.weights import Source

    from .programs import Trust


def member(given: Any, trust: Trust, *, is_signed: bool) -> Handle | None:
    """The member of an archive that was given, which has to be signed if the session's own files are; None for others.

    Raises:
        ExportError: its archive was not opened as it has to be.
        Exception: as in `source`.
    """
    from jaxexp._fleet.archive.archive import Handle

    if isinstance(given, (str, os.PathLike)) and split(os.fsdecode(given))[1] is not None:
        found = source(given, "with_weights", trust.signed_by, trust.stable).handle
    elif isinstance(given, Handle):
        found = source(given, "with_weights", None, trust.stable).handle
    else:
        return None
    if is_signed and found is not None and found._opened.signed is None:
        raise ExportError(f"{found.label!r}: open its archive with Archive.open(path, signed_by=...)")
    return found


def tensors(
    given: Any, handle: Handle | None, plugin: _runtime.Plugin, check_file: Check | None
) -> tuple[Mapping[str, Source], str | None]:
    """The weights by the names that they have there, and what errors call the place; None for arrays.

    Raises:
        RunError: something in the place of an array is none.
        WeightsError: a file cannot be read, or the member has no weights.
        ExportError: two arrays have one path.
        OSError: a file cannot be opened.
    """
    if handle is not None:
        return weights.in_member(handle), handle.label
    if isinstance(given, (str, os.PathLike)):
        return weights.in_file(os.fsdecode(given), check_file), os.fsdecode(given)
    return weights.in_arrays(given, functools.partial(_array, plugin)), None


def names_of(program: _runtime.Program) -> list[str] | None:
    """The names of a function's weights; None if its first argument is no dict."""
    in_nodes, _ = program.trees(0)
    args, _ = tree_of(in_nodes, "in_tree").children
    first = args.children[0] if args.children else None
    return list(map(str, first.keys)) if isinstance(first, Dict) else None


def _array(plugin: _runtime.Plugin, name: str, value: Any) -> np.ndarray:
    if type(value) is not np.ndarray:
        value = Leaf(plugin, f"the weight {name!r}", "", "any array").foreign(value)
    if isinstance(value, _runtime.Array):
        value = to_numpy(value, dtype_of(value.dtype))
    return np.asarray(value, value.dtype.newbyteorder("="), order="C")
