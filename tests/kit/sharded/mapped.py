"""Cases of `shard_map`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from kit.corpus import Program, arr, mesh

from .case import Explicit, case, mapped, placed

# --- shard_map ------------------------------------------------------------------------------------------------------


@case(vjp_order=2)
def mapped_all_gather() -> Program:
    def body(x):
        return lax.all_gather(jnp.sin(x), "i", tiled=True)[None] * x[:, None]

    return mapped(body, mesh((8,), ("i",)), (P("i"),), P("i"), arr(8))


@case(vjp_order=1)
def mapped_ppermute_and_index() -> Program:
    def body(x):
        return lax.ppermute(x, "i", [(j, (j + 3) % 8) for j in range(8)]) * (1.0 + lax.axis_index("i"))

    return mapped(body, mesh((8,), ("i",)), (P("i"),), P("i"), arr(8, 2))


@case(vjp_order=1)
def mapped_scatter_and_exchange() -> Program:
    def body(x):
        exchanged = lax.all_to_all(x, "j", 1, 0, tiled=True).sum()
        return lax.psum_scatter(x, "j", scatter_dimension=1, tiled=True) + exchanged, lax.psum(x, ("i", "j"))

    return mapped(body, mesh((2, 4), ("i", "j")), (P("i", "j"),), (P("i", "j"), P()), arr(4, 16))


@case(vjp_order=2)
def mapped_over_some_axes() -> Program:
    def body(x, w):
        return lax.psum(lax.with_sharding_constraint(x @ w, P(None, "y")), "x")

    m = mesh((4, 2), ("x", "y"))
    fun = jax.shard_map(body, mesh=m, in_specs=(P(None, "x"), P("x")), out_specs=P(), axis_names={"x"})
    shardings = NamedSharding(m, P(None, "x")), NamedSharding(m, P("x", "y"))
    return placed(jax.jit(fun, in_shardings=shardings), shardings, arr(4, 8), arr(8, 6))


@case
def mapped_in_mapped() -> Program:
    """JAX cannot lower the derivative of this one."""

    def inner(x):
        return lax.psum(jnp.sin(x), "y")

    def outer(x):
        y = jax.shard_map(inner, in_specs=P(None, "y"), out_specs=P(), axis_names={"y"})(x)
        return lax.psum(y, "x")

    m = mesh((4, 2), ("x", "y"))
    s = NamedSharding(m, P("x", "y"))
    fun = jax.shard_map(outer, mesh=m, in_specs=P("x"), out_specs=P(), axis_names={"x"})
    return placed(jax.jit(fun, in_shardings=s), (s,), arr(4, 8))


@case(vjp_order=2)
def mapped_in_scan() -> Program:
    m = mesh((8,), ("i",))

    def body(c, x):
        return jnp.sin(c) * lax.pmean(x, "i"), lax.ppermute(c, "i", [(j, (j + 1) % 8) for j in range(8)])

    step = jax.shard_map(body, mesh=m, in_specs=(P("i"), P("i")), out_specs=(P("i"), P("i")))
    shardings = NamedSharding(m, P("i")), NamedSharding(m, P(None, "i"))
    return placed(jax.jit(lambda c, xs: lax.scan(step, c, xs), in_shardings=shardings), shardings, arr(8), arr(3, 8))


@case(vjp_order=1)
def mapped_without_shardings() -> Program:
    """Nothing but the module says that eight devices take part."""
    m = mesh((8,), ("i",))
    fun = jax.shard_map(lambda x: lax.psum(x * x, "i"), mesh=m, in_specs=P("i"), out_specs=P())
    return placed(jax.jit(fun), (NamedSharding(m, P("i")),), arr(8))


@case(vjp_order=1)
def mapped_on_explicit_axes() -> Program:
    m = mesh((4, 2), ("x", "y"), Explicit)
    fun = jax.shard_map(lambda x: lax.psum(jnp.sin(x), "x"), mesh=m, in_specs=P("x", "y"), out_specs=P(None, "y"))
    return Program(jax.jit(fun), (jax.device_put(arr(8, 4), NamedSharding(m, P("x", "y"))),))
