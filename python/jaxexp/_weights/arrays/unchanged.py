"""NumPy arrays that become weights: their owners may change them, and then the function would be another one.

A copy would take as much memory again, which a model may not have. So their digests are taken, and compared when the
arrays are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxexp._errors import ExportError

from .pieces import digest


class Unchanged:
    """The digests of arrays as they were at first."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._digests = {name: digest(array) for name, array in arrays.items() if _may_change(array)}

    def check(self, name: str, array: Any) -> None:
        """Raises an ExportError if the array of this name was changed."""
        if name in self._digests and digest(array) != self._digests[name]:
            raise ExportError(
                f"the weight {name!r} is a NumPy array that has changed since the function got it. Export, bind or use "
                "with_weights again, or give it an array that nobody changes: jax.numpy.array(...)"
            )


def _may_change(array: Any) -> bool:
    """Whether somebody can write to it, or to what it is a view of."""
    if isinstance(array, jax.Array):
        return False
    part: Any = np.asarray(array)
    while isinstance(part, np.ndarray):
        if part.flags.writeable:
            return True
        part = part.base
    return False
