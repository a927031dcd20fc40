"""NumPy's dtypes by name; Python's numbers as arrays of the dtypes that they may have in a call; sizes, as callers give
them."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxexp._errors import ExportError, ExportTypeError, cause

# Python's numbers, by the kinds of NumPy's dtypes that they become.
KINDS = {bool: "b", int: "iufcV", float: "fcV", complex: "c"}  # "V": those of ml_dtypes


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of this name, of NumPy or of `ml_dtypes`."""
    with contextlib.suppress(TypeError):
        if (dtype := np.dtype(name)).isbuiltin == 1:  # otherwise a package has added it
            return dtype
    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        raise ImportError(
            f"arrays of dtype {name} need the package ml_dtypes, which is not installed: pip install ml_dtypes"
        ) from cause(error)
    if not hasattr(ml_dtypes, name):
        raise ExportError(f"NumPy has no arrays of dtype {name}")
    return np.dtype(getattr(ml_dtypes, name))


def array_of(number: Any, dtype: np.dtype[Any], name: str) -> np.ndarray | None:
    """A number of Python as an array of a dtype, which JAX calls by this name; None if the dtype has no such number."""
    if dtype.kind in KINDS[type(number)]:
        with contextlib.suppress(OverflowError, TypeError, ValueError), np.errstate(over="ignore"):
            array = np.asarray(number, dtype)
            # The integers of ml_dtypes wrap around, and take fractions.
            if dtype.kind == "V" and "int" in name:
                return array if type(number) is int and int(array) == number else None
            # Larger numbers than a float has become infinite or NaN in it.
            if np.isfinite(array.astype(np.complex128)) or not np.isfinite(number):
                return array
    return None


# --- sizes of dimension variables, as callers give them ---------------------------------------------------------------


def integer(given: Any) -> int:
    """An integer of Python or NumPy, as an int; a TypeError for anything else, such as True or 1.0."""
    if isinstance(given, bool):
        raise TypeError("'bool' object is not an integer here")
    return operator.index(given)


def sizes_by_name(given: Any) -> dict[str, int]:
    """A set of sizes such as ``{"batch": 8}``; an ExportTypeError if it is none. Names and ranges are not checked."""
    try:
        if not isinstance(given, Mapping):
            raise TypeError(f"a {type(given).__name__}")
        return {name: integer(size) for name, size in given.items()}
    except TypeError as error:
        raise ExportTypeError(f"a set of sizes is a dict of integers such as {{'batch': 8}}, not {given!r}") from cause(
            error
        )
