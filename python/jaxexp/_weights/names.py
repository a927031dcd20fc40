"""The names of weights: where they are in a pytree."""

from __future__ import annotations

import collections
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
        name = _name(path)
        if name in found:
            raise _twice(name)
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise ExportError(f"the weight {name!r} is {leaf!r}, expected an array")
        found[name] = leaf
    return found


def names_in(treedef: Any) -> list[str]:
    """The paths of the leaves in a tree structure.

    Raises:
        ExportError: two leaves have one name.
    """
    tree = jax.tree_util.tree_unflatten(treedef, range(treedef.num_leaves))
    names = [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    if len(set(names)) != len(names):
        raise _twice(collections.Counter(names).most_common(1)[0][0])
    return names


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/") or "weights"


def _twice(name: str) -> ExportError:
    return ExportError(f"two weights would be called {name!r}: rename one of them in the pytree")
