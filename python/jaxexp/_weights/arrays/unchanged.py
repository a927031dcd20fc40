"""NumPy arrays that become weights: if their owners changed them, the function would be another one.

A copy would double the memory, which may not be there. So their digests are kept, and compared when the arrays are
used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxexp._errors import ExportError

from .pieces import digest


class Unchanged:
    """The first digests of arrays."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._digests = {name: digest(array) for name, array in arrays.items() if _may_change(array)}

    def check(self, name: str, array: Any) -> None:
        """Raises an ExportError if the array of this name was changed."""
        if name in self._digests and digest(array) != self._digests[name]:
            raise ExportError(
                f"the weight {name!r} is a NumPy array that has changed since the function got it. Export, bind or use "
                "with_weights again, or give it an array that cannot change: jax.numpy.array(...)"
            )


def _may_change(array: Any) -> bool:
    """Whether it can be written to, or is a view of memory that can."""
    if isinstance(array, jax.Array):
        return False
    part: Any = np.asarray(array)
    while isinstance(part, np.ndarray):
        if part.flags.writeable:
            return True
        part = part.base
    return False
