"""Cases of symbolic shapes, platforms, and several devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import export as jax_export
from jax import lax
from jax._src import core
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from .case import Program, arr, case, f32, grid, mesh, placed, plain, row, spec


def _expressions(x, y, z):
    return x.reshape(-1), jnp.pad(y, (1, 2)), z.sum() * x.shape[0], jnp.concatenate([y, y, y[:1]])


def _stacked(x, y):
    return jnp.concatenate([x @ y, x @ y * 2], axis=0)


def _division(x):
    (n,) = x.shape
    return x.reshape((n // 2, 2)), x[: n - 3], jnp.zeros(core.max_dim(n, 7)), x[: core.min_dim(n % 5, 1)]


def _counted(x):
    return lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i], f32(0))


plain("symbolic_batch", lambda x, w: jnp.tanh(x @ w), arr(5, 4), arr(4, 3), shapes=["b, 4", "4, 3"], vjp_order=2)
plain("symbolic_several", _stacked, arr(2, 3), arr(3, 4), shapes=["a, b", "b, c"], vjp_order=1)
plain("symbolic_expressions", _expressions, arr(2, 5), arr(5), arr(4, 11), shapes=["a, b", "b", "2*a, 2*b + 1"])
plain("symbolic_division", _division, arr(6), shapes=["n"], constraints=["n >= 4", "mod(n, 2) == 0"])
plain("symbolic_value", lambda x: x.mean() + jnp.array(x.shape[0], f32), arr(6), shapes=["n"], vjp_order=1)
plain("symbolic_unused", lambda x, unused: x * 2, arr(6), arr(6), shapes=["n", "n"])
plain(
    "symbolic_multi_platform", lambda x: jnp.cos(x).sum(), arr(6), shapes=["n"], platforms=("tpu", "cpu"), vjp_order=1
)
plain("symbolic_while", _counted, arr(6), shapes=["n"])


@case()
def symbolic_tree() -> Program:
    args = ({"x": arr(3, 2), "y": [arr(3)]},)
    specs = jax_export.symbolic_args_specs(args, ({"x": "b, ...", "y": ["b"]},))
    return Program(jax.jit(lambda d, *, s: d["x"].sum(1) * d["y"][0] + s), args, {"s": f32(2)}, specs=specs)


plain("multi_platform", lambda x: jnp.cos(x) * x, arr(4), platforms=("cpu", "cuda", "tpu"), vjp_order=2)


@case(vjp_order=1)
def platform_dependent() -> Program:
    def fun(x):
        return lax.platform_dependent(x, cpu=lambda x: x * 2, cuda=lambda x: x * 3, default=lambda x: x * 4)

    return Program(jax.jit(fun), (arr(4),), platforms=("cuda", "cpu", "rocm"))


plain("platform_check_disabled", lambda x: x * 2 + 1, arr(4), platforms=("tpu",), disabled=("platform",))
plain("other_platform", lambda x: x * 2 + 1, arr(4), platforms=("rocm",), callable_here=False)


@case()
def custom_call_allowed() -> Program:
    target = "jaxexp_corpus_no_such_target"
    fun = jax.jit(lambda x: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((2,), f32))(x))
    return Program(fun, (arr(2),), disabled=(target, "another_target"), callable_here=False)


@case(vjp_order=1)
def sharded_1d() -> Program:
    s = row("x")
    return placed(jax.jit(lambda a, b: a * 2 + b, in_shardings=s, out_shardings=s), (s, s), arr(8), arr(8, seed=1))


@case(vjp_order=2)
def sharded_2d() -> Program:
    s, r = grid("x", "y"), grid("y")
    fun = jax.jit(lambda a, b: jnp.sin(a @ b), in_shardings=(s, r), out_shardings=grid(None, "x"))
    return placed(fun, (s, r), arr(8, 4), arr(4, 4))


@case()
def sharded_over_two_axes() -> Program:
    m = mesh((2, 2, 2), ("x", "y", "z"))
    s, r = NamedSharding(m, P(("x", "z"), None, "y")), NamedSharding(m, P(None, ("y", "x")))
    fun = jax.jit(lambda a, b: (a + 1, b * a[0]), in_shardings=(s, r), out_shardings=(r, s))
    return placed(jax.jit(lambda a: fun(a, a)), (s,), arr(4, 4, 4))


@case()
def replicated() -> Program:
    r, s = row(), row("x")
    fun = jax.jit(lambda a, b: (a * 2, b + a), in_shardings=(r, s), out_shardings=(r, r))
    return placed(fun, (r, s), arr(8), arr(8, seed=1))


@case(vjp_order=1)
def partly_sharded() -> Program:
    s, r = grid("x"), grid()
    fun = jax.jit(lambda a, b, c: (a * b, b.sum() * c["k"]), in_shardings=(s, None, None))
    specs = (spec((8,)), spec((8,)), {"k": spec((3,))})
    return placed(fun, (s, r, r), arr(8), arr(8, seed=1), {"k": arr(3)}, specs=specs)


@case()
def sharded_specs() -> Program:
    s = row("x")
    return placed(jax.jit(lambda a: a.sum(1)), (s,), arr(8, 2), specs=(spec((8, 2), sharding=s),))


@case()
def constrained_inside() -> Program:
    s, t = grid("x"), grid("y", "x")
    fun = jax.jit(lambda a: lax.with_sharding_constraint(a * 2, t).T, in_shardings=s)
    return placed(fun, (s,), arr(8, 8))


@case()
def memory_kinds() -> Program:
    host, device = (row("x").with_memory_kind(kind) for kind in ("pinned_host", "device"))

    def fun(a, b):
        return jax.device_put(a, device) * 2 + b, jax.device_put(b, host)

    fun = jax.jit(fun, in_shardings=(host, device), out_shardings=(device, host))
    return placed(fun, (host, device), arr(8), arr(8, seed=1))


@case()
def one_device_sharding() -> Program:
    s = SingleDeviceSharding(jax.devices()[0], memory_kind="unpinned_host")
    return Program(jax.jit(lambda x, y: x * y, in_shardings=(s, None)), (arr(3), arr(3, seed=1)))


@case()
def sharded_trees_and_dropped() -> Program:
    m = mesh((2, 4), ("data", "model"))
    s, r = NamedSharding(m, P("data", "model")), NamedSharding(m, P("model"))
    args = ({"w": arr(4, 8), "unused": arr(2)}, arr(8))
    shardings = ({"w": s, "unused": NamedSharding(m, P())}, r)
    fun = jax.jit(lambda p, b: {"o": p["w"] + b}, in_shardings=shardings, out_shardings={"o": s})
    specs = jax.tree.map(lambda x: spec(x.shape, x.dtype), args)
    return Program(fun, jax.tree.map(jax.device_put, args, shardings), specs=specs)


@case()
def sharded_symbolic() -> Program:
    s = row(None, "x")
    (b,) = jax_export.symbolic_shape("b")
    fun = jax.jit(lambda a: a * 2, in_shardings=s, out_shardings=s)
    return placed(fun, (s,), arr(3, 8), specs=(spec((b, 8)),))


@case(vjp_order=1)
def shard_map_psum() -> Program:
    s = row("x")
    body = jax.shard_map(lambda x: lax.psum(jnp.sin(x), "x"), mesh=s.mesh, in_specs=P("x"), out_specs=P())
    return placed(jax.jit(body, in_shardings=s), (s,), arr(8, 2))


def _explicit(*partitions: Any, **reductions: Any) -> NamedSharding:
    return NamedSharding(mesh((4, 2), ("x", "y"), AxisType.Explicit), P(*partitions, **reductions))


@case(vjp_order=1)
def explicit_mesh() -> Program:
    s, r, out = (_explicit(*partitions) for partitions in (("x", "y"), ("y", None), ("x", None)))
    fun = jax.jit(lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=out))
    return Program(fun, (jax.device_put(arr(8, 4), s), jax.device_put(arr(4, 3), r)))


@case()
def unreduced_result() -> Program:
    a, b = (jax.device_put(arr(4, 4), s) for s in (_explicit("x", "y"), _explicit("y", None)))
    out, whole = _explicit("x", None, unreduced={"y"}), _explicit("x", None)
    fun = jax.jit(lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=out))
    return Program(fun, (a, b), finish=jax.jit(lambda r: jax.sharding.reshard(r, whole)))


@case()
def reduced_argument() -> Program:
    a, b = (jax.device_put(arr(4, 4), s) for s in (_explicit("x", None), _explicit(None, None, reduced={"x"})))
    return Program(jax.jit(lambda a, b: (a + 1, jnp.sin(b))), (a, b))
