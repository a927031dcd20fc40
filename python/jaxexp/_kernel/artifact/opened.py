"""Verifies an artifact's bytes, and refuses anything else with advice; who wrote it first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportBufferError, ExportTypeError
from jaxexp._kernel.io.other_files import HEAD, instead_of_artifact


def opened(buffer: Any, modules: Sequence[Any] = (), *, in_place: bool = False) -> _native.Artifact:
    """The artifact in a buffer, or in the image that `_native.cut` made of one, with a module for each function. A
    buffer that somebody may change is copied, unless the caller makes sure that it does not change, with `in_place`.
    The error for anything else says what it looks like, and what to do.
    """
    try:
        return _native.Artifact(buffer, modules, in_place=in_place)
    except (DeserializationError, TypeError) as error:
        explain(error, buffer, is_whole=not modules)
        raise


def tables_of(artifact: _native.Artifact) -> list[tuple[Any, Any, Any]]:
    """What an artifact says of the files beside it, each time as `artifact.weights()` does: of those of its weights and
    of those of its cases, if it has them.
    """
    found: list[tuple[Any, Any, Any]] = [] if (weights := artifact.weights()) is None else [weights]
    if (cases := artifact.cases()) is not None and cases[2]:
        _, _, files, tensors = cases
        found.append((files, tensors, ()))
    return found


def explain(error: DeserializationError | TypeError, buffer: Any, *, is_whole: bool = True) -> None:
    """Adds to an error what the bytes look like, and what to do instead."""
    if isinstance(error, DeserializationError):
        if is_whole:
            error.found = instead_of_artifact(error.found, error.path, _beginning(buffer))
        return
    expected = "an artifact is read from a buffer such as bytes, bytearray, memoryview or mmap"
    try:
        is_contiguous = memoryview(buffer).c_contiguous
    except TypeError:
        advice = "; jaxexp.load(path) reads a file" if isinstance(buffer, (str, os.PathLike)) else ""
        raise ExportTypeError(f"{expected}, not {type(buffer)}{advice}") from None
    if not is_contiguous:
        raise ExportBufferError(f"{expected}, found one that is not contiguous: pass bytes(...) of it") from None


def _beginning(buffer: Any) -> bytes:
    view = memoryview(buffer)
    return bytes(view[:HEAD]) if view.ndim == 1 and view.itemsize == 1 else b""


# --- who wrote an artifact first: an artifact that was made of an older one says so in its trailer --------------------


_MARK = ", first written by "  # behind the name of the writer, which readers only show


def recorded(artifact: _native.Artifact) -> str | None:
    """The first writer, if the trailer names one."""
    trailer = artifact.trailer()
    return str(trailer["writer"]).partition(_MARK)[2] or None if trailer is not None else None


def first_writer(artifact: _native.Artifact, installed: str) -> str | None:
    """As in "JAX 0.4.30"; None if that may be the installed release of JAX."""
    version = artifact.jax_version
    if version == installed:
        return recorded(artifact)
    if version is not None:
        return recorded(artifact) or f"JAX {version}"
    first, _, last = artifact.writer.partition(" to ")  # only jax.export, before it named its release
    return None if _number(first) <= _number(installed) <= _number(last or first) else f"JAX {artifact.writer}"


def writer_with(writer: str, first: str | None) -> str:
    return writer if first is None else f"{writer}{_MARK}{first}"


def writer_in(said: str) -> str:
    """The writer of an artifact itself, in what its trailer says."""
    return said.partition(_MARK)[0]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
