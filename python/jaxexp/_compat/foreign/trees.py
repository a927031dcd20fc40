"""How the arguments and results of a module stand in a call: by names that the module has, or as the caller says."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxexp._errors import ExportError

# JAX's names: of arguments, as in params['w'][0], and of results, as in result['loss'].
_STEP = r"\[(\d{1,9}|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]"
_ARGUMENT = re.compile(rf"([A-Za-z_]\w*)((?:{_STEP}){{0,64}})")
_RESULT = re.compile(rf"(?:result)?((?:{_STEP}){{0,64}})")


class Tree(NamedTuple):
    """A tree, and for each leaf the index of the module's argument or result.

    Attributes:
        tree: the tree of the call.
        order: the indices.
    """

    tree: Any
    order: tuple[int, ...]

    @property
    def is_flat(self) -> bool:
        """Whether the order of the leaves is that of the module."""
        return self.order == tuple(range(len(self.order)))


def of_arguments(names: Sequence[str | None], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Tree:
    """The tree of the arguments.

    Args:
        names: the names that the module has for them.
        args, kwargs: what the caller passes in a call, with indices in the place of arrays; None for both if the
            module decides.

    Raises:
        ExportError: an index is not one of an argument, or not all of them are there once.
    """
    if args is None and kwargs is None:
        return Tree(jax.tree_util.tree_structure((_named_arguments(names), {})), tuple(range(len(names))))
    found = _given(((*(args or ()),), dict(kwargs or {})), len(names), "args and kwargs", "argument")
    if missing := sorted({*range(len(names))} - {*found.order}):
        raise ExportError(f"args and kwargs have to name each argument of the module; {_list(missing)} is missing")
    return found


def of_results(names: Sequence[str | None], results: Any) -> Tree:
    """The tree of the results. `results` may leave some of them out."""
    if results is None:
        return Tree(jax.tree_util.tree_structure(_named_results(names)), tuple(range(len(names))))
    return _given(results, len(names), "results", "result")


def _given(tree: Any, count: int, option: str, what: str) -> Tree:
    leaves, structure = jax.tree_util.tree_flatten(tree)
    if wrong := [leaf for leaf in leaves if type(leaf) is not int or not 0 <= leaf < count]:
        raise ExportError(
            f"{option}: the leaves have to be the indices of the module's {what}s, 0 to {count - 1}, not {wrong[0]!r}"
            if count
            else f"{option}: the module has no {what}s, not {len(leaves)}"
        )
    if twice := sorted({leaf for leaf in leaves if leaves.count(leaf) > 1}):
        raise ExportError(f"{option}: the {what} {_list(twice)} is there more than once")
    return Tree(structure, tuple(leaves))


def _list(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))


def _named_arguments(names: Sequence[str | None]) -> tuple[Any, ...]:
    """The arguments as JAX's names say; one after the other if these do not say it."""
    matches = [_ARGUMENT.fullmatch(name or "") for name in names]
    found = _nested([(match[1], *_steps(match[2])) for match in matches if match is not None])
    top = tuple(found.values()) if isinstance(found, dict) else None
    return top if top is not None and _is_in_order(top, len(names)) else tuple(range(len(names)))


def _named_results(names: Sequence[str | None]) -> Any:
    flat: Any = tuple(range(len(names))) if len(names) != 1 else 0
    matches = [None if name is None else _RESULT.fullmatch(name) for name in names]
    found = _nested([_steps(match[1]) for match in matches if match is not None])
    return found if found is not None and _is_in_order(found, len(names)) else flat


def _steps(text: str) -> tuple[str | int, ...]:
    try:
        return tuple(ast.literal_eval(step) for step in re.findall(_STEP, text))
    except (SyntaxError, ValueError):  # escapes that are none
        return (text,)


def _nested(paths: Sequence[tuple[str | int, ...]]) -> Any | None:
    """The tree with leaf i at paths[i], of dicts and tuples; None if there is none."""
    root: dict[Any, Any] = {}
    for leaf, path in enumerate(paths):
        node = root
        for step in (None, *path[:-1]) if path else ():
            node = node.setdefault(step, {})
            if not isinstance(node, dict):
                return None
        last = path[-1] if path else None
        if last in node:
            return None
        node[last] = leaf
    return _as_tree(root.get(None))


def _as_tree(node: Any) -> Any | None:
    if not isinstance(node, dict):
        return node
    children = {key: _as_tree(child) for key, child in node.items()}
    if None in children.values():
        return None
    if all(isinstance(key, str) for key in children):
        return children
    return tuple(children[i] for i in range(len(children))) if {*children} == {*range(len(children))} else None


def _is_in_order(tree: Any, count: int) -> bool:
    return jax.tree_util.tree_leaves(tree) == list(range(count))
