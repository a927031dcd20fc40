"""Cases of memories, donation, symbolic shapes, and keys on several devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import export as jax_export
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from kit.corpus import Program, arr, mesh, spec

from .case import Explicit, case, placed
from .meshes import in_mesh

# --- memories, donation, shapes, keys -------------------------------------------------------------------------------


@case
def result_in_host_memory() -> Program:
    """JAX cannot take the VJP: the cotangent would come from host memory."""
    m = mesh((8,), ("x",))
    s = NamedSharding(m, P("x"))
    fun = jax.jit(lambda x: x * 2, in_shardings=s, out_shardings=s.with_memory_kind("pinned_host"))
    return placed(fun, (s,), arr(8))


@case(vjp_order=1)
def argument_in_host_memory() -> Program:
    s = NamedSharding(mesh((8,), ("x",)), P("x"))
    x = jax.device_put(arr(8), s.with_memory_kind("pinned_host"))
    return Program(jax.jit(lambda x: jnp.sin(jax.device_put(x, s))), (x,))


@case
def one_device_in_host_memory() -> Program:
    host, device = (SingleDeviceSharding(jax.devices()[0], memory_kind=kind) for kind in ("pinned_host", "device"))
    fun = jax.jit(lambda x: jax.device_put(jax.device_put(x, device) * 2, host))
    return Program(fun, (jax.device_put(arr(8), host),))


@case(vjp_order=2, theirs=0)
def committed_to_a_device() -> Program:
    """The spec is an array that was put on a device, which leaves a sharding without a mesh."""
    x = jax.device_put(arr(4), jax.devices()[0])
    return Program(jax.jit(lambda x, y: jnp.sin(x) * y), (x, arr(4, seed=1)))


@case(vjp_order=1, calling=in_mesh())
def donated_with_shardings() -> Program:
    m = mesh((4, 2), ("x", "y"))
    s, r = NamedSharding(m, P("x", "y")), NamedSharding(m, P("y"))
    fun = jax.jit(lambda a, b: (a + b[0], a.sum()), in_shardings=(s, r), out_shardings=(s, None), donate_argnums=0)
    return Program(fun, (arr(8, 4), arr(4, 4)), live=lambda a, b: (jnp.asarray(a + b[0]), jnp.sum(a)))


@case(vjp_order=2)
def symbolic_sharded_dimension() -> Program:
    s = NamedSharding(mesh((8,), ("x",)), P("x"))
    (b,) = jax_export.symbolic_shape("b", constraints=("mod(b, 8) == 0",))
    fun = jax.jit(lambda x: (jnp.sin(x), x.sum(0)), in_shardings=s, out_shardings=(s, None))
    return placed(fun, (s,), arr(16, 3), specs=(spec((b, 3)),))


@case(vjp_order=1)
def symbolic_explicit_dimension() -> Program:
    s = NamedSharding(mesh((8,), ("x",), Explicit), P("x"))
    (b,) = jax_export.symbolic_shape("b")
    return placed(jax.jit(lambda x: jnp.sin(x)), (s,), arr(16, 3), specs=(spec((8 * b, 3), sharding=s),))


@case
def sharded_keys() -> Program:
    m = mesh((8,), ("x",))
    s, t = NamedSharding(m, P("x")), NamedSharding(m, P("x", None))
    keys = jax.random.split(jax.random.key(3), 8)

    def fun(keys):
        return jax.vmap(lambda k: jax.random.normal(k, (2,)))(keys), jax.vmap(jax.random.split)(keys)

    return placed(jax.jit(fun, in_shardings=s, out_shardings=(s, t)), (s,), keys)


@case
def sharded_keys_on_explicit_axes() -> Program:
    s = NamedSharding(mesh((4, 2), ("x", "y"), Explicit), P("x"))
    keys = jax.device_put(jax.random.split(jax.random.key(3), 8), s)
    return Program(jax.jit(lambda keys: jax.vmap(lambda k: jax.random.bits(k, (2,)))(keys)), (keys,))


@case(vjp_order=1)
def one_device_called_on_eight() -> Program:
    s = NamedSharding(mesh((8,), ("x",)), P("x"))
    return placed(jax.jit(lambda x: (x @ x.T, jnp.sin(x))), (s,), arr(8, 2))


@case(vjp_order=1)
def one_device_called_on_eight_explicitly() -> Program:
    s = NamedSharding(mesh((8,), ("x",), Explicit), P("x"))
    return placed(jax.jit(lambda x: jnp.sin(x)), (s,), arr(8, 2))


@case(vjp_order=1)
def sharded_export_inside_another() -> Program:
    m = mesh((4, 2), ("x", "y"))
    s, t = NamedSharding(m, P("x", "y")), NamedSharding(m, P("y", "x"))
    inner = jax_export.export(jax.jit(lambda x: jnp.sin(x) * 2, in_shardings=s, out_shardings=t))(spec((8, 8)))
    loaded = jax_export.deserialize(inner.serialize(vjp_order=2))
    other = NamedSharding(mesh((8,), ("x",)), P("x"))
    fun = jax.jit(lambda x: loaded.call(loaded.call(x)) + 1, in_shardings=other)
    return placed(fun, (other,), arr(8, 8))
