"""Sizes of dimension variables, as callers give them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from jaxexp._errors import ExportTypeError, cause


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
