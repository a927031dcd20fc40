"""Python's numbers as arrays of the dtypes that they may have in a call."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

# Python's numbers, by the kinds of NumPy's dtypes that they become.
KINDS = {bool: "b", int: "iufcV", float: "fcV", complex: "c"}  # "V": those of ml_dtypes


def array_of(number: Any, dtype: np.dtype[Any], name: str) -> np.ndarray | None:
    """A number of Python as an array of a dtype, which JAX calls by this name; None if the dtype has no such number."""
    if dtype.kind in KINDS[type(number)]:
        with contextlib.suppress(OverflowError, TypeError, ValueError):
            array = np.asarray(number, dtype)
            # The integers of ml_dtypes wrap around, and take fractions.
            if dtype.kind != "V" or "int" not in name or (type(number) is int and int(array) == number):
                return array
    return None
