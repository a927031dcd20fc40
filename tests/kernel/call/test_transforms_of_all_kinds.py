"""Loaded functions of arguments and results of every kind under JAX's derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxexp
from kit.compare import assert_same_values
from kit.corpus import CASES, arr, export_with, f32, spec
from kit.derivatives import cotangents, pull_back
from kit.transforms import COMPOSITIONS, VECTOR, V, X, loaded, total, wave

# --- arguments and results of every kind ----------------------------------------------------------------------------


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


@functools.cache
def mixed_bytes() -> bytes:
    args, kwargs = MIXED
    return bytes(jaxexp.export(jax.jit(mixed))(*args, **kwargs).serialize(vjp_order=3))


def mixed_call() -> Callable[..., Any]:
    return jaxexp.deserialize(mixed_bytes()).call


def test_every_kind_of_argument_in_reverse() -> None:
    args, kwargs = MIXED
    assert_same_values(pull_back(mixed_call(), args, kwargs), pull_back(mixed, args, kwargs))


@pytest.mark.parametrize("how", ["eager", "jit"])
def test_every_kind_of_argument_in_forward(how: str) -> None:
    args, kwargs = MIXED
    tangents = cotangents(MIXED)

    def run(f: Any) -> Any:
        push = lambda a, k: jax.jvp(lambda a, k: f(*a, **k), (a, k), tangents)  # noqa: E731
        return (jax.jit(push) if how == "jit" else push)(args, kwargs)

    assert_same_values(run(mixed_call()), run(mixed))


@pytest.mark.parametrize("argnum", [0, 1, 2, 3])
def test_gradient_with_respect_to_one_argument(argnum: int) -> None:
    args, kwargs = MIXED
    loss = lambda f: lambda *a: jnp.sum(f(*a, **kwargs)["y"] ** 2) + jnp.sum(f(*a, **kwargs)["z"][1])  # noqa: E731
    found, expected = (jax.grad(loss(f), argnum, allow_int=True)(*args) for f in (mixed_call(), mixed))
    assert_same_values(found, expected)


def test_zero_cotangents_of_some_results() -> None:
    args, kwargs = MIXED
    for key in ("y", "z"):
        found, expected = (
            jax.vjp(lambda a, f=f, key=key: f(*a, **kwargs)[key], args)[1](cotangents(mixed(*args, **kwargs)[key]))
            for f in (mixed_call(), mixed)
        )
        assert_same_values(found, expected)


def test_forward_over_reverse_of_mixed_arguments() -> None:
    args, kwargs = MIXED

    def run(f: Any) -> Any:
        loss = lambda x, s: jnp.sum(f({"p": [x, None], "q": x}, *args[1:], **{**kwargs, "scale": s})["y"] ** 3)  # noqa: E731
        return jax.hessian(loss, (0, 1))(arr(3), f32(1.5))

    assert_same_values(run(mixed_call()), run(mixed), rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["jacfwd", "grad", "hessian", "reverse over forward"])
def test_symbolic_shapes(name: str, rows: int) -> None:
    (b,) = jaxexp.symbolic_shape("b")
    order, compose = COMPOSITIONS[name]
    x = arr(rows)
    assert_same_values(compose(loaded(wave, spec((b,)), vjp_order=order).call)(x), compose(wave)(x), rtol=1e-4)


def test_derivative_at_a_symbolic_shape() -> None:
    """A derivative of a loaded function may be exported for any size in its turn."""
    (b,) = jaxexp.symbolic_shape("b")
    call = loaded(wave, spec((b,)), vjp_order=3).call
    for fun, live in (
        (jax.grad(total(call)), jax.grad(total(wave))),
        (lambda x: jax.jvp(call, (x,), (x,)), lambda x: jax.jvp(wave, (x,), (x,))),
    ):
        (c,) = jaxexp.symbolic_shape("c")
        again = jaxexp.deserialize(jaxexp.export(jax.jit(fun))(spec((c,))).serialize())
        assert_same_values(again.call(arr(4)), live(arr(4)), rtol=1e-4)


def test_several_platforms() -> None:
    by_platform = lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)  # noqa: E731
    exported = jaxexp.export(jax.jit(by_platform), platforms=("tpu", "cpu"))(VECTOR)
    call = jaxexp.deserialize(exported.serialize(vjp_order=3)).call
    assert_same_values(jax.jvp(call, (X,), (V,)), jax.jvp(jnp.sin, (X,), (V,)))
    assert_same_values(jax.hessian(total(call))(X), jax.hessian(total(jnp.sin))(X))


@pytest.mark.parametrize("name", ["sharded_1d", "partly_sharded", "explicit_mesh", "shard_map_psum"])
def test_sharded(name: str) -> None:
    p = CASES[name].build()
    call = jaxexp.deserialize(export_with(jaxexp, p).serialize(vjp_order=2)).call

    def push(f: Any) -> Any:
        return jax.jit(lambda *args: jax.jvp(f, args, cotangents(args)))(*p.args)

    assert_same_values(push(call), push(p.live))
    assert_same_values(pull_back(call, p.args, {}), pull_back(p.live, p.args, {}))
