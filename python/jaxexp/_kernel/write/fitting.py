"""Which cases fit a function: its signature may have changed since they were recorded."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jaxexp import _jax
from jaxexp._kernel.artifact.cases import FLOAT0, Case, Value
from jaxexp._kernel.function.data import ExportedData

DTYPE_OF_FLOAT0 = _jax.float0


def fits(case: Case, function: ExportedData, weights: int) -> bool:
    """Whether a case is a call of a function, or of a VJP, whose first arguments are this many weights."""
    values, avals = (*case.arguments, *case.results), (*function.in_avals[weights:], *function.out_avals)
    if len(case.results) != len(function.out_avals) or len(values) != len(avals):
        return False
    return all(map(fits_aval, values, avals)) and _have_sizes(values, avals)


def _have_sizes(values: Sequence[Value], avals: Sequence[Any]) -> bool:
    dims = [
        (dim, size)
        for value, aval in zip(values, avals, strict=True)
        for dim, size in zip(aval.shape, value.shape, strict=True)
        if _jax.is_symbolic_dim(dim)
    ]
    sizes: dict[str, Any] = {}
    for dim, size in dims:
        if {str(dim)} == _jax.dim_vars(dim):
            sizes.setdefault(str(dim), size)
    known = [(dim, size) for dim, size in dims if _jax.dim_vars(dim) <= sizes.keys()]
    found = _jax.evaluate_shape([dim for dim, _ in known], tuple(sizes), *sizes.values())
    return list(found) == [size for _, size in known]


def fits_aval(value: Value, aval: Any) -> bool:
    """Whether an array has the dtype and the shape of an abstract value; a symbolic dimension may have any size."""
    return (
        value.dtype == name_of(aval.dtype)
        and len(value.shape) == len(aval.shape)
        and all(_jax.is_symbolic_dim(dim) or dim == size for size, dim in zip(value.shape, aval.shape, strict=True))
    )


@functools.lru_cache(maxsize=256)
def name_of(dtype: Any) -> str:
    """What artifacts call a dtype. NumPy takes microseconds to make the text."""
    return FLOAT0 if dtype == DTYPE_OF_FLOAT0 else str(dtype)
