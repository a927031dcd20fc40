"""Which constants become weights, and what they are called."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxexp._weights.bound.lifting import Named, with_weights

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 32)).astype(np.float32)


def array(*shape: int) -> Any:
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


def traced(function: Any, *args: Any, **options: Any) -> Any:
    return jax.jit(function, **options).trace(*(args or (X,)))


def test_names_are_paths() -> None:
    params = {
        "layers": [{"w": array(32, 32), "b": array(32)} for _ in range(2)],
        "head": (array(32, 8),),
        "unused": array(3),
    }

    def model(x: Any) -> Any:
        for layer in params["layers"]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return x @ params["head"][0]

    new, weights = with_weights(traced(model), Named(params))
    assert list(weights) == ["head/0", "layers/0/b", "layers/0/w", "layers/1/b", "layers/1/w"]
    assert all(weights[name] is params["layers"][i][k] for i in (0, 1) for k in "wb" for name in [f"layers/{i}/{k}"])
    assert new.in_tree == jax.tree.structure(((dict.fromkeys(weights, 0), 0), {}))
    lowered = new.lower()
    assert [a.shape for a in jax.tree.leaves(lowered.in_avals)] == [w.shape for w in weights.values()] + [X.shape]
    np.testing.assert_allclose(lowered.compile()(weights, X), model(X), rtol=1e-4, atol=1e-5)
    w = array(32, 32)
    for named, name in ((w, "weights"), ({"embed": w, "head": w}, "embed")):  # one array at two places is one weight
        assert list(with_weights(traced(lambda x: x @ w @ w.T), Named(named))[1]) == [name]


def test_numpy_arrays() -> None:
    """Found by their memory; those that JAX converts, by their content."""
    wide = np.ones((32, 64), np.float32)
    params = {"a": np.ones((32, 32), np.float32), "b": RNG.standard_normal((32, 32)), "view": wide[:, ::2]}
    function = lambda x: x @ params["a"] @ jnp.asarray(params["b"]) @ params["view"]  # noqa: E731
    new, weights = with_weights(traced(function), Named(params))
    assert list(weights) == ["a", "b", "view"]
    np.testing.assert_allclose(new.lower().compile()(weights, X), jax.jit(function)(X), rtol=1e-4)


def test_arrays_that_cannot_be_told_apart_stay() -> None:
    """Biases of zeros, copied by JAX: it is not known which one is which, and a swap would mix them up."""
    params = {"w": array(32, 32), "b0": np.zeros(1 << 18), "b1": np.zeros(1 << 18)}
    with pytest.warns(UserWarning, match=r"stay in its module: one \(float32\[262144\], 1,048,576 bytes\)"):
        _, weights = with_weights(traced(lambda x: (x @ params["w"]).sum() + params["b0"]), Named(params))
    assert list(weights) == ["w"]


def test_shardings_layouts_and_donation_stay() -> None:
    mesh = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Auto,))
    w = jax.device_put(array(32, 32), NamedSharding(mesh, P(None, "d")))
    rows = NamedSharding(mesh, P())
    before = traced(lambda x, y: (x @ w, y + 1), X, X, in_shardings=rows, out_shardings=(rows, rows), donate_argnums=1)
    new, weights = with_weights(before, Named({"w": w}))
    lowered = new.lower()
    shardings = lowered.compile().input_shardings[0]
    assert shardings[0]["w"].is_equivalent_to(w.sharding, 2)
    assert shardings[1].is_equivalent_to(rows, 2)
    assert [info.donated for info in jax.tree.leaves(lowered.args_info)] == [False, False, True]
    assert before.lower().args_info is not None  # which is as it was
    np.testing.assert_allclose(lowered.compile()(weights, X, jnp.array(X))[0], X @ w, rtol=1e-4, atol=1e-5)


def test_what_stays_is_said_once() -> None:
    w, other = array(32, 32), array(512, 512)

    @jax.custom_jvp
    def rule(x: Any) -> Any:
        return x @ w

    rule.defjvp(lambda p, t: (rule(*p), t[0]))

    def solve(x: Any) -> Any:
        matvec = jax.jit(lambda y: 3 * y + (y @ other) / 100)
        return jax.lax.custom_linear_solve(matvec, x, lambda mv, b: b / 3, symmetric=True)

    with pytest.warns(UserWarning) as record:
        with_weights(traced(lambda x: rule(x).sum() + solve(jnp.ones((4, 512)))), Named({"w": w, "other": other}))
    (warning,) = record
    text = str(warning.message)
    assert "these arrays stay in its module: other (float32[512,512], 1,048,576 bytes)" in text
    assert "rules of their own, which close over them: w." in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_weights(traced(lambda x: x @ w), Named({"w": w}))
