"""The functions in one artifact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxexp import _native
from jaxexp._errors import DeserializationError

if TYPE_CHECKING:
    from jaxexp._native import Artifact


def chain(artifact: Artifact) -> Iterator[Artifact]:
    """An artifact's function, then its VJPs by ascending order."""
    link: Artifact | None = artifact
    while link is not None:
        yield link
        link = link.vjp()


def check_modules(artifact: Artifact) -> None:
    """Compares the modules of a function and of its VJPs with their digests, and checks their bytecode."""
    checked = set()  # functions of a hostile artifact may share a module
    for order, link in enumerate(chain(artifact)):
        module = link.module()
        if link.module_place in checked:
            continue
        checked.add(link.module_place)
        try:
            _native.check_bytecode(module)
        except DeserializationError as error:
            error.path = f"{'vjp.' * order}{error.path}"
            raise
