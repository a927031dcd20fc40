"""Compares results of the same function, which may be compiled in another way, or run on another machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxexp import _jax
from jaxexp._api.cases.comparing import rounding


def differing(expected: Any, found: Any) -> Any:
    """Which numbers of two arrays of one shape differ by more than rounding to the dtype of the first one."""
    if not _jax.issubdtype(expected.dtype, np.inexact):
        return expected != found
    wide = np.complex128 if _jax.issubdtype(expected.dtype, np.complexfloating) else np.float64
    largest = np.max(np.abs(expected), initial=0, where=np.isfinite(expected))
    tolerance = rounding(expected.dtype) * float(largest)
    return ~np.isclose(found.astype(wide), expected.astype(wide), rtol=0, atol=tolerance, equal_nan=True)
