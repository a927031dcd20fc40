"""How a function is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp._kernel.artifact.words import check_flags

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.cases import Cases

# Files (name, size, content), tensors (name, index of the file, size, digest), and other names of tensors.
TableOfWeights = tuple[
    Sequence[tuple[str, int, bytes]], Sequence[tuple[str, int, int, bytes]], Sequence[tuple[str, int]]
]


class Writing(NamedTuple):
    """The options of `Exported.serialize`, which explains them, and what the trailer names of other files."""

    vjp_order: int = 0
    compatibility: str | None = None
    trailer: bool = True
    metadata: Mapping[str, Any] | None = None
    strict: bool = False
    weights: TableOfWeights | None = None  # which are in files
    locations: str = "full"
    cases: Cases | None = None  # by default those of the function
    case_files: bool = False  # whether cases may have arrays in files; otherwise such cases are left out
    sizes: Sequence[Mapping[str, int]] | None = None
    padded: tuple[str, ...] | None = None


PLAIN = Writing()


def check_types(trailer: Any, strict: Any) -> None:
    check_flags(trailer=trailer, strict=strict)
