"""The names of weights: where they are in a pytree."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp._errors import ExportError
from jaxexp._kernel.function.placeholders import key_paths
from jaxexp._weights.files.names import listed_names


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their paths, such as ``layers/0/w``; an ExportError if two have the same path."""
    found: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = _name(path)
        if name in found:
            raise _twice(name)
        found[name] = leaf
    return found


def is_array(leaf: Any) -> bool:
    """Whether a leaf could be a weight: pytrees of models also have functions and numbers as leaves."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def identities(array: Any) -> Iterable[tuple[Any, ...]]:
    """Keys that only the same array has: the object, and for NumPy also the memory, because each view is an object."""
    yield ("object", id(array))
    if not isinstance(array, jax.Array):
        memory = np.asarray(array).__array_interface__
        yield ("memory", memory["data"][0], memory["strides"], array.shape, array.dtype)


def names_in(treedef: Any) -> list[str]:
    """The paths of the leaves in a tree structure; an ExportError if two are the same."""
    names = list(map(_name, key_paths(treedef)))
    if len(set(names)) != len(names):
        raise _twice(collections.Counter(names).most_common(1)[0][0])
    return names


def warn_of_others(what: str, names: Sequence[str], why: str) -> None:
    """Warns of arrays in a model that are not weights of the function."""
    if names:
        text = f"{what}: {listed_names(names)}. They are not weights of the function: {why}"
        warnings.warn(text, UserWarning, stacklevel=_CALLER)


_CALLER = 4  # of with_weights and weights_into: behind them, a method of Weights and a function here


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/") or "weights"


def _twice(name: str) -> ExportError:
    return ExportError(f"two weights would be called {name!r}: rename one of them in the pytree")
