"""Small StableHLO programs: for each operation a few, which between them use all that it can say."""

from . import arrays, defaults, devices, elements, programs  # noqa: F401  (they fill SNIPPETS)
from .snippet import SNIPPETS, Snippet

__all__ = ["SNIPPETS", "Snippet"]
