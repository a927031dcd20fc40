"""The names of weights: where they are in a pytree."""

from __future__ import annotations

import collections
import difflib
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp._errors import ExportError, WeightsError
from jaxexp._kernel.artifact import words


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


def type_of(array: Any) -> str:
    """As in "float32[3, 4]", for messages."""
    return f"{array.dtype}{list(array.shape)}"


def identities(array: Any) -> Iterable[tuple[Any, ...]]:
    """Keys that only the same array has: the object, and for NumPy also the memory, because each view is an object."""
    yield ("object", id(array))
    if not isinstance(array, jax.Array):
        memory = np.asarray(array).__array_interface__
        yield ("memory", memory["data"][0], memory["strides"], array.shape, array.dtype)


def names_in(treedef: Any) -> list[str]:
    """The paths of the leaves in a tree structure; an ExportError if two are the same."""
    tree = jax.tree_util.tree_unflatten(treedef, range(treedef.num_leaves))
    names = [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    if len(set(names)) != len(names):
        raise _twice(collections.Counter(names).most_common(1)[0][0])
    return names


def check_names(
    needed: Collection[str], given: Collection[str], file: str | None = None, is_mapping: bool = False
) -> None:
    """Raises a WeightsError if a weight is not among the given names; it suggests similar ones.

    `is_mapping` says that these are from a mapping of arrays by name, to which the user can add others.
    """
    missing = [name for name in needed if name not in given]
    if not missing:
        return
    found = f"none among {len(given):,}"
    needed_names = set(needed)
    unused = [name for name in given if name not in needed_names]
    if near := _nearest(missing[0], unused):
        found += f", of which {' and '.join(map(repr, near))} {'is' if len(near) == 1 else 'are'} not used"
    if others := missing[1:]:
        found += f". Also missing: {_listed(others)}"
    if is_mapping and len(missing) < len(needed):
        found += ". To change only some weights, pass {**loaded.weights, ...}"
    raise WeightsError(missing[0], "an array of this name", found, file=file)


def warn_of_others(what: str, names: Sequence[str], why: str) -> None:
    """Warns of arrays in a model that are not weights of the function."""
    if names:
        text = f"{what}: {_listed(names)}. They are not weights of the function: {why}"
        warnings.warn(text, UserWarning, stacklevel=_CALLER)


_CALLER = 4  # of with_weights and weights_into: behind them, a method of Weights and a function here


def _nearest(name: str, others: Sequence[str]) -> list[str]:
    # Comparing takes time in proportion to the product of the lengths, and a file may have a million names.
    short = [other for other in others if len(other) <= _COMPARED]
    if len(name) > _COMPARED or len(short) > _COMPARED:
        return []
    return difflib.get_close_matches(name, short, n=2)


_COMPARED = 500


def _listed(names: Sequence[str]) -> str:
    return words.listed(names, lambda name: words.cut(repr(name), 80), most=8)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/") or "weights"


def _twice(name: str) -> ExportError:
    return ExportError(f"two weights would be called {name!r}: rename one of them in the pytree")
