"""Constants that become arguments: the jaxpr computes the same, and has none of them left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

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
    "closure": lambda x: x @ W + V,
    "jit": outer,
    "twice": lambda x: inner(inner(x)) @ W,
    "scan": scan,
    "map": lambda x: jax.lax.map(lambda row: inner(row[None])[0] @ W, x),
    "while": loop,
    "fori": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: inner(c), x),
    "cond": lambda x: jax.lax.cond(x.sum() > 0, inner, lambda y: y @ V, x),
    "switch": switch,
    "checkpoint": jax.checkpoint(lambda x: inner(x) + x @ V),
    "checkpoint with a policy": jax.checkpoint(outer, policy=jax.checkpoint_policies.dots_saveable),
    "checkpoint of parts": lambda x: jax.checkpoint(lambda a, b: inner(a) + b, prevent_cse=(True, False))(x, x),
    "custom_jvp": with_jvp,
    "custom_vjp": with_vjp,
    "custom_vjp with a constant": closing_over,
    "custom_vjp with a constant that was computed": lambda x: custom_in_a_loop(x),
    "shard_map": shard_map,
    "vmap": jax.vmap(lambda row: inner(row[None])[0]),
    "grad": jax.grad(lambda x: outer(x).sum()),
    "a constant as a result": lambda x: (x, W),
    "nested": lambda x: jax.lax.scan(
        lambda c, _: (jax.lax.cond(c.sum() > 0, lambda y: scan(y)[0], lambda y: y, c), None), x, length=2
    ),
}


def found(jaxpr: Any) -> list[Any]:
    """The constants W and V in a jaxpr."""
    same = [c.value for c in lifting.constants(jaxpr) if np.shape(c.value) == (16, 16)]
    assert all(any(np.array_equal(value, known) for known in (W, V)) for value in same)
    return same


def positions_of(constants: list[Any]) -> tuple[dict[int, int], list[Any]]:
    """W and V in the order in which they are met."""
    arguments: list[Any] = []
    positions = {}
    for value in constants:
        place = next((i for i, known in enumerate(arguments) if np.array_equal(known, value)), len(arguments))
        arguments += [value] if place == len(arguments) else []
        positions[id(value)] = place
    return positions, arguments


def total(tree: Any) -> Any:
    return sum(leaf.sum() for leaf in jax.tree.leaves(tree))


def same(ours: Any, theirs: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), ours, theirs)


@pytest.mark.wide(one_in=7, promise="a function computes the same, and has the same gradients, without its constants")
@pytest.mark.parametrize("name", CASES)
def test_the_same_without_constants(name: str) -> None:
    """JAX can make literals of constants, too."""
    for simplified in (True, False):
        with _jax.config.use_simplified_jaxpr_constants(simplified):
            jax.clear_caches()
            jaxpr = jax.jit(CASES[name]).trace(X).jaxpr
            positions, arguments = positions_of(found(jaxpr))
            assert arguments
            assert all(c.is_liftable for c in lifting.constants(jaxpr))
            lifted, in_rules = lifting.lifted(jaxpr, positions, len(arguments))
            assert not found(lifted)
            assert len(lifted.invars) == len(arguments) + 1
            with jax.enable_checks(True):
                assert lifted.in_avals[-1] == jaxpr.in_avals[-1]
                function = jax.jit(_jax.jaxpr_as_fun(lifted))
                same(function(*arguments, X), jax.tree.leaves(jax.jit(CASES[name])(X)))
                assert 'dense<"0x' not in function.lower(*arguments, X).as_text()
    jax.clear_caches()
    if name in ("while", "switch"):  # JAX has no derivative of one, and that of a switch by a sum says little
        return
    # By the argument, and by the constants as if they had always been arguments.
    fun, places = _jax.jaxpr_as_fun(lifted), tuple(range(len(arguments) + 1))
    *by_arguments, by_x = jax.jit(jax.grad(lambda *a: total(fun(*a)), places))(*arguments, X)
    same(by_x, jax.jit(jax.grad(lambda x: total(jax.jit(CASES[name])(x))))(X))
    assert in_rules == (set(places[:-1]) if "custom" in name else set())
    if "custom" in name:
        same(by_arguments, [np.zeros((16, 16))] * len(arguments))
    if name == "scan":

        def by_hand(w: Any, v: Any, x: Any) -> Any:
            inner = lambda y: jnp.tanh(y @ w)  # noqa: E731
            return jax.lax.scan(lambda c, row: (inner(c) @ w + row, (inner(c) + inner(c @ v)) * row), x, x)

        expected = jax.grad(lambda *a: total(by_hand(*a)), (0, 1))(W, jnp.asarray(V), X)
        same(tuple(by_arguments), expected if np.array_equal(arguments[0], W) else expected[::-1])


def test_functions_that_were_one_stay_one() -> None:
    """A layer that is called many times is one function of the module."""
    jaxpr = jax.jit(lambda x: inner(inner(inner(x)))).trace(X).jaxpr
    lifted, _ = lifting.lifted(jaxpr, positions_of(found(jaxpr))[0], 1)
    assert len({id(equation.params["jaxpr"]) for equation in lifted.eqns}) == 1
    text = jax.jit(_jax.jaxpr_as_fun(lifted)).lower(W, X).as_text()
    assert text.count("func.func private @inner") == 1


def test_what_uses_no_constant_stays_as_it_is() -> None:
    """Whether it gets a weight or something else: one function of the module, not two."""
    plain = jax.jit(jnp.tanh)
    jaxpr = jax.jit(lambda x: plain(x) + plain(W)).trace(X).jaxpr
    lifted, _ = lifting.lifted(jaxpr, positions_of(found(jaxpr))[0], 1)
    before, after = ([e.params["jaxpr"] for e in j.eqns if "jaxpr" in e.params] for j in (jaxpr, lifted))
    assert list(map(id, after)) == list(map(id, before))
    assert after[0] is after[1]


def test_what_is_not_known_here_stays() -> None:
    def solve(x: Any) -> Any:
        matvec = jax.jit(lambda y: inner(y) + 3 * y)
        return jax.lax.custom_linear_solve(matvec, x, lambda mv, b: b - mv(b) / 8, symmetric=True) + V

    jaxpr = jax.jit(solve).trace(X).jaxpr
    liftable = {c.is_liftable: c.value for c in lifting.constants(jaxpr)}
    assert liftable[False] is W
    lifted, _ = lifting.lifted(jaxpr, {id(liftable[True]): 0}, 1)
    assert all(value is W for value in found(lifted))
    same(_jax.jaxpr_as_fun(lifted)(V, X), jax.tree.leaves(jax.jit(solve)(X)))


def test_an_argument_in_the_place_of_a_constant() -> None:
    """As in the rules of a function that closes over what is already an argument of the whole."""
    jaxpr = jax.jit(lambda w, v, x: outer(x) @ w + W).trace(W, V, X).jaxpr
    positions = {id(value): 0 if np.array_equal(value, W) else 1 for value in found(jaxpr)}
    without = lifting.with_existing(jaxpr, positions)
    assert not found(without)
    assert without.in_avals == jaxpr.in_avals
    function = _jax.jaxpr_as_fun(without)
    same(function(W, V, X), [outer(X) @ W + W])
    same(function(2 * W, V, X), [jnp.tanh(X @ (2 * W)) @ (2 * W) + jnp.tanh(X @ V @ (2 * W)) @ (2 * W) + 2 * W])
    assert lifting.with_existing(jaxpr, {}) is jaxpr


def test_names_of_arguments_stay() -> None:
    jaxpr = jax.jit(lambda first, second: first @ W + second).trace(X, X).jaxpr
    lifted, _ = lifting.lifted(jaxpr, positions_of(found(jaxpr))[0], 1)
    assert lifted.debug_info.arg_names == ("", "first", "second")
