"""Functions to be differentiated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import export as jax_export

import jaxexp
from kit.corpus import arr, spec

LIBRARIES = {"jaxexp": jaxexp, "jax": jax_export}


@functools.cache
def serialized(fun: Any, by: str, vjp_order: int, *specs: Any) -> bytes:
    exported = LIBRARIES[by].export(jax.jit(fun))(*specs)
    return bytes(exported.serialize(vjp_order=vjp_order))


def loaded(fun: Any, *specs: Any, vjp_order: int, by: str = "jaxexp") -> jaxexp.Exported:
    return jaxexp.deserialize(serialized(fun, by, vjp_order, *specs))


def wave(x: Any) -> Any:
    return jnp.sin(x) * jnp.sum(x * x)


VECTOR = spec((3,))
X, V = arr(3), arr(3, seed=1)


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
    "grad": (1, lambda f: jax.grad(total(f))),
    "value_and_grad": (1, lambda f: jax.value_and_grad(total(f))),
    "vjp": (1, lambda f: lambda x: jax.vjp(f, x)[1](V)),
    "jacrev": (1, jax.jacrev),
    "jvp": (2, lambda f: lambda x: jax.jvp(f, (x,), (V,))),
    "linearize": (2, lambda f: lambda x: jax.linearize(f, x)[1](V)),
    "transposed linearize": (1, transposed),
    "jacfwd": (2, jax.jacfwd),
    "hessian": (3, lambda f: jax.hessian(total(f))),
    "forward over reverse": (3, lambda f: jax.jacfwd(jax.jacrev(f))),
    "reverse over forward": (3, lambda f: jax.jacrev(jax.jacfwd(f))),
    "forward over forward": (4, lambda f: jax.jacfwd(jax.jacfwd(f))),
    "reverse over reverse": (2, lambda f: jax.jacrev(jax.jacrev(f))),
    "third by reverse": (3, lambda f: jax.jacrev(jax.jacrev(jax.jacrev(f)))),
    "third by forward over reverse twice": (4, lambda f: jax.jacfwd(jax.jacrev(jax.jacrev(f)))),
    "hvp by reverse": (2, lambda f: lambda x: jax.grad(lambda y: jnp.vdot(jax.grad(total(f))(y), V))(x)),
    "hvp by forward over reverse": (3, lambda f: lambda x: jax.jvp(jax.grad(total(f)), (x,), (V,))),
    "hvp by reverse over forward": (3, lambda f: jax.grad(lambda x: jax.jvp(total(f), (x,), (V,))[1])),
    "jvp of a pushforward's direction": (
        2,
        lambda f: lambda x: jax.jvp(lambda v: jax.jvp(f, (x,), (v,))[1], (V,), (x,)),
    ),
}
