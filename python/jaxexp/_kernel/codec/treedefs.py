"""Tree structures as lists of nodes, in linear time."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaxexp import _jax

_LEAF = jax.tree_util.tree_structure(0)


class Node(NamedTuple):
    """A node; `type` is None for a leaf, and `data` is what JAX keeps with it: a dict's keys, or auxiliary data."""

    type: type | None
    data: Any
    arity: int


def _probe() -> bool:
    """Whether `PyTreeDef.__getstate__` lays its nodes out as this file and the native codec expect."""
    try:
        treedef: Any = jax.tree_util.tree_structure(([1, None], {"a": 2}))
        registry, nodes = treedef.__getstate__()
        expected = [
            (0, 0, None, None, 1, 1),
            (1, 0, None, None, 0, 1),
            (4, 2, None, None, 1, 3),
            (0, 0, None, None, 1, 1),
            (5, 1, ["a"], None, 1, 2),
            (2, 2, None, None, 2, 6),
        ]
        return registry is _jax.tree_registry and nodes == expected
    except Exception:
        return False


state_is_known = _probe()


_BUILTIN: dict[int, type] = {1: type(None), 2: tuple, 4: list, 5: dict}  # by kind in jaxlib's node list
_NAMEDTUPLE, _REGISTERED = 3, 6
BUILTIN = frozenset(_BUILTIN.values())


def nodes_of(treedef: Any) -> list[Node]:
    """All nodes in post-order."""
    if not state_is_known:
        return _nodes_one_by_one(treedef)
    nodes = []
    for kind, arity, data, type_, _, _ in treedef.__getstate__()[1]:
        if kind == 0:
            nodes.append(Node(None, None, 0))
        elif kind == _NAMEDTUPLE:
            nodes.append(Node(data, None, arity))
        else:
            nodes.append(Node(_BUILTIN.get(kind, type_), data, arity))
    return nodes


def _nodes_one_by_one(treedef: Any) -> list[Node]:
    children = treedef.children()
    nodes = [node for child in children for node in _nodes_one_by_one(child)]
    type_, data = treedef.node_data() or (None, None)
    return [*nodes, Node(type_, data, len(children))]


def tuple_of(children: Sequence[Any]) -> Any:
    """The structure of a tuple. Its children may come from different registries, as in traced functions."""
    return _jax.PyTreeDef.from_node_data_and_children(_jax.tree_registry, (tuple, None), children)


def replace(treedef: Any, nodetype: type, replacement: Callable[[Any, int], tuple[type, Any] | None]) -> Any:
    """A tree structure in which other nodes replace the nodes of a type. `replacement` takes auxiliary data and the
    number of children, and returns the new type and auxiliary data, or None for a node that stays. It is called once
    for data that is one object.
    """
    known: dict[tuple[int, int], Any] = {}

    def head(data: Any, arity: int) -> Any:
        """A node on its own; None if it stays."""
        key = id(data), arity
        if key not in known:
            type_and_data = replacement(data, arity)
            known[key] = None if type_and_data is None else _parent(*type_and_data, arity)
        return known[key]

    if not state_is_known:
        return _replaced_one_by_one(treedef, nodetype, head)
    registry, nodes = treedef.__getstate__()
    replaced = list(nodes)
    for i, node in enumerate(nodes):
        if node[3] is nodetype and (found := head(node[2], node[1])) is not None:
            kind, arity, data, type_, _, _ = found.__getstate__()[1][-1]
            replaced[i] = (kind, arity, data, type_, *node[4:])
    return _of_nodes(registry, replaced) if any(map(operator.is_not, replaced, nodes)) else treedef


def _replaced_one_by_one(treedef: Any, nodetype: type, head: Callable[[Any, int], Any]) -> Any:
    type_and_data = treedef.node_data()
    if type_and_data is None:
        return treedef
    children = [_replaced_one_by_one(child, nodetype, head) for child in treedef.children()]
    if type_and_data[0] is nodetype and (found := head(type_and_data[1], len(children))) is not None:
        type_and_data = found.node_data()
    return _jax.PyTreeDef.from_node_data_and_children(_jax.tree_registry, type_and_data, children)


def _parent(type_: type, data: Any, arity: int) -> Any:
    """A tree structure of a node whose children are leaves; None if this JAX cannot make it."""
    # JAX knows itself how the class was registered, and would believe a node list that is wrong about it.
    made = _jax.PyTreeDef.from_node_data_and_children(_jax.tree_registry, (type_, data), [_LEAF] * arity)
    if made.node_data()[1] is data:
        return made
    # JAX takes every namedtuple class for an unregistered one, and would forget the auxiliary data.
    if not state_is_known:
        return None
    registry, (*leaves, _) = made.__getstate__()
    return _of_nodes(registry, [*leaves, (_REGISTERED, arity, data, type_, arity, arity + 1)])


def _of_nodes(registry: Any, nodes: list[Any]) -> Any:
    made: Any = _jax.PyTreeDef.__new__(_jax.PyTreeDef)
    made.__setstate__((registry, nodes))
    return made
