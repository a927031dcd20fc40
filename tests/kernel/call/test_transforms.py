"""Loaded functions under JAX's derivatives and control flow: the live function's values, no order more than needed.

Batching has its own file, test_batching.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax import lax
from jax._src import core
from jax._src.interpreters.partial_eval import dce_jaxpr

import jaxexp
from jaxexp._kernel.call.primitive import call_exported_p, pushforward_p
from jaxexp._readback.vmap.mapped import mapped_p
from kit.compare import assert_same_values
from kit.corpus import arr, f32, spec
from kit.transforms import COMPOSITIONS, VECTOR, V, X, loaded, total, wave

pytestmark = pytest.mark.sampled(one_in=3, reason="many cases go the same way")


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_composition(name: str, how: str) -> None:
    order, compose = COMPOSITIONS[name]
    call = loaded(wave, VECTOR, vjp_order=order).call
    found, expected = (jax.jit(compose(f)) if how == "jit" else compose(f) for f in (call, wave))
    assert_same_values(found(X), expected(X), rtol=1e-4)


@pytest.mark.parametrize("name", ["hessian", "jvp", "grad", "third by reverse"])
def test_composition_written_by_jax_export(name: str) -> None:
    order, compose = COMPOSITIONS[name]
    call = loaded(wave, VECTOR, vjp_order=order, by="jax").call
    assert_same_values(compose(call)(X), compose(wave)(X), rtol=1e-4)


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_one_order_fewer(name: str, how: str) -> None:
    """One error, which names the user's function, the order that is there, and the order that it takes."""
    order, compose = COMPOSITIONS[name]
    differentiate = compose(loaded(wave, VECTOR, vjp_order=order - 1).call)
    with pytest.raises(jaxexp.ExportError) as error:
        (jax.jit(differentiate) if how == "jit" else differentiate)(X)
    message = str(error.value)
    assert "wave" in message
    assert "fun_vjp_jax" not in message
    assert f"serialized with vjp_order={order - 1}" in message
    assert f"vjp_order={order} or more" in message


def test_forward_mode_of_a_function_without_any_vjp() -> None:
    with pytest.raises(jaxexp.ExportError, match=r"wave needs its VJPs up to order 2.*vjp_order=0.*vjp_order=2"):
        jax.jvp(loaded(wave, VECTOR, vjp_order=0).call, (X,), (V,))


# --- vjp() and serialize() say the same -----------------------------------------------------------------------------


def routes() -> dict[str, jaxexp.Exported]:
    """One function with one VJP, got in every way."""
    one = loaded(wave, VECTOR, vjp_order=1)
    return {
        "loaded": one,
        "from jax": jaxexp.Exported.from_jax(jax_export.deserialize(bytearray(one.serialize(1)))),
        "there and back": jaxexp.Exported.from_jax(one.to_jax()),
    }


@pytest.mark.parametrize("route", ["loaded", "from jax", "there and back"])
def test_missing_vjp_names_the_function(route: str) -> None:
    one = routes()[route]
    with pytest.raises(
        jaxexp.ExportError,
        match=r"^wave has no VJP of order 2: .* vjp_order=1\. .* from its code, .*vjp_order=2 or more",
    ):
        one.vjp().vjp()
    with pytest.raises(jaxexp.ExportError, match=r"^wave cannot .* vjp_order=3: .* order 1\. .*vjp_order=3 or more"):
        one.serialize(vjp_order=3)
    with pytest.raises(jaxexp.ExportError, match=r"^the VJP of order 1 of wave cannot .* vjp_order=2: .*vjp_order=3"):
        one.vjp().serialize(vjp_order=2)
    with pytest.raises(jaxexp.ExportError, match=r"^wave has no VJP of order 1: .* vjp_order=0"):
        loaded(wave, VECTOR, vjp_order=0).vjp()


def test_vjp_of_a_fresh_export_names_the_function() -> None:
    fresh = jaxexp.export(jax.jit(wave))(VECTOR)
    with pytest.raises(jaxexp.ExportError, match=r"^the VJP of order 2 of wave cannot .* vjp_order=None"):
        fresh.vjp().vjp().serialize(vjp_order=None)


@pytest.mark.parametrize("wrong", ["1", None, [1], 1j, math.inf, math.nan], ids=repr)
def test_vjp_order_is_no_integer(wrong: Any, tmp_path) -> None:
    one = loaded(wave, VECTOR, vjp_order=1)
    with pytest.raises(jaxexp.ExportError, match=r"wave.*vjp_order=.*number of VJPs.*int") as error:
        one.serialize(wrong)
    try:
        one.to_jax().serialize(wrong)
    except (TypeError, ValueError) as theirs:
        assert isinstance(error.value, type(theirs))
    with pytest.raises(jaxexp.ExportError, match="vjp_order"):
        one.save(tmp_path / "f", vjp_order=wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "order",
    [True, False, np.int64(1), np.True_, 1.0, 0.0, 0.5, 1.5, -1, -0.5, np.float32(1), np.array(2), jnp.int32(1)],
    ids=repr,
)
def test_vjp_order_is_any_number(order: Any, tmp_path) -> None:
    """As many VJPs as jax.export includes, which counts down to 0."""
    exported = jaxexp.export(jax.jit(wave))(VECTOR)
    theirs = jaxexp.inspect(jax.export.export(jax.jit(wave))(VECTOR).serialize(vjp_order=order)).vjp_order
    assert jaxexp.inspect(exported.serialize(order)).vjp_order == theirs
    exported.save(tmp_path / "f", vjp_order=order)
    assert jaxexp.inspect(tmp_path / "f").vjp_order == theirs


def test_origin_does_not_tell_equal_functions_apart() -> None:
    one = loaded(wave, VECTOR, vjp_order=1)
    alone = jaxexp.deserialize(one.vjp().serialize())
    assert one.vjp() == alone
    assert hash(one.vjp()) == hash(alone)


# --- inside other functions -----------------------------------------------------------------------------------------


def in_scan(f: Any) -> Any:
    return lambda x: lax.scan(lambda c, y: (f(c) * y, c.sum()), x, jnp.ones((3, 3)))


def in_cond(f: Any) -> Any:
    return lambda x: lax.cond(x[0] > 0, f, lambda x: -f(x), x)


def in_switch(f: Any) -> Any:
    return lambda x: lax.switch(jnp.int32(x[0]) + 1, [f, lambda x: f(x) * 2, lambda x: f(x) * 3], x)


def in_while(f: Any) -> Any:
    return lambda x: lax.while_loop(lambda c: c[1] < 2, lambda c: (f(c[0]) * 0.5, c[1] + 1), (x, 0))[0]


def in_fori(f: Any) -> Any:
    return lambda x: lax.fori_loop(0, 2, lambda i, c: f(c) * 0.5, x)


def in_checkpoint(f: Any) -> Any:
    return jax.checkpoint(lambda x: jnp.cos(f(jnp.sin(f(x) * 0.1))))


def in_custom_vjp(f: Any) -> Any:
    @jax.custom_vjp
    def g(x: Any) -> Any:
        return f(x)

    g.defvjp(lambda x: jax.vjp(f, x), lambda pull, ct: tuple(2 * c for c in pull(ct)))
    return lambda x: g(x) + f(x)


def in_custom_jvp(f: Any) -> Any:
    @jax.custom_jvp
    def g(x: Any) -> Any:
        return f(x)

    @g.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        y, t = jax.jvp(f, primals, tangents)
        return y, 2 * t

    return lambda x: g(x) * f(x)


def in_jit_with_a_constant(f: Any) -> Any:
    inner = jax.jit(lambda x, s: f(x) * s)
    return lambda x: inner(x, 2.0) + inner(f(x), 3.0)


INSIDE = {
    g.__name__: g
    for g in (in_scan, in_cond, in_switch, in_while, in_fori, in_checkpoint, in_custom_vjp, in_custom_jvp,
              in_jit_with_a_constant)
}  # fmt: skip


MODES = {"value": 0, "reverse": 1, "forward": 2, "reverse over reverse": 2}  # with the VJP order that each takes
# What JAX itself cannot differentiate.
IMPOSSIBLE = {("in_while", "reverse"), ("in_while", "reverse over reverse"), ("in_custom_vjp", "forward")}


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize(("inside", "mode"), [(i, m) for i in INSIDE for m in MODES if (i, m) not in IMPOSSIBLE])
def test_inside(inside: str, mode: str, how: str) -> None:
    order = MODES[mode]

    def run(f: Any) -> Any:
        g = INSIDE[inside](f)
        loss = lambda x: sum(jnp.sum(jnp.cos(leaf)) for leaf in jax.tree.leaves(g(x)))  # noqa: E731
        what = {
            "value": g,
            "reverse": jax.value_and_grad(loss),
            "forward": lambda x: jax.jvp(g, (x,), (V,)),
            "reverse over reverse": jax.grad(lambda x: jnp.vdot(jax.grad(loss)(x), V)),
        }[mode]
        return (jax.jit(what) if how == "jit" else what)(X)

    assert_same_values(run(loaded(wave, VECTOR, vjp_order=order).call), run(wave), rtol=1e-3)


def test_linear_transpose_is_refused() -> None:
    """Nothing in an artifact says that its function is linear; VJPs do the same."""
    matrix = arr(2, 3)
    linear = loaded(lambda x: matrix @ x, VECTOR, vjp_order=1).call
    with pytest.raises(jaxexp.ExportError, match=r"linear_transpose.*jax\.vjp") as error:
        jax.linear_transpose(linear, X)(arr(2))
    assert isinstance(error.value, NotImplementedError)
    np.testing.assert_allclose(jax.vjp(linear, X)[1](arr(2))[0], matrix.T @ arr(2), rtol=1e-5)


# --- no more work than needed ---------------------------------------------------------------------------------------


def calls(fun: Callable[..., Any], *args: Any) -> list[tuple[Any, ...]]:
    """The calls of exported functions that `jax.jit` would compile: the function's name, what a pushforward moves."""
    traced = jax.make_jaxpr(fun)(*args)
    found: list[tuple[Any, ...]] = []

    def walk(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            if eqn.primitive in (call_exported_p, pushforward_p):
                found.append((eqn.params["exported"].fun_name, *[eqn.params[k] for k in ("wrt",) if k in eqn.params]))
            elif eqn.primitive is mapped_p:
                element = eqn.params["element"]
                found.append((element.exported.fun_name, *([] if element.wrt is None else [element.wrt])))
            for inner in core.jaxprs_in_params(eqn.params):
                walk(inner)

    walk(dce_jaxpr(traced.jaxpr, [True] * len(traced.out_avals))[0])
    return sorted(found)


def compiled_calls(fun: Callable[..., Any], *args: Any) -> int:
    return len(re.findall(r"call @call_exported_", jax.jit(fun).lower(*args).as_text()))


def product(x: Any, y: Any, n: Any) -> Any:
    return jnp.sin(x) * jnp.cos(y) * n, n + 1


PRODUCT = X, V, np.int32(3)


def product_call(vjp_order: int) -> Callable[..., Any]:
    return loaded(product, VECTOR, VECTOR, spec((), np.int32), vjp_order=vjp_order).call


def test_gradient_calls_the_vjp_alone() -> None:
    f = loaded(wave, VECTOR, vjp_order=1).call
    assert calls(jax.grad(lambda x: f(x).sum()), X) == [("fun_vjp_jax",)]
    assert calls(jax.value_and_grad(lambda x: f(x).sum()), X) == [("fun_vjp_jax",), ("wave",)]
    assert calls(lambda x: jax.vjp(f, x)[1](V), X) == [("fun_vjp_jax",)]
    assert calls(f, X) == [("wave",)]


def test_gradient_calls_only_what_it_differentiates() -> None:
    f = product_call(1)
    assert calls(jax.grad(lambda x: f(x, V, 3)[0].sum()), X) == [("fun_vjp_jax",)]
    assert calls(jax.grad(lambda x: 1.0 * f(X, V, 3)[0].sum() * x), f32(1)) == [("product",)]
    assert calls(jax.grad(lambda x: f(x, V, 3)[1].sum().astype(f32)), X) == []


def test_forward_mode_calls_the_function_and_its_pushforward() -> None:
    f = product_call(2)
    everything = lambda x, y: jax.jvp(lambda x, y: f(x, y, 3)[0], (x, y), (x, y))  # noqa: E731
    assert calls(everything, X, V) == [("product",), ("product", (0, 1))]
    assert compiled_calls(everything, X, V) == 2
    pushed = lambda x, y: jax.jvp(lambda x: f(x, y, 3)[0], (x,), (x,))[1]  # noqa: E731
    assert calls(pushed, X, V) == [("product", (0,))]
    assert compiled_calls(pushed, X, V) == 1


def test_zero_tangents_stay_symbolic() -> None:
    """What does not move is not pushed forward, in the first derivative and in the second."""
    f = product_call(4)
    by_y = lambda y: jax.jvp(lambda y: f(X, y, 3)[0], (y,), (V,))[1]  # noqa: E731
    assert calls(by_y, V) == [("product", (1,))]
    by_x_and_y = lambda x, y: jax.jvp(lambda y: f(x, y, 3)[0], (y,), (V,))[1]  # noqa: E731
    only_x = lambda x: jax.jvp(lambda x: by_x_and_y(x, V), (x,), (V,))[1]  # noqa: E731
    assert calls(only_x, X) == [("fun_vjp_jax", (0,))]
    assert_same_values(
        only_x(X), jax.jvp(lambda x: jax.jvp(lambda y: product(x, y, 3)[0], (V,), (V,))[1], (X,), (V,))[1]
    )
    direction = lambda v: jax.jvp(lambda x: f(x, V, 3)[0], (X,), (v,))[1]  # noqa: E731
    assert calls(lambda v: jax.jvp(direction, (v,), (v,))[1], V) == [("product", (0,))]
    # An integer result does not move either.
    assert calls(lambda x: jax.jvp(lambda x: f(x, V, 3)[1] + 1, (x,), (V,))[0], X) == [("product",)]


def test_no_pushforward_is_left_in_reverse_mode() -> None:
    f = loaded(wave, VECTOR, vjp_order=3).call
    for fun in (jax.jacrev(f), jax.grad(total(f)), jax.grad(lambda x: jnp.vdot(jax.grad(total(f))(x), V))):
        assert calls(fun, X)
        assert all(len(call) == 1 for call in calls(fun, X))


def test_calls_are_compiled_once() -> None:
    """Several calls of a function share one copy of it, derivatives too."""
    f = loaded(wave, VECTOR, vjp_order=1).call
    text = jax.jit(jax.grad(lambda x: (f(x) + f(2 * x) + f(3 * x)).sum())).lower(X).as_text()
    assert len(re.findall(r"func\.func private @call_exported_fun_vjp_jax", text)) == 1
    assert len(re.findall(r"call @call_exported_fun_vjp_jax", text)) == 3
