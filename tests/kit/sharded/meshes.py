"""Cases of several devices: meshes, partition specs, contexts, shard_map, memories, donation, shapes, keys."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jax import lax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from kit.cases.case import Program, arr, grid, mesh, placed, row, spec

from .case import (
    Auto,
    Explicit,
    abstract,
    abstract_mesh_by_default,
    case,
    gspmd,
    in_mesh,
    kept,
    mapped,
    sharded,
    simple,
)


@case(vjp_order=1, theirs=0)
def two_meshes() -> Program:
    two = mesh((4, 2), ("a", "b"))
    s, t = row("x"), NamedSharding(two, P("a", "b"))
    fun = jax.jit(
        lambda a, b: (a * 2 + b.sum(), b @ a[:2]), in_shardings=(s, t), out_shardings=(NamedSharding(two, P("b")), s)
    )
    return placed(fun, (s, t), arr(8), arr(8, 2))


def _through_three_axes(a: Any) -> Any:
    t = NamedSharding(mesh((2, 2, 2), ("a", "b", "c")), P(("c", "a"), "b"))
    return lax.with_sharding_constraint(jnp.outer(a, a), t).sum(1)


sharded("another_mesh_inside", _through_three_axes, lambda: row("x"), arr(8), vjp_order=2, theirs=1)


@case()
def explicit_and_auto_axes() -> Program:
    """JAX cannot lower the derivative of this one."""
    m = jax.make_mesh((4, 2), ("x", "y"), axis_types=(Explicit, Auto))
    s = NamedSharding(m, P("x"))

    def fun(a, w):
        hidden = lax.with_sharding_constraint(jnp.sin(a) @ w, NamedSharding(m, P(P.UNCONSTRAINED, "y")))
        total = jax.shard_map(lambda h: h.sum(1), mesh=m, in_specs=P("x", "y"), out_specs=P("x"), check_vma=False)
        return total(hidden)

    return placed(jax.jit(fun, out_shardings=s), (s, NamedSharding(m, P())), arr(8, 4), arr(4, 2))


@case(vjp_order=1)
def permuted_devices() -> Program:
    devices = np.array(jax.devices())[[3, 1, 0, 2, 7, 5, 6, 4]].reshape(4, 2)
    m = Mesh(devices, ("x", "y"), axis_types=(Auto, Auto))

    def body(x):
        return x * (1 + 2 * lax.axis_index("x") + lax.axis_index("y"))

    return mapped(body, m, (P("x", "y"),), P("x", "y"), arr(4, 2))


def _on_device_five() -> NamedSharding:
    devices = jax.devices()[5:6]
    return NamedSharding(jax.make_mesh((1, 1), ("x", "y"), devices=devices, axis_types=(Explicit, Auto)), P("x"))


def _on_the_last_four() -> NamedSharding:
    return NamedSharding(jax.make_mesh((4,), ("x",), devices=jax.devices()[4:], axis_types=(Auto,)), P("x"))


def _without_axes() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[0]), ()), P())


kept("mesh_of_one_device", lambda x: jnp.sin(x) * 2, _on_device_five, arr(4, 2), vjp_order=1)
kept("mesh_without_axes", jnp.sin, _without_axes, arr(4, 2), vjp_order=1, theirs=0)
kept("four_of_eight_devices", lambda x: x @ x.T, _on_the_last_four, arr(4, 2), vjp_order=2)
kept("axes_of_size_one", jnp.sin, lambda: NamedSharding(mesh((8, 1), ("x", "y")), P("y", "x")), arr(2, 8), vjp_order=1)


@case(vjp_order=1)
def specs_of_every_form() -> Program:
    specs = P(None), P(), P(("x", "y")), P(("y", "x"), None), P(None, ("x",)), P("y", None), P("x", "y")
    shardings = tuple(grid(*s) for s in specs)
    fun = jax.jit(
        lambda *xs: [jnp.sin(x) for x in xs], in_shardings=shardings, out_shardings=[*shardings[1:], shardings[0]]
    )
    return placed(fun, shardings, *(arr(8, 8, seed=i) for i in range(len(specs))))


sharded(
    "unconstrained_inside",
    lambda x: lax.with_sharding_constraint(jnp.sin(x), grid(P.UNCONSTRAINED, "y")) * 2,
    lambda: grid("x"),
    arr(8, 4),
)


@case(vjp_order=1)
def inner_jit_with_shardings() -> Program:
    inner = jax.jit(lambda x: x.sum() * x, in_shardings=row("x"), out_shardings=row())
    return placed(jax.jit(lambda x: inner(x) + 1), (row("x"),), arr(8))


@case(vjp_order=1)
def gspmd_shardings() -> Program:
    """Without any mesh: one is made up, with JAX's default axis types."""
    m = mesh((4, 2), ("x", "y"))
    fun = jax.jit(jnp.sin, in_shardings=gspmd(m, P("x"), 2), out_shardings=gspmd(m, P("y", "x"), 2))
    own = jax.make_mesh((4, 2), ("_axis_0", "_axis_1"), axis_types=abstract_mesh_by_default().axis_types)
    return placed(fun, (NamedSharding(own, P("_axis_0")),), arr(8, 4))


sharded(
    "gspmd_sharding_beside_a_mesh",
    jnp.sin,
    lambda: grid("x"),
    arr(8, 4),
    out=lambda: gspmd(mesh((4, 2), ("x", "y")), P("y", "x"), 2),
)
sharded("gspmd_replicated", jnp.sin, lambda: gspmd(mesh((8,), ("x",)), P(), 1), arr(8), theirs=0)
simple(
    "constraint_by_context",
    lambda x: lax.with_sharding_constraint(jnp.sin(x), P("y", "x")),
    lambda: grid("x"),
    arr(8, 4),
    exporting=in_mesh(),
)


@case(vjp_order=1, exporting=in_mesh())
def shardings_by_context() -> Program:
    fun = jax.jit(lambda x: jnp.sin(x), in_shardings=P("x"), out_shardings=P("y"))
    return placed(fun, (grid("x"),), arr(8, 4))


simple(
    "mapped_by_context",
    jax.shard_map(lambda x: lax.psum(jnp.sin(x), "x"), in_specs=P("x"), out_specs=P()),
    lambda: grid("x"),
    arr(8),
    exporting=in_mesh(),
)


def _resharding() -> Program:
    def fun(x):
        return jax.sharding.reshard(jnp.sin(x), P("y", "x")).T, jnp.ones((8,), x.dtype, out_sharding=P("x"))

    return Program(jax.jit(fun), (jax.device_put(arr(8, 4), grid("x", axis_type=Explicit)),))


def _sine() -> Program:
    return Program(jax.jit(lambda x: jnp.sin(x)), (arr(8),))


case("reshard_in_context", _resharding, vjp_order=1, exporting=in_mesh(Explicit), calling=in_mesh(Explicit))
case("reshard_called_out_of_context", _resharding, vjp_order=1, exporting=in_mesh(Explicit))
case("called_in_context", _sine, vjp_order=1, calling=in_mesh())
case("called_in_explicit_context", _sine, vjp_order=1, calling=in_mesh(Explicit))


@case(vjp_order=1, calling=in_mesh())
def numpy_in_context() -> Program:
    """The context says which devices there are, so numpy arrays are placed on them."""
    fun = jax.jit(lambda x: jnp.sin(x), in_shardings=grid("x"), out_shardings=grid("y"))
    return Program(fun, (arr(8, 4),), specs=(spec((8, 4)),))


@case(vjp_order=1)
def abstract_mesh_in_shardings() -> Program:
    s = NamedSharding(abstract(), P("x"))
    fun = jax.jit(lambda x: x @ x.T, in_shardings=s, out_shardings=s)
    return placed(fun, (grid("x"),), arr(8, 4), live=lambda x: x @ x.T)


@case(vjp_order=1)
def abstract_mesh_in_specs() -> Program:
    specs = (spec((8, 4), sharding=NamedSharding(abstract(), P("x"))),)
    return placed(jax.jit(lambda x: x @ x.T), (grid("x"),), arr(8, 4), specs=specs)


@case(vjp_order=1, theirs_usable=False)
def abstract_explicit_mesh() -> Program:
    """Its mesh says nothing of devices, and the caller's does."""
    specs = (spec((8, 4), sharding=NamedSharding(abstract(Explicit), P("x"))),)
    return placed(jax.jit(lambda x: jnp.sin(x)), (grid("x", axis_type=Explicit),), arr(8, 4), specs=specs)


def tpu_device() -> Any:
    return jax.sharding.AbstractDevice(device_kind="TPU v6 lite", num_cores=1, platform="tpu")


@case(vjp_order=1)
def mesh_of_tpus() -> Program:
    fun = jax.jit(jnp.sin, in_shardings=NamedSharding(abstract(abstract_device=tpu_device()), P("x")))
    return placed(fun, (grid("x"),), arr(8, 4), platforms=("tpu", "cpu"), live=jnp.sin)


@case(vjp_order=1, exporting=lambda: jax.sharding.use_abstract_mesh(abstract(Explicit, abstract_device=tpu_device())))
def mesh_of_tpus_by_context() -> Program:
    s = NamedSharding(abstract(Explicit, abstract_device=tpu_device()), P("x"))
    return Program(jax.jit(jnp.sin), specs=(spec((8, 4), sharding=s),), platforms=("tpu",), callable_here=False)


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

    shardings = grid(None, "x"), grid("x", "y")
    specs = P(None, "x"), P("x")
    fun = jax.shard_map(body, mesh=shardings[0].mesh, in_specs=specs, out_specs=P(), axis_names={"x"})
    return placed(jax.jit(fun, in_shardings=shardings), shardings, arr(4, 8), arr(8, 6))


@case()
def mapped_in_mapped() -> Program:
    """JAX cannot lower the derivative of this one."""

    def inner(x):
        return lax.psum(jnp.sin(x), "y")

    def outer(x):
        y = jax.shard_map(inner, in_specs=P(None, "y"), out_specs=P(), axis_names={"y"})(x)
        return lax.psum(y, "x")

    s = grid("x", "y")
    fun = jax.shard_map(outer, mesh=s.mesh, in_specs=P("x"), out_specs=P(), axis_names={"x"})
    return placed(jax.jit(fun, in_shardings=s), (s,), arr(4, 8))


@case(vjp_order=2)
def mapped_in_scan() -> Program:
    def body(c, x):
        return jnp.sin(c) * lax.pmean(x, "x"), lax.ppermute(c, "x", [(j, (j + 1) % 8) for j in range(8)])

    shardings = row("x"), row(None, "x")
    step = jax.shard_map(body, mesh=shardings[0].mesh, in_specs=(P("x"), P("x")), out_specs=(P("x"), P("x")))
    return placed(jax.jit(lambda c, xs: lax.scan(step, c, xs), in_shardings=shardings), shardings, arr(8), arr(3, 8))


@case(vjp_order=1)
def mapped_without_shardings() -> Program:
    """Nothing but the module says that eight devices take part."""
    s = row("x")
    fun = jax.shard_map(lambda x: lax.psum(x * x, "x"), mesh=s.mesh, in_specs=P("x"), out_specs=P())
    return placed(jax.jit(fun), (s,), arr(8))


@case(vjp_order=1)
def mapped_on_explicit_axes() -> Program:
    s = grid("x", "y", axis_type=Explicit)
    fun = jax.shard_map(lambda x: lax.psum(jnp.sin(x), "x"), mesh=s.mesh, in_specs=s.spec, out_specs=P(None, "y"))
    return Program(jax.jit(fun), (jax.device_put(arr(8, 4), s),))


# JAX cannot take the VJP: the cotangent would come from host memory.
sharded(
    "result_in_host_memory",
    lambda x: x * 2,
    lambda: row("x"),
    arr(8),
    out=lambda: row("x").with_memory_kind("pinned_host"),
    vjp_order=0,
)


@case(vjp_order=1)
def argument_in_host_memory() -> Program:
    s = row("x")
    x = jax.device_put(arr(8), s.with_memory_kind("pinned_host"))
    return Program(jax.jit(lambda x: jnp.sin(jax.device_put(x, s))), (x,))


@case()
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
    s, r = grid("x", "y"), grid("y")
    fun = jax.jit(lambda a, b: (a + b[0], a.sum()), in_shardings=(s, r), out_shardings=(s, None), donate_argnums=0)
    return Program(fun, (arr(8, 4), arr(4, 4)), live=lambda a, b: (jnp.asarray(a + b[0]), jnp.sum(a)))


@case(vjp_order=2)
def symbolic_sharded_dimension() -> Program:
    s = row("x")
    (b,) = jax_export.symbolic_shape("b", constraints=("mod(b, 8) == 0",))
    fun = jax.jit(lambda x: (jnp.sin(x), x.sum(0)), in_shardings=s, out_shardings=(s, None))
    return placed(fun, (s,), arr(16, 3), specs=(spec((b, 3)),))


@case(vjp_order=1)
def symbolic_explicit_dimension() -> Program:
    s = row("x", axis_type=Explicit)
    (b,) = jax_export.symbolic_shape("b")
    return placed(jax.jit(lambda x: jnp.sin(x)), (s,), arr(16, 3), specs=(spec((8 * b, 3), sharding=s),))


@case()
def sharded_keys() -> Program:
    def fun(keys):
        return jax.vmap(lambda k: jax.random.normal(k, (2,)))(keys), jax.vmap(jax.random.split)(keys)

    s, keys = row("x"), jax.random.split(jax.random.key(3), 8)
    return placed(jax.jit(fun, in_shardings=s, out_shardings=(s, row("x", None))), (s,), keys)


@case()
def sharded_keys_on_explicit_axes() -> Program:
    keys = jax.device_put(jax.random.split(jax.random.key(3), 8), grid("x", axis_type=Explicit))
    return Program(jax.jit(lambda keys: jax.vmap(lambda k: jax.random.bits(k, (2,)))(keys)), (keys,))


simple("one_device_called_on_eight", lambda x: (x @ x.T, jnp.sin(x)), lambda: row("x"), arr(8, 2))
simple("one_device_called_on_eight_explicitly", jnp.sin, lambda: row("x", axis_type=Explicit), arr(8, 2))


@case(vjp_order=1)
def sharded_export_inside_another() -> Program:
    fun = jax.jit(lambda x: jnp.sin(x) * 2, in_shardings=grid("x", "y"), out_shardings=grid("y", "x"))
    loaded = jax_export.deserialize(jax_export.export(fun)(spec((8, 8))).serialize(vjp_order=2))
    outer = jax.jit(lambda x: loaded.call(loaded.call(x)) + 1, in_shardings=row("x"))
    return placed(outer, (row("x"),), arr(8, 8))
