"""Errors as JSON values, for journals and for the way back from workers."""

from __future__ import annotations

import builtins
from typing import Any

from jaxexp import _errors
from jaxexp._errors import DeserializationError, ExportError, PolicyError, TooOldReaderError


def packed(error: Exception) -> list[Any]:
    """Packs an error that is the result for an artifact; any other error is raised again. If `unpacked` cannot make its
    class, the nearest base class takes its place, with the same message.
    """
    for kind in type(error).__mro__:
        if _known(kind.__name__) is kind:
            return [kind.__name__, *_fields(kind, error)]
    raise error


def unpacked(said: Any) -> Exception:
    """Makes the error again.

    Raises:
        ValueError: it is not a packed error.
    """
    name, *fields = said
    kind: Any = _known(name)
    if kind is None:
        raise ValueError(f"not a packed error: {name!r}")
    error: Exception
    if issubclass(kind, OSError):
        number, text, file = fields
        error = kind(text) if number is None else kind(number, text, *filter(None, [file]))
    elif issubclass(kind, (DeserializationError, PolicyError)):
        *fields, file = fields
        error = kind(*fields)
        error.file = file  # type: ignore[attr-defined]
    elif issubclass(kind, TooOldReaderError):
        text, since = fields
        error = kind(text, None if since is None else tuple(since))
    else:
        error = kind(*fields)
    return error


def _known(name: Any) -> type[Exception] | None:
    """The class of an error that can be a result: one of jaxexp's, or one of Python's for files and imports."""
    if not isinstance(name, str):
        return None
    for home, base in ((_errors, ExportError), (builtins, OSError), (builtins, ImportError)):
        kind = getattr(home, name, None)
        if isinstance(kind, type) and issubclass(kind, base):
            return kind
    return None


def _fields(kind: type[Exception], error: Any) -> list[Any]:
    """The arguments that `unpacked` needs besides the class."""
    if issubclass(kind, DeserializationError):
        return [error.path, error.expected, error.found, error.file]
    if issubclass(kind, PolicyError):
        return [error.field, error.found, error.where, error.advice, error.file]
    if issubclass(kind, TooOldReaderError):
        return [str(error), error.since]
    if issubclass(kind, OSError):
        return [error.errno, error.strerror or str(error), error.filename and str(error.filename)]
    return [str(error)]
