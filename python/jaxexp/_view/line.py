"""Functions in one line, for `repr`. The line ends up in jaxprs and logs, so it is always short."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._kernel.artifact.words import bytes_in_words, counted, cut

if TYPE_CHECKING:
    from jaxexp._kernel.function.data import ExportedData

# Values in a line, dimensions of a value, characters of a dimension.
_VALUES, _DIMS, _LONGEST_DIM = 4, 6, 24


def line(exported: ExportedData, weights: int) -> str:
    """A function with the types of its first arguments and results, and the size of its module. The arguments before
    them are weights.
    """
    from jaxexp._kernel.function import data

    before = f"{counted(weights, 'weight')}; " if weights else ""
    types = f"{_types(exported.in_avals[weights:])} -> {_types(exported.out_avals)}"
    name, size = cut(exported.fun_name, 80), bytes_in_words(data.module_size(exported))
    return f"{type(exported).__name__}({name}: {before}{types}, module of {size})"


def _types(avals: Sequence[Any]) -> str:
    shown = [_type(aval) for aval in itertools.islice(avals, _VALUES)]
    if len(avals) > _VALUES:
        shown.append(f"... {len(avals) - _VALUES:,} more")
    return ", ".join(shown) or "nothing"


def _type(aval: Any) -> str:
    dims = [cut(str(dim), _LONGEST_DIM) for dim in aval.shape[:_DIMS]] + ["..."] * (len(aval.shape) > _DIMS)
    return f"{aval.dtype}[{','.join(dims)}]"
