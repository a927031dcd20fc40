"""The names of weights: where they are in a pytree."""

from __future__ import annotations

from typing import Any

import jax

from jaxexp._errors import ExportError


def named_leaves(tree: Any) -> dict[str, Any]:
    """The arrays in a pytree by their paths, such as ``layers/0/w``.

    Raises:
        ExportError: two leaves have one name, or a leaf is no array.
    """
    found: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "weights"
        if name in found:
            raise ExportError(f"two weights would be called {name!r}: rename one of them in the pytree")
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise ExportError(f"the weight {name!r} is {leaf!r}, expected an array")
        found[name] = leaf
    return found
