"""The names of arguments and results in messages and pages: paths in the call, as in ``args[0]['w']``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._kernel.artifact.node import GenericNode

# --- tree structures that take placeholders as leaves: to name arguments, and to say how two structures differ --------
# A class may check its children when JAX makes an instance, as in `if not hasattr(x, "shape"): raise TypeError`. Then a
# stand-in takes its place, which looks the same in messages.


_CONTAINERS = tuple, list, dict, type(None), GenericNode
_LEAF = jax.tree_util.tree_structure(0)


def taking_placeholders(*treedefs: Any) -> Sequence[Any]:
    """The structures, if all of their classes take any leaves; or else with stand-ins for all classes in them."""
    if all(_keys_of(treedef, placeholder) is not None for treedef in treedefs for placeholder in (0, object())):
        return treedefs
    return tuple(map(_with_stand_ins, treedefs))


def key_paths(treedef: Any) -> Sequence[Any]:
    """The path of each leaf, as `jax.tree_util.tree_flatten_with_path` gives it."""
    found = _keys_of(treedef, 0)
    return _keys_of(_with_stand_ins(treedef), 0) or () if found is None else found


def _keys_of(treedef: Any, placeholder: Any) -> list[Any] | None:
    """The path of each leaf; None if a class refuses such leaves, or has others when it is flattened again."""
    try:
        tree = treedef.unflatten([placeholder] * treedef.num_leaves)
        found = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    except Exception:  # whatever a class of the user raises
        return None
    return found if len(found) == treedef.num_leaves else None


def _with_stand_ins(treedef: Any) -> Any:
    if (said := treedef.node_data()) is None:
        return treedef
    children = [_with_stand_ins(child) for child in treedef.children()]
    nodetype, data = said
    if nodetype not in _CONTAINERS:
        alone = _jax.PyTreeDef.from_node_data_and_children(_jax.tree_registry, said, [_LEAF] * len(children))
        paths = _keys_of(alone, 0)
        keys = map(jax.tree_util.FlattenedIndexKey, range(len(children))) if paths is None else (p[0] for p in paths)
        said = _stand_in(nodetype), _Data(data, tuple(keys))
    return _jax.PyTreeDef.from_node_data_and_children(_jax.tree_registry, said, children)


@dataclasses.dataclass(frozen=True)
class _Data:
    """The auxiliary data of a node, and the keys of its children."""

    data: Any
    keys: tuple[Any, ...] = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        return repr(self.data)


@functools.cache  # JAX keeps both classes, too
def _stand_in(nodetype: type) -> type:
    """A class of pytree nodes that messages show as `nodetype`."""
    name = {"__module__": nodetype.__module__, "__qualname__": nodetype.__qualname__}
    made: Any = type(nodetype.__name__, (), name)

    def unflatten(data: _Data, children: Any) -> Any:
        node = made()
        node.data, node.children = data, tuple(children)
        return node

    jax.tree_util.register_pytree_with_keys(
        made, lambda node: (tuple(zip(node.data.keys, node.children, strict=True)), node.data), unflatten
    )
    return made


# --- the names --------------------------------------------------------------------------------------------------------


def argument_paths(in_tree: Any, weights: int = 0) -> list[str]:
    """The paths of all arguments. The first ones may be weights: these get their names, and the others their paths in a
    call without weights.
    """
    return [
        # Without args and the index of the first.
        jax.tree_util.keystr(path[2:], simple=True, separator="/")
        if i < weights
        else _argument_path(path, moved=weights > 0)
        for i, path in enumerate(key_paths(in_tree))
    ]


def argument_path(in_tree: Any, index: int, axis: int | None = None) -> str:
    """The path of one argument, or of one of its dimensions, as in ``args[0].shape[1]``."""
    (tree,) = taking_placeholders(in_tree)
    return _jax.describe_argument(tree, index, axis)


def node_path(in_tree: Any, leaf: int, depth: int) -> str:
    """The path of a node of the arguments: the beginning of that of a leaf inside of it."""
    paths = key_paths(in_tree)
    return _argument_path(paths[leaf][:depth], moved=False) if leaf < len(paths) else "the arguments"


def result_paths(out_tree: Any) -> list[str]:
    """The paths of all results, in the same way."""
    return [f"result{jax.tree_util.keystr(path)}" for path in key_paths(out_tree)]


def _argument_path(path: Any, moved: bool) -> str:
    by_keyword = path[0].idx == 1
    if moved and not by_keyword:  # the dict of weights is the first argument of the program
        return f"args[{path[1].idx - 1}]{jax.tree_util.keystr(path[2:])}"
    return f"{'kwargs' if by_keyword else 'args'}{jax.tree_util.keystr(path[1:])}"
