"""What `migrate` does for releases that refuse an artifact: found out by migrating it, in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from jaxexp._errors import ExportError
from jaxexp._kernel.write import retarget

from .compatibility import Compatibility, compatibility_of
from .migrate import migrated


def rewritten(buffer: Any, to: str | None) -> Compatibility:
    """What an artifact would be for a release, or for the installed one.

    Raises:
        ExportError: it cannot be written for it; the message says why.
    """
    return compatibility_of(_tried(lambda: migrated(buffer, to, None)))


def rewritten_for_oldest(buffer: Any) -> tuple[str, Compatibility]:
    """The oldest release that an artifact can be written for, and what it would be then.

    Raises:
        ExportError: it cannot be written for any.
    """
    reader, blob = _tried(lambda: retarget.oldest(lambda reader: migrated(buffer, reader.release.version, None)))
    return reader.release.version, compatibility_of(blob)


_T = TypeVar("_T")


def _tried(write: Callable[[], _T]) -> _T:
    """What `write` returns. Whatever jaxlib raises of a module of others, it cannot be written."""
    try:
        return write()
    except (ExportError, MemoryError):
        raise
    except Exception as error:  # jaxlib has no class of its own
        raise ExportError(f"JAX cannot write its module: {str(error).partition(chr(10))[0]}") from error
