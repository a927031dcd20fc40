"""Explains why an array is not among the leaves of a pytree: it is another view or a copy of one of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxexp._weights.arrays.pieces import digest
from jaxexp._weights.files.dtypes import type_of


class Likeness:
    """The leaves by their memory and by their bytes. A search reads the array, and the leaves of its size."""

    def __init__(self, leaves: Mapping[str, Any]) -> None:
        self._leaves = leaves
        self._by_digest = functools.cache(self._digests)

    def said(self, array: Any) -> str | None:
        """The leaf that an array is a view or a copy of, for a message; None if there is none."""
        owner = _owner(array)
        if owner is not None and (name := self._by_owner.get(id(owner))) is not None:
            return f"another view of {name!r}, {type_of(self._leaves[name])}"
        if size := size_of(array):
            name = self._by_digest(size).get(digest(array))
            if name is not None:
                return f"a copy of {name!r}, {type_of(self._leaves[name])}"
        return None

    @functools.cached_property
    def _by_owner(self) -> dict[int, str]:
        found = ((_owner(leaf), name) for name, leaf in self._leaves.items())
        return {id(owner): name for owner, name in found if owner is not None}

    def _digests(self, size: int) -> dict[bytes, str]:
        arrays = ((name, leaf) for name, leaf in self._leaves.items() if isinstance(leaf.dtype, np.dtype))
        return {digest(leaf): name for name, leaf in arrays if size_of(leaf) == size}


def size_of(array: Any) -> int:
    """How many bytes the elements of an array take in memory."""
    return int(math.prod(array.shape) * np.dtype(array.dtype).itemsize)


def _owner(array: Any) -> Any | None:
    """The array whose memory a NumPy array views."""
    if isinstance(array, jax.Array):
        return None
    owner: Any = np.asarray(array)
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner
