"""`GenericNode` as a pytree node of JAX."""

from __future__ import annotations

from typing import Any

import jax

from jaxexp._kernel.artifact.generic_node import GenericNode as GenericNode
from jaxexp._kernel.artifact.generic_node import generic_node as generic_node
from jaxexp._kernel.artifact.node import Description, Key

_KEYS: dict[str, Any] = {
    "attribute": jax.tree_util.GetAttrKey,
    "item": jax.tree_util.DictKey,
    "position": jax.tree_util.FlattenedIndexKey,
}


def _with_keys(node: GenericNode) -> tuple[list[tuple[Any, Any]], Description]:
    return list(zip(map(jax_key, node._description.keys), node._children, strict=True)), node._description


def jax_key(key: Key) -> Any:
    return _KEYS[key.kind](key.value)


jax.tree_util.register_pytree_with_keys(
    GenericNode, _with_keys, generic_node, lambda node: (node._children, node._description)
)
