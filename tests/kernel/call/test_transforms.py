"""Loaded functions under JAX's derivatives and control flow: the live function's values, no order more than needed.

Batching has its own file, test_batching.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax import lax
from jax._src.interpreters.partial_eval import dce_jaxpr

import jaxexp
from jaxexp._kernel.call.primitive import call_exported_p, pushforward_p
from jaxexp._readback.vmap import mapped_p
from kit.alike import LIBRARIES
from kit.batches import eager, equations
from kit.compare import assert_same_values
from kit.corpus import CASES, arr, export_with, f32, spec
from kit.derivatives import cotangents, pull_back
from kit.each import each

pytestmark = pytest.mark.jax

VECTOR = spec((3,))
X, V = arr(3), arr(3, seed=1)


@functools.cache
def serialized(fun: Any, by: str, vjp_order: int, *specs: Any) -> bytes:
    return bytes(LIBRARIES[by].export(jax.jit(fun))(*specs).serialize(vjp_order=vjp_order))


def loaded(fun: Any, *specs: Any, vjp_order: int, by: str = "jaxexp") -> jaxexp.Exported:
    return jaxexp.deserialize(serialized(fun, by, vjp_order, *specs))


def wave(x: Any) -> Any:
    return jnp.sin(x) * jnp.sum(x * x)


def total(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jnp.sum(f(*args) ** 2)


def transposed(f: Callable[..., Any]) -> Callable[[Any], Any]:
    """The transpose of what `jax.linearize` gives: reverse mode by hand."""

    def run(x: Any) -> Any:
        y, push = jax.linearize(f, x)
        return jax.linear_transpose(push, x)(y)

    return run


# Each composition, and the order that `Exported.call` says it takes: one for reverse mode, two for forward mode.
COMPOSITIONS: dict[str, tuple[int, Callable[[Any], Callable[[Any], Any]]]] = {
    "value_and_grad": (1, lambda f: jax.value_and_grad(total(f))),
    "vjp": (1, lambda f: lambda x: jax.vjp(f, x)[1](V)),
    "transposed linearize": (1, transposed),
    "third by reverse": (3, lambda f: jax.jacrev(jax.jacrev(jax.jacrev(f)))),
    "hessian": (3, lambda f: jax.hessian(total(f))),
    "jvp": (2, lambda f: lambda x: jax.jvp(f, (x,), (V,))),
    "linearize": (2, lambda f: lambda x: jax.linearize(f, x)[1](V)),
    "reverse over forward": (3, lambda f: jax.jacrev(jax.jacfwd(f))),
    "forward over forward": (4, lambda f: jax.jacfwd(jax.jacfwd(f))),
    "hvp by reverse over forward": (3, lambda f: jax.grad(lambda x: jax.jvp(total(f), (x,), (V,))[1])),
    "jvp of a pushforward's direction": (
        2,
        lambda f: lambda x: jax.jvp(lambda v: jax.jvp(f, (x,), (v,))[1], (V,), (x,)),
    ),
}
EAGER = {"value_and_grad", "jvp", "linearize"}  # otherwise it takes much longer, and goes the same way


@pytest.mark.wide(one_in=4, promise="derivatives of loaded functions, however composed, are the live function's")
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_composition(name: str) -> None:
    order, compose = COMPOSITIONS[name]
    expected = jax.jit(compose(wave))(X)
    for by in LIBRARIES if name in ("hessian", "jvp", "value_and_grad") else ["jaxexp"]:
        call = loaded(wave, VECTOR, vjp_order=order, by=by).call
        for how in (jax.jit, eager) if name in EAGER else (jax.jit,):
            assert_same_values(how(compose(call))(X), expected, rtol=1e-4)


@each("name", COMPOSITIONS)
def test_one_order_fewer(name: str) -> None:
    """One error, which names the user's function, the order that is there, and the order that it takes."""
    order, compose = COMPOSITIONS[name]
    for fewer in {order - 1, 0}:
        differentiate = compose(loaded(wave, VECTOR, vjp_order=fewer).call)
        for how in (jax.jit, eager) if name in EAGER else (jax.jit,):
            with pytest.raises(jaxexp.errors.ExportError) as error:
                how(differentiate)(X)
            message = str(error.value)
            assert ("wave needs its VJPs up to order 2" if (name, fewer) == ("jvp", 0) else "wave ") in message
            assert "fun_vjp_jax" not in message
            assert f"serialized with vjp_order={fewer}" in message
            assert f"vjp_order={order} or more" in message or fewer < order - 1


MISSING: list[tuple[Callable[[Any], Any], str]] = [
    (lambda f: f.vjp().vjp(), r"^wave has no VJP of order 2: .* vjp_order=1\. .* from its code, .*vjp_order=2 or more"),
    (lambda f: f.serialize(vjp_order=3), r"^wave cannot .* vjp_order=3: .* order 1\. .*vjp_order=3 or more"),
    (lambda f: f.vjp().serialize(vjp_order=2), r"^the VJP of order 1 of wave cannot .* vjp_order=2: .*vjp_order=3"),
    (
        lambda f: f.precompile((X,), into="f.exe", vjp_order=5),
        r"^wave has no VJP of order 5: .* vjp_order=1\. .* vjp_order=5 or",
    ),
    (
        lambda f: f.vjp().precompile((X, X), into="f.exe", vjp_order=3),
        r"^wave has no VJP of order 4: .* vjp_order=1\. .*=4 or",
    ),
]


def test_missing_vjp_names_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = loaded(wave, VECTOR, vjp_order=1)
    from_jax = jaxexp.Exported.from_jax(jax_export.deserialize(bytearray(one.serialize(1))))
    for way in (one, from_jax, jaxexp.Exported.from_jax(one.to_jax())):
        for provoke, message in MISSING:
            with pytest.raises(jaxexp.errors.ExportError, match=message):
                provoke(way)
    with pytest.raises(jaxexp.errors.ExportError, match=r"^wave has no VJP of order 1: .* vjp_order=0"):
        loaded(wave, VECTOR, vjp_order=0).vjp()
    fresh = jaxexp.export(jax.jit(wave))(VECTOR)
    with pytest.raises(jaxexp.errors.ExportError, match=r"^the VJP of order 2 of wave cannot .* vjp_order=None"):
        fresh.vjp().vjp().serialize(vjp_order=None)
    alone = jaxexp.deserialize(one.vjp().serialize())  # where it comes from does not tell equal functions apart
    assert one.vjp() == alone
    assert hash(one.vjp()) == hash(alone)


@each("wrong", ["1", None, 1j, math.inf, math.nan])
def test_vjp_order_is_no_integer(wrong: Any, tmp_path) -> None:
    one = loaded(wave, VECTOR, vjp_order=1)
    with pytest.raises(jaxexp.errors.ExportError, match=r"wave.*vjp_order=.*number of VJPs.*an int") as error:
        one.serialize(wrong)
    assert isinstance(error.value, TypeError)
    with pytest.raises(jaxexp.errors.ExportError, match="vjp_order"):
        one.save(tmp_path / "f", vjp_order=wrong)
    assert not list(tmp_path.iterdir())


@each("order", [True, np.int64(1), 0.0, 0.5, 1.5, -1, np.array(2)])
def test_vjp_order_is_any_number(order: Any, tmp_path) -> None:
    """As many VJPs as jax.export includes, which counts down to 0."""
    theirs = jaxexp.inspect(jax.export.export(jax.jit(wave))(VECTOR).serialize(vjp_order=order)).vjp_order
    jaxexp.export(jax.jit(wave))(VECTOR).save(tmp_path / "f", vjp_order=order)
    assert jaxexp.inspect(tmp_path / "f").vjp_order == theirs


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


INSIDE: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "in_scan": lambda f: lambda x: lax.scan(lambda c, y: (f(c) * y, c.sum()), x, jnp.ones((3, 3))),
    "in_cond": lambda f: lambda x: lax.cond(x[0] > 0, f, lambda x: -f(x), x),
    "in_switch": lambda f: lambda x: lax.switch(jnp.int32(x[0]) + 1, [f, lambda x: f(x) * 2, lambda x: f(x) * 3], x),
    "in_while": lambda f: lambda x: lax.while_loop(lambda c: c[1] < 2, lambda c: (f(c[0]) * 0.5, c[1] + 1), (x, 0))[0],
    "in_checkpoint": lambda f: jax.checkpoint(lambda x: jnp.cos(f(jnp.sin(f(x) * 0.1)))),
    "in_custom_vjp": in_custom_vjp,
    "in_custom_jvp": in_custom_jvp,
}


MODES = {"reverse": 1, "forward": 2, "reverse over reverse": 2}  # with the VJP order that each takes
# What JAX itself cannot differentiate.
IMPOSSIBLE = {("in_while", "reverse"), ("in_while", "reverse over reverse"), ("in_custom_vjp", "forward")}


@pytest.mark.wide(one_in=3, promise="loaded functions go into control flow, with derivatives, and out again")
@pytest.mark.parametrize("inside", INSIDE)
def test_inside(inside: str) -> None:
    def run(f: Any, mode: str, how: Any = jax.jit) -> Any:
        g = INSIDE[inside](f)

        def loss(x: Any) -> Any:
            return sum(jnp.sum(jnp.cos(leaf)) for leaf in jax.tree.leaves(g(x)))

        return how(
            {
                "reverse": jax.value_and_grad(loss),
                "forward": lambda x: jax.jvp(g, (x,), (V,)),
                "reverse over reverse": jax.grad(lambda x: jnp.vdot(jax.grad(loss)(x), V)),
            }[mode]
        )(X)

    for mode, order in MODES.items():
        if (inside, mode) in IMPOSSIBLE:
            continue
        call, expected = loaded(wave, VECTOR, vjp_order=order).call, run(wave, mode)
        for how in (jax.jit, eager) if mode == "reverse" and inside in ("in_scan", "in_cond") else (jax.jit,):
            assert_same_values(run(call, mode, how), expected, rtol=1e-3)

    order = int(inside != "in_while")
    call, live = INSIDE[inside](loaded(wave, VECTOR, vjp_order=order).call), INSIDE[inside](wave)
    for _ in range(2 if inside == "in_scan" else 1):
        written = jaxexp.export(jax.jit(call))(VECTOR).serialize(vjp_order=order)
        call = jaxexp.deserialize(written).call
    assert_same_values(call(X), live(X), rtol=1e-4)
    assert_same_values(jax_export.deserialize(written).call(X), live(X), rtol=1e-4)
    if order:
        assert_same_values(pull_back(call, (X,), {}), pull_back(live, (X,), {}), rtol=1e-3)


def mixed(tree: Any, n: Any, z: Any, unused: Any, *, scale: Any, flag: Any) -> Any:
    x = tree["p"][0]
    return {"y": jnp.where(flag, x * n * scale, tree["q"]), "z": (z * x, jnp.abs(z)), "n": n + 1, "none": None}


MIXED = (
    (
        {"p": [arr(3), None], "q": arr(3, seed=1)},
        np.arange(1, 4, dtype=np.int32),
        (arr(3, seed=2) + 1j * arr(3, seed=3)).astype(np.complex64),
        arr(5),
    ),
    {"scale": f32(2.5), "flag": np.array([True, False, True])},
)


def test_every_kind_of_argument() -> None:
    args, kwargs = MIXED
    call = jaxexp.deserialize(jaxexp.export(jax.jit(mixed))(*args, **kwargs).serialize(vjp_order=3)).call
    assert_same_values(pull_back(call, args, kwargs), pull_back(mixed, args, kwargs))

    def push(f: Any) -> Any:
        return lambda a, k: jax.jvp(lambda a, k: f(*a, **k), (a, k), cotangents(MIXED))

    assert_same_values(push(call)(args, kwargs), jax.jit(push(mixed))(args, kwargs))

    def hessian(f: Any) -> Any:
        loss = lambda x, s: jnp.sum(f({"p": [x, None], "q": x}, *args[1:], **{**kwargs, "scale": s})["y"] ** 3)  # noqa: E731
        return jax.jit(jax.hessian(loss, (0, 1)))(arr(3), f32(1.5))

    assert_same_values(hessian(call), hessian(mixed), rtol=1e-4)


def test_symbolic_shapes() -> None:
    (b,) = jaxexp.symbolic_shape("b")
    call = loaded(wave, spec((b,)), vjp_order=3).call
    for size in (1, 3):
        found, expected = (jax.jit(jax.hessian(total(f)))(arr(size)) for f in (call, wave))
        assert_same_values(found, expected, rtol=1e-4)

    def value_and_pushforward(f: Any) -> Any:
        return lambda x: (jax.grad(total(f))(x), jax.jvp(f, (x,), (x,)))

    (c,) = jaxexp.symbolic_shape("c")
    again = jaxexp.deserialize(jaxexp.export(jax.jit(value_and_pushforward(call)))(spec((c,))).serialize())
    assert_same_values(again.call(arr(4)), value_and_pushforward(wave)(arr(4)), rtol=1e-4)


@each("name", ["partly_sharded", "explicit_mesh"])
def test_sharded(name: str) -> None:
    p = CASES[name].build()
    call = jaxexp.deserialize(export_with(jaxexp, p).serialize(vjp_order=2)).call

    def push(f: Any) -> Any:
        return jax.jit(lambda *args: jax.jvp(f, args, cotangents(args)))(*p.args)

    assert_same_values(push(call), push(p.live))
    assert_same_values(pull_back(call, p.args, {}), pull_back(p.live, p.args, {}))


def test_linear_transpose_is_refused() -> None:
    """Nothing in an artifact says that its function is linear; VJPs do the same."""
    matrix = arr(2, 3)
    linear = loaded(lambda x: matrix @ x, VECTOR, vjp_order=1).call
    with pytest.raises(jaxexp.errors.ExportError, match=r"linear_transpose.*jax\.vjp") as error:
        jax.linear_transpose(linear, X)(arr(2))
    assert isinstance(error.value, NotImplementedError)


def calls(fun: Callable[..., Any], *args: Any) -> list[tuple[Any, ...]]:
    """The calls of exported functions that `jax.jit` would compile: the function's name, what a pushforward moves."""
    traced = jax.make_jaxpr(fun)(*args)
    found: list[tuple[Any, ...]] = []
    for eqn in equations(dce_jaxpr(traced.jaxpr, [True] * len(traced.out_avals))[0]):
        if eqn.primitive in (call_exported_p, pushforward_p):
            found.append((eqn.params["exported"].fun_name, *[eqn.params[k] for k in ("wrt",) if k in eqn.params]))
        elif eqn.primitive is mapped_p:
            element = eqn.params["element"]
            found.append((element.exported.fun_name, *([] if element.wrt is None else [element.wrt])))
    return sorted(found)


def product(x: Any, y: Any, n: Any) -> Any:
    return jnp.sin(x) * jnp.cos(y) * n, n + 1


def product_call(vjp_order: int) -> Callable[..., Any]:
    return loaded(product, VECTOR, VECTOR, spec((), np.int32), vjp_order=vjp_order).call


def test_gradient_calls_only_what_it_differentiates() -> None:
    f = loaded(wave, VECTOR, vjp_order=1).call
    assert calls(jax.value_and_grad(lambda x: f(x).sum()), X) == [("fun_vjp_jax",), ("wave",)]
    assert calls(lambda x: jax.vjp(f, x)[1](V), X) == [("fun_vjp_jax",)]
    f = product_call(1)
    assert calls(jax.grad(lambda x: f(x, V, 3)[0].sum()), X) == [("fun_vjp_jax",)]
    assert calls(jax.grad(lambda x: 1.0 * f(X, V, 3)[0].sum() * x), f32(1)) == [("product",)]
    assert calls(jax.grad(lambda x: f(x, V, 3)[1].sum().astype(f32)), X) == []


def test_forward_mode_pushes_only_what_moves() -> None:
    """Zero tangents stay symbolic, in the first derivative and in the second."""
    f = product_call(4)

    def pushed(wrt: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda t: jax.jvp(wrt, (t,), (V,))[1]

    assert calls(lambda x, y: jax.jvp(lambda x, y: f(x, y, 3)[0], (x, y), (x, y)), X, V) == [
        ("product",),
        ("product", (0, 1)),
    ]
    assert calls(pushed(lambda x: f(x, V, 3)[0]), X) == [("product", (0,))]
    assert calls(pushed(lambda y: f(X, y, 3)[0]), V) == [("product", (1,))]
    only_x = pushed(lambda x: jax.jvp(lambda y: f(x, y, 3)[0], (V,), (V,))[1])
    assert calls(only_x, X) == [("fun_vjp_jax", (0,))]
    assert_same_values(only_x(X), pushed(lambda x: jax.jvp(lambda y: product(x, y, 3)[0], (V,), (V,))[1])(X))
    # An integer result does not move either.
    assert calls(lambda x: jax.jvp(lambda x: f(x, V, 3)[1] + 1, (x,), (V,))[0], X) == [("product",)]
