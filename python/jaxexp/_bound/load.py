"""Functions that were read from files, with the weights that are in files beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from jaxexp._call import first_argument
from jaxexp._errors import DeserializationError
from jaxexp._exported import Exported
from jaxexp._function import data
from jaxexp._weights.stored import Stored, Table, WithDigests
from jaxexp._weights.weights import Weights

from .bound import BoundExported, types_of


def with_stored(program: Exported, path: str | os.PathLike[str]) -> BoundExported:
    """A function with the weights that its trailer names, in files beside the one that it was read from. Nothing of
    them is read.

    Raises:
        DeserializationError: the trailer says of the weights what does not fit the signature.
    """
    return bound_to(program, lambda table, _: Stored(path, table))


def bound_to(program: Exported, tensors: Callable[[Table, Mapping[str, Any]], WithDigests]) -> BoundExported:
    """The same with weights that are elsewhere.

    Args:
        program: the function.
        tensors: where they are, given what the trailer says, and the abstract value of each weight by its name.

    Raises:
        DeserializationError: as in `with_stored`.
    """
    found = data.weights_in_trailer(program)
    assert found is not None
    table = Table.of_trailer(*found)
    names = [tensor.name for tensor in table.tensors]
    if names != first_argument.names(program.in_tree):
        raise DeserializationError(
            "trailer.weights.tensors", "the names in the dict that is the first argument", _shown(names)
        )
    types = types_of(program)
    return BoundExported.of(program, Weights(types, tensors(table, types), (), table.named_otherwise()))


def _shown(names: list[str]) -> str:
    listed = ", ".join(map(repr, names[:8])) or "none"
    return f"{listed}, and {len(names) - 8:,} more" if len(names) > 8 else listed
