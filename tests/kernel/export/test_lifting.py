"""Constants that become arguments: which of them, by what names; the jaxpr computes the same, and has none left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp import _jax
from jaxexp._weights.bound import lifting

pytestmark = pytest.mark.jax

W = jnp.asarray(np.random.default_rng(0).standard_normal((16, 16)), jnp.float32) / 4
V = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32) / 4
X = np.random.default_rng(2).standard_normal((16, 16)).astype(np.float32)


@jax.jit
def inner(x: Any) -> Any:
    return jnp.tanh(x @ W)


@jax.jit
def outer(x: Any) -> Any:
    return inner(x) + inner(x @ V)


@jax.custom_jvp
def with_jvp(x: Any) -> Any:
    return inner(x)


with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), 2 * tangents[0] @ W))


@jax.custom_vjp
def with_vjp(x: Any) -> Any:
    return inner(x)


with_vjp.defvjp(lambda x: (with_vjp(x), x), lambda x, cotangent: (2 * cotangent @ W.T + x,))


@jax.custom_vjp
def closing_over(x: Any) -> Any:
    return jnp.tanh(x @ W)


closing_over.defvjp(lambda x: (closing_over(x), x), lambda x, cotangent: (2 * cotangent @ W.T + x,))


def custom_in_a_loop(x: Any) -> Any:
    """W goes into the loop as a constant of the scan, which is one of the rule inside."""

    @jax.custom_vjp
    def both(y: Any) -> Any:
        return closing_over(y @ (W + V))

    both.defvjp(lambda y: (both(y), None), lambda _, cotangent: (cotangent @ W.T,))
    step = jax.jit(lambda c: jax.lax.cond(c.sum() > 0, both, closing_over, c))
    return jax.lax.scan(lambda c, _: (step(c), None), x, length=2)[0]


def loop(x: Any) -> Any:
    return jax.lax.while_loop(
        lambda c: (outer(c[1]).sum() < 1e9) & (c[0] < 3), lambda c: (c[0] + 1, inner(c[1])), (0, x)
    )


def scan(x: Any) -> Any:
    return jax.lax.scan(lambda c, row: (inner(c) @ W + row, outer(c) * row), x, x)


def switch(x: Any) -> Any:
    branches = [inner, lambda y: y @ V, lambda y: outer(y) + W, lambda y: y]
    return jax.lax.switch(jnp.int32(x.sum()) % 4, branches, x)


def shard_map(x: Any) -> Any:
    mesh = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Auto,))
    body = jax.shard_map(
        lambda s: jax.lax.cond(len(s) > 1, outer, inner, s), mesh=mesh, in_specs=P("d"), out_specs=P("d")
    )
    return body(x) @ W


CASES: dict[str, Callable[[Any], Any]] = {
    "scan": scan,
    "while": loop,
    "cond": lambda x: jax.lax.cond(x.sum() > 0, inner, lambda y: y @ V, x),
    "switch": switch,
    "checkpoint with a policy": jax.checkpoint(outer, policy=jax.checkpoint_policies.dots_saveable),
    "checkpoint of parts": lambda x: jax.checkpoint(lambda a, b: inner(a) + b, prevent_cse=(True, False))(x, x),
    "custom_jvp": with_jvp,
    "custom_vjp with a constant": closing_over,
    "custom_vjp": with_vjp,
    "custom_vjp with a constant that was computed": lambda x: custom_in_a_loop(x),
    "shard_map": shard_map,
    "grad": jax.grad(lambda x: outer(x).sum()),
    "a constant as a result": lambda x: (x, W),
    "nested": lambda x: jax.lax.scan(
        lambda c, _: (jax.lax.cond(c.sum() > 0, lambda y: scan(y)[0], lambda y: y, c), None), x, length=2
    ),
}


def total(tree: Any) -> Any:
    return sum(leaf.sum() for leaf in jax.tree.leaves(tree))


def same(ours: Any, theirs: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), ours, theirs)


@pytest.mark.wide(one_in=8, promise="a function computes the same, and has the same gradients, without its constants")
@pytest.mark.parametrize("name", CASES)
def test_the_same_without_constants(name: str) -> None:
    """JAX can make literals of constants, too."""
    live = jax.jit(CASES[name])
    for simplified in (True, False):
        with _jax.config.use_simplified_jaxpr_constants(simplified), jax.enable_checks(True):
            jax.clear_caches()
            rules = pytest.warns(UserWarning, match="derivative rules of their own, which close over them: (v; )?w")
            with rules if "custom" in name else contextlib.nullcontext():
                model = jaxexp.export(live, weights={"w": W, "v": V})(X)
            assert model.weights
            x = X
            if name == "shard_map":
                model = model.with_mesh(model.make_mesh())
                x = jax.device_put(X, NamedSharding(model.make_mesh(), P()))
            assert 'dense<"0x' not in model.mlir_module()
            same(jax.tree.leaves(model.call(x)), jax.tree.leaves(live(x)))
    jax.clear_caches()
    if name in ("while", "switch"):  # JAX has no derivative of one, and that of a switch by a sum says little
        return
    found, expected = (jax.jit(jax.grad(lambda x, f=f: total(f(x))))(x) for f in (model.call, live))
    same(found, expected)
    by_weights = jax.jit(jax.grad(lambda weights: total(model.unbound.call(weights, x))))(dict(model.weights))
    if "custom" in name:
        same(by_weights, dict.fromkeys(model.weights, np.zeros((16, 16))))
    if name == "scan":

        def by_hand(weights: Any) -> Any:
            w, v = weights["w"], weights["v"]
            inner = lambda y: jnp.tanh(y @ w)  # noqa: E731
            return jax.lax.scan(lambda c, row: (inner(c) @ w + row, (inner(c) + inner(c @ v)) * row), X, X)

        same(by_weights, jax.grad(lambda weights: total(by_hand(weights)))({"v": jnp.asarray(V), "w": W}))


def test_functions_that_were_one_stay_one() -> None:
    """A layer that is called many times is one function of the module, also one that uses no weight."""
    plain = jax.jit(jnp.tanh)

    def function(first: Any) -> Any:
        return inner(inner(inner(first))) + plain(first) + plain(W)

    text = jaxexp.export(jax.jit(function), weights={"w": W})(X).mlir_module()
    assert text.count("func.func private @inner") == text.count("func.func private @tanh") == 1
    assert 'loc("first")' in text, "names of arguments stay"


def test_an_argument_in_the_place_of_a_constant() -> None:
    """As in the rules of a function that closes over what is already an argument of the whole."""
    jaxpr = jax.jit(lambda w, v, x: outer(x) @ w + W).trace(W, V, X).jaxpr
    constants = [value for value, _ in lifting.constants(jaxpr) if np.shape(value) == (16, 16)]
    without = lifting.with_existing(jaxpr, {id(value): 0 if np.array_equal(value, W) else 1 for value in constants})
    assert without.in_avals == jaxpr.in_avals
    function = _jax.jaxpr_as_fun(without)
    same(function(W, V, X), [outer(X) @ W + W])
    same(function(2 * W, V, X), [jnp.tanh(X @ (2 * W)) @ (2 * W) + jnp.tanh(X @ V @ (2 * W)) @ (2 * W) + 2 * W])
    assert lifting.with_existing(jaxpr, {}) is jaxpr


RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((4, 32)).astype(np.float32)


def array(*shape: int) -> Any:
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


def with_weights(function: Any, named: Any) -> Any:
    return jaxexp.export(jax.jit(function), weights=named)(ROWS)


def test_names_are_paths() -> None:
    params = {"layers": [{"w": array(32, 32)} for _ in range(2)], "head": (array(32, 8),), "unused": array(3)}
    first, second = (layer["w"] for layer in params["layers"])
    model = with_weights(lambda x: jnp.tanh(x @ first) @ second @ params["head"][0], params)
    assert list(model.weights) == ["head/0", "layers/0/w", "layers/1/w"]
    w = array(32, 32)
    for named, name in ((w, "weights"), ({"embed": w, "head": w}, "embed")):  # one array at two places is one weight
        assert list(with_weights(lambda x: x @ w @ w.T, named).weights) == [name]


def test_numpy_arrays() -> None:
    """Found by their memory; those that JAX converts, by their content."""
    wide = np.ones((32, 64), np.float32)
    params = {"a": np.ones((32, 32), np.float32), "b": RNG.standard_normal((32, 32)), "view": wide[:, ::2]}
    function = lambda x: x @ params["a"] @ jnp.asarray(params["b"]) @ params["view"]  # noqa: E731
    model = with_weights(function, params)
    assert list(model.weights) == ["a", "b", "view"]
    np.testing.assert_allclose(model.call(ROWS), jax.jit(function)(ROWS), rtol=1e-4)


def test_arrays_that_cannot_be_told_apart_stay() -> None:
    """Biases of zeros, copied by JAX: it is not known which one is which, and a swap would mix them up."""
    params = {"w": array(32, 32), "b0": np.zeros(1 << 18), "b1": np.zeros(1 << 18)}
    with pytest.warns(UserWarning, match=r"stay in its module: one \(float32\[262144\], 1,048,576 bytes\)"):
        model = with_weights(lambda x: (x @ params["w"]).sum() + params["b0"], params)
    assert list(model.weights) == ["w"]


def test_shardings_layouts_and_donation_stay() -> None:
    mesh = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Auto,))
    w = jax.device_put(array(32, 32), NamedSharding(mesh, P(None, "d")))
    rows = NamedSharding(mesh, P())
    function = jax.jit(lambda x, y: (x @ w, y + 1), in_shardings=rows, out_shardings=(rows, rows), donate_argnums=1)
    before = function.trace(ROWS, ROWS)
    taking = lifting.Taking(lifting.Named({"w": w}))
    lowered = taking.rewritten(before).lower()
    shardings = lowered.compile().input_shardings[0]
    assert shardings[0]["w"].is_equivalent_to(w.sharding, 2)
    assert shardings[1].is_equivalent_to(rows, 2)
    assert [info.donated for info in jax.tree.leaves(lowered.args_info)] == [False, False, True]
    assert before.lower().args_info is not None  # which is as it was
    np.testing.assert_allclose(
        lowered.compile()(taking.weights, ROWS, jnp.array(ROWS))[0], ROWS @ w, rtol=1e-4, atol=1e-5
    )


def test_what_stays_is_said_once() -> None:
    w, other = array(32, 32), array(512, 512)

    @jax.custom_jvp
    def rule(x: Any) -> Any:
        return x @ w

    rule.defjvp(lambda p, t: (rule(*p), t[0]))

    def solve(x: Any) -> Any:
        matvec = jax.jit(lambda y: 3 * y + (y @ other) / 100)
        return jax.lax.custom_linear_solve(matvec, x, lambda mv, b: b / 3, symmetric=True)

    def function(x: Any) -> Any:
        return rule(x).sum() + solve(jnp.ones((4, 512)))

    with pytest.warns(UserWarning) as record:
        model = with_weights(function, {"w": w, "other": other})
    same(model.call(ROWS), jax.jit(function)(ROWS))
    (warning,) = record
    text = str(warning.message)
    assert "these arrays stay in its module: other (float32[512,512], 1,048,576 bytes)" in text
    assert "rules of their own, which close over them: w." in text
