"""Functions with weights, and what they compute without jaxexp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxexp

SIZE = 32
X = np.random.default_rng(1).standard_normal((4, SIZE)).astype(np.float32)

Params = dict[str, Any]


def params(layers: int = 3, seed: int = 0) -> Params:
    """The parameters of `apply`; with more than ten layers, the order of their names is not that of the tree."""
    random = np.random.default_rng(seed)

    def array(*shape: int) -> jax.Array:
        return jnp.asarray(random.standard_normal(shape) / np.sqrt(SIZE), jnp.float32)

    return {"layers": [{"w": array(SIZE, SIZE), "b": array(SIZE)} for _ in range(layers)], "head": array(SIZE, 8)}


def apply(params: Params, x: Any) -> Any:
    for layer in params["layers"]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params["head"]


def closed(params: Params) -> Callable[[Any], Any]:
    """The function of `x`, which closes over the parameters."""
    return lambda x: apply(params, x)


def bound(layers: int = 3) -> tuple[jaxexp.BoundExported, Params]:
    """A function that was exported with its parameters as weights."""
    given = params(layers)
    exported = jaxexp.export(jax.jit(closed(given)), weights=given)(X)
    assert isinstance(exported, jaxexp.BoundExported)
    return exported, given


def squared(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: (call(*args) ** 2).sum()


def close(result: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), result, expected)


def named(tree: Any) -> dict[str, Any]:
    """The leaves of parameters by the names of weights."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
