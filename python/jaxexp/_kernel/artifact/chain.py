"""The functions in one artifact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxexp._native import Artifact


def chain(artifact: Artifact) -> Iterator[Artifact]:
    """An artifact's function, then its VJPs by ascending order."""
    link: Artifact | None = artifact
    while link is not None:
        yield link
        link = link.vjp()
