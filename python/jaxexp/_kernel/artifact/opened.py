"""An artifact from its bytes, verified; what is none is refused with advice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportTypeError
from jaxexp._kernel.io.other_files import instead_of_artifact


def opened(buffer: Any, modules: Sequence[Any] = (), *, in_place: bool = False) -> _native.Artifact:
    """The artifact in a buffer; or in the image that `_native.cut` made of one, with its modules.

    Args:
        buffer: is copied where somebody may change it: where it is neither bytes nor a file that jaxexp reads.
        modules: as many as there are functions, if the buffer is an image.
        in_place: whether a read-only buffer is not copied all the same. Then the caller sees to it that nobody changes
            it.

    Raises:
        DeserializationError: it is none, or damaged. The error says what it looks like, and what to do.
        TypeError: it is no buffer.
    """
    try:
        return _native.Artifact(buffer, modules, in_place=in_place)
    except (DeserializationError, TypeError) as error:
        explain(error, buffer, is_whole=not modules)
        raise


def explain(error: DeserializationError | TypeError, buffer: Any, *, is_whole: bool = True) -> None:
    """Adds to an error what the bytes look like, and what to do instead.

    Raises:
        TypeError: it is no contiguous buffer, with other words than the error's.
    """
    if isinstance(error, DeserializationError):
        if not error.path and is_whole:
            error.found += instead_of_artifact(_beginning(buffer))
    elif not _is_contiguous(buffer):
        advice = "; jaxexp.load(path) reads a file" if isinstance(buffer, (str, os.PathLike)) else ""
        raise ExportTypeError(
            "an artifact is read from a buffer such as bytes, bytearray, memoryview or mmap, "
            f"not {type(buffer)}{advice}"
        ) from error


def _is_contiguous(value: Any) -> bool:
    try:
        return memoryview(value).c_contiguous
    except TypeError:
        return False


def _beginning(buffer: Any) -> bytes:
    view = memoryview(buffer)
    return bytes(view[:16]) if view.ndim == 1 and view.itemsize == 1 else b""
