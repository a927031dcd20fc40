"""Tied weights: one weight that a pytree has in several places."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxexp import _native
from jaxexp._errors import WeightsError

from .names import identities, is_array
from .pieces import pieces


def check_tied(given: Mapping[str, Any], other_names: Mapping[str, str], file: str | None = None) -> None:
    """Raises a WeightsError if the values for different places of one weight differ, or cannot be compared.

    `given` has arrays by the names of their places, and `other_names` the name of the weight for each further place.
    """
    for other, name in other_names.items():
        if other not in given or name not in given or given[other] is given[name]:
            continue
        if (found := _difference(given[other], given[name])) is not None:
            expected = f"the same array as {name!r}, with which it is one weight"
            raise WeightsError(other, expected, f"{found}. Leave out one of them", file=file)


def _difference(one: Any, other: Any) -> str | None:
    if not is_array(one) or not is_array(other) or one.shape != other.shape or one.dtype != other.dtype:
        return "one of another type"
    if not _is_readable(one) or not _is_readable(other):
        return "another one, which cannot be compared while it is traced or is in other processes"
    if set(identities(one)) & set(identities(other)):
        return None
    parts = itertools.zip_longest(pieces(one), pieces(other), fillvalue=np.empty(0, np.uint8))
    return None if all(_native.equal_bytes(a.data, b.data) for a, b in parts) else "other values"


def _is_readable(array: Any) -> bool:
    return not isinstance(array, jax.Array) or (not isinstance(array, Tracer) and array.is_fully_addressable)
