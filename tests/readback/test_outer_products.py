"""Outer products that are only transposed are made in the other order, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._readback import vmap
from kit.batches import reload
from kit.corpus import arr
from kit.each import each
from kit.raising import assert_same_bits
from kit.snippets import SNIPPETS

pytestmark = pytest.mark.jax

X, Y = arr(3), arr(5, seed=1)


def outer(x: Any, y: Any) -> Any:
    return jax.lax.dot_general(x, y, (((), ()), ((), ())))


def turned(x: Any, y: Any) -> Any:
    return outer(x, y).T


def twice(product: Any, use: Callable[[Any], Any]) -> Any:
    return product.T, use(product)


def used_in_a_branch(x: Any, y: Any) -> Any:
    product = outer(x, y)
    return product.T, jax.lax.cond(x[0] > 0, lambda: jnp.sin(product), lambda: jnp.cos(product))


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "turned": turned,
    "used twice": lambda x, y: twice(outer(x, y), jnp.sum),
    "used in a branch": used_in_a_branch,
    "also returned": lambda x, y: twice(outer(x, y), lambda product: product),
    "contracted": lambda x, y: jax.lax.dot_general(x[None], y[None], (((0,), (0,)), ((), ()))).T,
    "of complex numbers": lambda x, y: turned(x.astype(complex), y.astype(complex)),
    "of a batch": lambda x, y: jax.vmap(turned)(jnp.stack([x, x]), jnp.stack([y, y])),
}


@each("name", FUNCTIONS)
def test_which_are_turned(name: str) -> None:
    exported = jaxexp.export(jax.jit(FUNCTIONS[name]))(X, Y)
    names = [equation.primitive.name for equation in exported.make_jaxpr().eqns]
    assert names.count("dot_general") == 1
    assert names.count("transpose") == (0 if name == "turned" else 1)
    found, expected = jax.jit(exported.raised())(X, Y), exported.call(X, Y)
    assert_same_bits(jax.tree.leaves(found), jax.tree.leaves(expected))


def test_precisions_follow_their_operands() -> None:
    (equation,) = SNIPPETS["outer product, transposed"].exported().make_jaxpr().eqns
    assert equation.params["precision"] == (jax.lax.Precision.HIGH, jax.lax.Precision.HIGHEST)


LAYERS = [arr(64, 64, seed=i) for i in range(3)]


@pytest.mark.parametrize("is_jitted", [False, True])
def test_gradients_of_each_element(is_jitted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the wanted cotangents are asked for, and products are not copied into another order."""

    def loss(layers: Any, x: Any) -> Any:
        for w in layers:
            x = jnp.tanh(x @ w)
        return (1 + is_jitted) * jnp.sum(x**2)

    monkeypatch.setattr(vmap, "_one", one := Mock(side_effect=vmap._one))
    exported, batch = reload(jaxexp.export(jax.jit(loss))(LAYERS, arr(64)), 1), arr(8, 64)
    live, ours = (jax.vmap(jax.grad(fun), (None, 0)) for fun in (loss, exported.call))
    for found, expected in zip((jax.jit(ours) if is_jitted else ours)(LAYERS, batch), live(LAYERS, batch), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    asked = [call.args[0].results for call in one.call_args_list]
    assert asked == ([(0, 1, 2)] if is_jitted else [(0,), (0, 1, 2)])  # without jit, the value is computed too
    assert "transpose" not in jax.jit(ours).lower(LAYERS, batch).as_text()
