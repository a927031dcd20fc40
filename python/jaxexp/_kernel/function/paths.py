"""The names of arguments and results in messages and pages: paths in the call, as in ``args[0]['w']``."""

from __future__ import annotations

from typing import Any

import jax


def argument_paths(in_tree: Any, weights: int = 0) -> list[str]:
    """The paths of all arguments; numbers, if classes in the tree do not give paths.

    Args:
        in_tree: the tree of the positional and keyword arguments.
        weights: how many of the first ones are weights. These get their names; the others get their paths in a call
            without weights.
    """
    found = _key_paths(in_tree)
    if found is None:
        return [f"argument {i - weights}" if i >= weights else f"weight {i}" for i in range(in_tree.num_leaves)]
    return [
        _weight_name(path) if i < weights else _argument_path(path, moved=weights > 0) for i, path in enumerate(found)
    ]


def result_paths(out_tree: Any) -> list[str]:
    """The paths of all results, in the same way."""
    found = _key_paths(out_tree)
    if found is None:
        return [f"result {i}" for i in range(out_tree.num_leaves)]
    return [f"result{jax.tree_util.keystr(path)}" for path in found]


def _key_paths(tree: Any) -> list[Any] | None:
    try:
        whole = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
        found = [path for path, _ in jax.tree_util.tree_flatten_with_path(whole)[0]]
    except Exception:  # from classes of the user, which get numbers in place of arrays
        return None
    return found if len(found) == tree.num_leaves else None


def _weight_name(path: Any) -> str:
    return jax.tree_util.keystr(path[2:], simple=True, separator="/")  # without args and the index of the first


def _argument_path(path: Any, moved: bool) -> str:
    by_keyword = path[0].idx == 1
    if moved and not by_keyword:  # the dict of weights is the first argument of the program
        return f"args[{path[1].idx - 1}]{jax.tree_util.keystr(path[2:])}"
    return f"{'kwargs' if by_keyword else 'args'}{jax.tree_util.keystr(path[1:])}"
