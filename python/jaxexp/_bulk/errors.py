"""Errors as values of JSON, for journals and on the way from workers."""

from __future__ import annotations

from typing import Any

from jaxexp import _errors
from jaxexp._errors import DeserializationError, ExportError, PolicyError


def packed(error: Exception) -> list[Any]:
    """An error that is the result for an artifact; any other one is raised again."""
    kind = type(error).__name__
    if isinstance(error, DeserializationError):
        return [kind, error.path, error.expected, error.found, error.file]
    if isinstance(error, PolicyError):
        return [kind, error.field, error.found, error.where, error.advice, error.file]
    if isinstance(error, OSError):
        return ["OSError", error.errno, error.strerror or str(error), error.filename and str(error.filename)]
    if isinstance(error, ImportError):
        return ["ImportError", str(error)]
    if isinstance(error, ExportError) and getattr(_errors, kind, None) is type(error):
        return [kind, str(error)]
    raise error


def unpacked(said: Any) -> Exception:
    """The error again.

    Raises:
        ValueError: it is none.
    """
    kind, *fields = said
    if kind == "OSError":
        number, text, name = fields
        return OSError(text) if number is None else OSError(number, text, *filter(None, [name]))
    if kind == "ImportError":
        return ImportError(*fields)
    made = getattr(_errors, kind, None) if isinstance(kind, str) else None
    if not (isinstance(made, type) and issubclass(made, ExportError)):
        raise ValueError(f"no error: {kind!r}")
    if issubclass(made, (DeserializationError, PolicyError)):
        error: Any = made(*fields[:-1])
        error.file = fields[-1]
        return error  # type: ignore[no-any-return]
    return made(*fields)
