"""How a function is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# Files (name, size, content), tensors (name, index of the file, size, digest), and other names of tensors.
TableOfWeights = tuple[
    Sequence[tuple[str, int, bytes]], Sequence[tuple[str, int, int, bytes]], Sequence[tuple[str, int]]
]


class Writing(NamedTuple):
    """The options of `Exported.serialize`, which explains them, and the weights that the trailer names."""

    vjp_order: int = 0
    compatibility: str | None = None
    trailer: bool = True
    metadata: Mapping[str, Any] | None = None
    strict: bool = False
    weights: TableOfWeights | None = None
    locations: str = "full"
    sizes: Sequence[Mapping[str, int]] | None = None


PLAIN = Writing()
