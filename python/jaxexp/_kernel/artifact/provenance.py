"""Who wrote an artifact first: an artifact that was made of an older one says so in its trailer."""

from __future__ import annotations

from jaxexp import _native

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
    """The name of the writer for a trailer."""
    return writer if first is None else f"{writer}{_MARK}{first}"


def writer_in(said: str) -> str:
    """The writer of an artifact itself, in what its trailer says."""
    return said.partition(_MARK)[0]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
