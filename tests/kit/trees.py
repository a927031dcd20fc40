"""Trees as people build them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from kit.compare import assert_same_values
from kit.corpus import arr
from kit.derivatives import pull_back


def squares(tree: Any) -> Any:
    """Every leaf to one of its own shape; the n-th one weighs n."""
    leaves, structure = jax.tree.flatten(tree)
    return structure.unflatten([n * x * x + jnp.sin(x) for n, x in enumerate(leaves, 1)])


def check(value: Any, writer: Any, reader: Any, vjp_order: int = 0) -> Any:
    """`squares` through bytes and back: its trees, its results, and its derivatives. Returns what was loaded."""

    def fresh(tree: Any) -> Any:
        """JAX 0.10.2 now and then takes one dataclass for another of the same name in what it remembers of `fun`."""
        return squares(tree)

    exported = writer.export(jax.jit(fresh))(value)
    loaded = reader.deserialize(exported.serialize(vjp_order=vjp_order))
    assert type(loaded) is reader.Exported
    assert loaded.in_tree == exported.in_tree == jax.tree.structure(((value,), {}))
    assert loaded.out_tree == exported.out_tree
    result = loaded.call(value)
    assert type(result) is type(squares(value))
    assert_same_values(result, squares(value))
    if vjp_order:
        assert loaded.vjp().in_tree == exported.vjp().in_tree
        assert_same_values(jax.jit(loaded.call)(value), squares(value))
        assert_same_values(pull_back(loaded.call, (value,), {}), pull_back(squares, (value,), {}))
    return loaded


def of(*keys: Any) -> dict[Any, Any]:
    return {key: arr(2, seed=n) for n, key in enumerate(keys)}
