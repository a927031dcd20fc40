"""The names of arguments and results in messages and pages: paths in the call, as in ``args[0]['w']``."""

from __future__ import annotations

from typing import Any

import jax

from jaxexp import _jax

from .placeholders import key_paths, taking_placeholders


def argument_paths(in_tree: Any, weights: int = 0) -> list[str]:
    """The paths of all arguments.

    Args:
        in_tree: the tree of the positional and keyword arguments.
        weights: how many of the first ones are weights. These get their names; the others get their paths in a call
            without weights.
    """
    return [
        _weight_name(path) if i < weights else _argument_path(path, moved=weights > 0)
        for i, path in enumerate(key_paths(in_tree))
    ]


def argument_path(in_tree: Any, index: int, axis: int | None = None) -> str:
    """The path of one argument, or of one of its dimensions, as in ``args[0].shape[1]``."""
    (tree,) = taking_placeholders(in_tree)
    return _jax.describe_argument(tree, index, axis)


def result_paths(out_tree: Any) -> list[str]:
    """The paths of all results, in the same way."""
    return [f"result{jax.tree_util.keystr(path)}" for path in key_paths(out_tree)]


def _weight_name(path: Any) -> str:
    return jax.tree_util.keystr(path[2:], simple=True, separator="/")  # without args and the index of the first


def _argument_path(path: Any, moved: bool) -> str:
    by_keyword = path[0].idx == 1
    if moved and not by_keyword:  # the dict of weights is the first argument of the program
        return f"args[{path[1].idx - 1}]{jax.tree_util.keystr(path[2:])}"
    return f"{'kwargs' if by_keyword else 'args'}{jax.tree_util.keystr(path[1:])}"
