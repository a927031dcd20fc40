"""Cases of meshes of every kind, of partition specs, and of contexts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from kit.corpus import Program, arr, mesh, spec

from .case import Auto, Explicit, abstract_mesh_by_default, case, gspmd, mapped, placed

# --- meshes ---------------------------------------------------------------------------------------------------------


@case(vjp_order=1, theirs=0)
def two_meshes() -> Program:
    one, two = mesh((8,), ("x",)), mesh((4, 2), ("a", "b"))
    s, t = NamedSharding(one, P("x")), NamedSharding(two, P("a", "b"))
    fun = jax.jit(
        lambda a, b: (a * 2 + b.sum(), b @ a[:2]),
        in_shardings=(s, t),
        out_shardings=(NamedSharding(two, P("b")), s),
    )
    return placed(fun, (s, t), arr(8), arr(8, 2))


@case(vjp_order=2, theirs=1)
def another_mesh_inside() -> Program:
    s = NamedSharding(mesh((8,), ("x",)), P("x"))
    t = NamedSharding(mesh((2, 2, 2), ("a", "b", "c")), P(("c", "a"), "b"))
    fun = jax.jit(lambda a: lax.with_sharding_constraint(jnp.outer(a, a), t).sum(1), in_shardings=s)
    return placed(fun, (s,), arr(8))


@case
def explicit_and_auto_axes() -> Program:
    """JAX cannot lower the derivative of this one."""
    m = jax.make_mesh((4, 2), ("x", "y"), axis_types=(Explicit, Auto))
    s = NamedSharding(m, P("x"))

    def fun(a, w):
        hidden = lax.with_sharding_constraint(jnp.sin(a) @ w, NamedSharding(m, P(P.UNCONSTRAINED, "y")))
        return jax.shard_map(lambda h: h.sum(1), mesh=m, in_specs=P("x", "y"), out_specs=P("x"), check_vma=False)(
            hidden
        )

    out = NamedSharding(m, P("x"))
    return placed(jax.jit(fun, out_shardings=out), (s, NamedSharding(m, P())), arr(8, 4), arr(4, 2))


@case(vjp_order=1)
def permuted_devices() -> Program:
    devices = np.array(jax.devices())[[3, 1, 0, 2, 7, 5, 6, 4]].reshape(4, 2)
    m = Mesh(devices, ("x", "y"), axis_types=(Auto, Auto))

    def body(x):
        return x * (1 + 2 * lax.axis_index("x") + lax.axis_index("y"))

    return mapped(body, m, (P("x", "y"),), P("x", "y"), arr(4, 2))


@case(vjp_order=1)
def mesh_of_one_device() -> Program:
    m = jax.make_mesh((1, 1), ("x", "y"), devices=jax.devices()[5:6], axis_types=(Explicit, Auto))
    s = NamedSharding(m, P("x"))
    return placed(jax.jit(lambda x: jnp.sin(x) * 2, in_shardings=s, out_shardings=s), (s,), arr(4, 2))


@case(vjp_order=1, theirs=0)
def mesh_without_axes() -> Program:
    s = NamedSharding(Mesh(np.array(jax.devices()[0]), ()), P())
    return placed(jax.jit(lambda x: jnp.sin(x), in_shardings=s, out_shardings=s), (s,), arr(4, 2))


@case(vjp_order=2)
def four_of_eight_devices() -> Program:
    m = jax.make_mesh((4,), ("x",), devices=jax.devices()[4:], axis_types=(Auto,))
    s = NamedSharding(m, P("x"))
    return placed(jax.jit(lambda x: x @ x.T, in_shardings=s, out_shardings=s), (s,), arr(4, 2))


@case(vjp_order=1)
def axes_of_size_one() -> Program:
    s = NamedSharding(mesh((8, 1), ("x", "y")), P("y", "x"))
    return placed(jax.jit(lambda x: jnp.sin(x), in_shardings=s, out_shardings=s), (s,), arr(2, 8))


# --- partition specs ------------------------------------------------------------------------------------------------


@case(vjp_order=1)
def specs_of_every_form() -> Program:
    m = mesh((4, 2), ("x", "y"))
    specs = P(None), P(), P(("x", "y")), P(("y", "x"), None), P(None, ("x",)), P("y", None), P("x", "y")
    shardings = tuple(NamedSharding(m, s) for s in specs)
    fun = jax.jit(
        lambda *xs: [jnp.sin(x) for x in xs], in_shardings=shardings, out_shardings=[*shardings[1:], shardings[0]]
    )
    return placed(fun, shardings, *(arr(8, 8, seed=i) for i in range(len(specs))))


@case(vjp_order=1)
def unconstrained_inside() -> Program:
    m = mesh((4, 2), ("x", "y"))
    s, t = NamedSharding(m, P("x")), NamedSharding(m, P(P.UNCONSTRAINED, "y"))
    return placed(jax.jit(lambda x: lax.with_sharding_constraint(jnp.sin(x), t) * 2, in_shardings=s), (s,), arr(8, 4))


@case(vjp_order=1)
def inner_jit_with_shardings() -> Program:
    m = mesh((8,), ("x",))
    s, r = NamedSharding(m, P("x")), NamedSharding(m, P())
    inner = jax.jit(lambda x: x.sum() * x, in_shardings=s, out_shardings=r)
    return placed(jax.jit(lambda x: inner(x) + 1), (s,), arr(8))


@case(vjp_order=1)
def gspmd_shardings() -> Program:
    """Without any mesh: one is made up, with JAX's default axis types."""
    m = mesh((4, 2), ("x", "y"))
    fun = jax.jit(jnp.sin, in_shardings=gspmd(m, P("x"), 2), out_shardings=gspmd(m, P("y", "x"), 2))
    types = abstract_mesh_by_default().axis_types
    own = jax.make_mesh((4, 2), ("_axis_0", "_axis_1"), axis_types=types)
    return placed(fun, (NamedSharding(own, P("_axis_0")),), arr(8, 4))


@case(vjp_order=1)
def gspmd_sharding_beside_a_mesh() -> Program:
    m = mesh((4, 2), ("x", "y"))
    s = NamedSharding(m, P("x"))
    return placed(jax.jit(jnp.sin, in_shardings=s, out_shardings=gspmd(m, P("y", "x"), 2)), (s,), arr(8, 4))


@case(vjp_order=1, theirs=0)
def gspmd_replicated() -> Program:
    g = gspmd(mesh((8,), ("x",)), P(), 1)
    return placed(jax.jit(jnp.sin, in_shardings=g), (g,), arr(8))


# --- contexts -------------------------------------------------------------------------------------------------------


def in_mesh(axis_type: AxisType = Auto) -> Callable[[], Any]:
    return lambda: jax.set_mesh(mesh((4, 2), ("x", "y"), axis_type))


@case(vjp_order=1, exporting=in_mesh())
def constraint_by_context() -> Program:
    fun = jax.jit(lambda x: lax.with_sharding_constraint(jnp.sin(x), P("y", "x")))
    return placed(fun, (NamedSharding(mesh((4, 2), ("x", "y")), P("x")),), arr(8, 4))


@case(vjp_order=1, exporting=in_mesh())
def shardings_by_context() -> Program:
    fun = jax.jit(lambda x: jnp.sin(x), in_shardings=P("x"), out_shardings=P("y"))
    return placed(fun, (NamedSharding(mesh((4, 2), ("x", "y")), P("x")),), arr(8, 4))


@case(vjp_order=1, exporting=in_mesh())
def mapped_by_context() -> Program:
    fun = jax.shard_map(lambda x: lax.psum(jnp.sin(x), "x"), in_specs=P("x"), out_specs=P())
    return placed(jax.jit(fun), (NamedSharding(mesh((4, 2), ("x", "y")), P("x")),), arr(8))


def _resharding() -> Program:
    def fun(x):
        return jax.sharding.reshard(jnp.sin(x), P("y", "x")).T, jnp.ones((8,), x.dtype, out_sharding=P("x"))

    return Program(
        jax.jit(fun), (jax.device_put(arr(8, 4), NamedSharding(mesh((4, 2), ("x", "y"), Explicit), P("x"))),)
    )


@case(vjp_order=1, exporting=in_mesh(Explicit), calling=in_mesh(Explicit))
def reshard_in_context() -> Program:
    return _resharding()


@case(vjp_order=1, exporting=in_mesh(Explicit))
def reshard_called_out_of_context() -> Program:
    return _resharding()


@case(vjp_order=1, calling=in_mesh())
def called_in_context() -> Program:
    return Program(jax.jit(lambda x: jnp.sin(x)), (arr(8),))


@case(vjp_order=1, calling=in_mesh(Explicit))
def called_in_explicit_context() -> Program:
    return Program(jax.jit(lambda x: jnp.sin(x)), (arr(8),))


@case(vjp_order=1, calling=in_mesh())
def numpy_in_context() -> Program:
    """The context says which devices there are, so numpy arrays are placed on them."""
    m = mesh((4, 2), ("x", "y"))
    s, t = NamedSharding(m, P("x")), NamedSharding(m, P("y"))
    return Program(jax.jit(lambda x: jnp.sin(x), in_shardings=s, out_shardings=t), (arr(8, 4),), specs=(spec((8, 4)),))


# --- meshes without devices -----------------------------------------------------------------------------------------


def abstract(axis_type: AxisType = Auto, **options: Any) -> AbstractMesh:
    return AbstractMesh((4, 2), ("x", "y"), (axis_type,) * 2, **options)


@case(vjp_order=1)
def abstract_mesh_in_shardings() -> Program:
    s = NamedSharding(abstract(), P("x"))
    fun = jax.jit(lambda x: x @ x.T, in_shardings=s, out_shardings=s)
    return placed(fun, (NamedSharding(mesh((4, 2), ("x", "y")), P("x")),), arr(8, 4), live=lambda x: x @ x.T)


@case(vjp_order=1)
def abstract_mesh_in_specs() -> Program:
    s = NamedSharding(abstract(), P("x"))
    return placed(
        jax.jit(lambda x: x @ x.T),
        (NamedSharding(mesh((4, 2), ("x", "y")), P("x")),),
        arr(8, 4),
        specs=(spec((8, 4), sharding=s),),
    )


@case(vjp_order=1, theirs_usable=False)
def abstract_explicit_mesh() -> Program:
    """Its mesh says nothing of devices, and the caller's does."""
    s = NamedSharding(abstract(Explicit), P("x"))
    return placed(
        jax.jit(lambda x: jnp.sin(x)),
        (NamedSharding(mesh((4, 2), ("x", "y"), Explicit), P("x")),),
        arr(8, 4),
        specs=(spec((8, 4), sharding=s),),
    )


def tpu_device() -> Any:
    return jax.sharding.AbstractDevice(device_kind="TPU v6 lite", num_cores=1, platform="tpu")


@case(vjp_order=1)
def mesh_of_tpus() -> Program:
    s = NamedSharding(abstract(abstract_device=tpu_device()), P("x"))
    return placed(
        jax.jit(jnp.sin, in_shardings=s),
        (NamedSharding(mesh((4, 2), ("x", "y")), P("x")),),
        arr(8, 4),
        platforms=("tpu", "cpu"),
        live=jnp.sin,
    )


@case(vjp_order=1, exporting=lambda: jax.sharding.use_abstract_mesh(abstract(Explicit, abstract_device=tpu_device())))
def mesh_of_tpus_by_context() -> Program:
    s = NamedSharding(abstract(Explicit, abstract_device=tpu_device()), P("x"))
    return Program(jax.jit(jnp.sin), specs=(spec((8, 4), sharding=s),), platforms=("tpu",), callable_here=False)
