"""Finds out what `migrate` can do for releases that refuse an artifact, by migrating it in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from jaxexp._errors import ExportError, cause
from jaxexp._kernel.write import retarget

from .compatibility import Compatibility, compatibility_of
from .migrate import migrated


def rewritten(buffer: Any, to: str | None) -> Compatibility:
    """The compatibility of an artifact rewritten for a release, or for the installed one; or an ExportError."""
    return compatibility_of(_tried(lambda: migrated(buffer, to)))


def rewritten_for_oldest(buffer: Any) -> tuple[str, Compatibility]:
    """The oldest release that an artifact can be written for, and its compatibility then; or an ExportError."""
    reader, blob = _tried(lambda: retarget.oldest(lambda reader: migrated(buffer, reader.release.version)))
    return reader.release.version, compatibility_of(blob)


_T = TypeVar("_T")


def _tried(write: Callable[[], _T]) -> _T:
    """The result of `write`. If jaxlib raises anything for a foreign module, the module cannot be written."""
    try:
        return write()
    except (ExportError, MemoryError):
        raise
    except Exception as error:  # jaxlib has no class of its own
        raise ExportError(f"JAX cannot write its module: {str(error).partition(chr(10))[0]}") from cause(error)
