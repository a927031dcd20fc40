"""`jax.vmap` of loaded functions: one call after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit.batches import ONE, eager, operations, reload
from kit.compare import assert_same_placement, assert_same_values
from kit.corpus import CASES, arr, export_with, f32, mesh, spec, touch
from kit.each import each

pytestmark = pytest.mark.jax


def affine(x: Any, p: Any, *, n: Any) -> Any:
    """float32[4], {"w": float32[4, 2], "b": float32[2]}, n=int32[] -> float32[2], int32[]"""
    return jnp.sin(x) @ p["w"] + p["b"] * n, n + 1


@functools.cache
def affine_call() -> Callable[..., Any]:
    parameters = {"w": spec((4, 2)), "b": spec((2,))}
    return reload(jaxexp.export(jax.jit(affine))(spec((4,)), parameters, n=spec((), np.int32)), 3).call


X, W, B, N = arr(3, 4), arr(3, 4, 2), arr(3, 2), np.arange(3, dtype=np.int32)


def positional(f: Any) -> Any:
    return lambda x, p, n: f(x, p, n=n)


AXES = {
    "everything": ((0, 0, 0), (X, {"w": W, "b": B}, N)),
    "inside a dict": ((None, {"w": None, "b": 0}, None), (X[0], {"w": W[0], "b": B}, N[0])),
    "integer": ((None, None, 0), (X[0], {"w": W[0], "b": B[0]}, N)),
    "negative": ((-1, {"w": -2, "b": 1}, -1), (X.T, {"w": W.transpose(1, 0, 2), "b": B.T}, N)),
}


@each("name", AXES)
def test_axes(name: str) -> None:
    in_axes, args = AXES[name]
    for out_axes in (0, (1, 0), (-1, -1)) if name == "everything" else (0,):
        expected = jax.jit(jax.vmap(positional(affine), in_axes, out_axes))(*args)
        for how, inside in [(jax.jit, eager), *([(eager, eager), (eager, jax.jit)] if name == "inside a dict" else [])]:
            mapped = jax.vmap(inside(positional(affine_call())), in_axes, out_axes)
            assert_same_values(how(mapped)(*args), expected)


def test_nothing_is_mapped() -> None:
    """One call, whose result JAX repeats."""
    run = lambda f: jax.vmap(lambda: f(X[0], {"w": W[0], "b": B[0]}, n=N[0]), axis_size=3)()  # noqa: E731
    assert_same_values(run(affine_call()), run(affine))
    unused = lambda f: jax.vmap(lambda x: f(X[0], {"w": W[0], "b": B[0]}, n=N[0]))  # noqa: E731
    assert operations(unused(affine_call()), X) == ONE


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "vmap of grad": lambda f: jax.vmap(jax.grad(lambda *a: f(*a)[0].sum(), (0, 1)), (0, None, 0)),
    "vmap of jacfwd": lambda f: jax.vmap(jax.jacfwd(lambda *a: f(*a)[0]), (0, None, 0)),
    "vmap of hessian": lambda f: jax.vmap(jax.hessian(lambda *a: f(*a)[0]), (0, None, 0)),
    "jacfwd of vmap": lambda f: jax.jacfwd(lambda *a: jax.vmap(f, (0, None, 0))(*a)[0]),
    "grad of vmap of grad": lambda f: jax.grad(
        lambda *a: jnp.sum(jax.vmap(jax.grad(lambda *a: f(*a)[0].sum()), (0, None, 0))(*a) ** 2)
    ),
    "vmap of vjp, integers included": lambda f: jax.vmap(
        lambda *a: jax.vjp(f, *a)[1]((jnp.ones(2), np.zeros((), jax.dtypes.float0))), (0, None, 0)
    ),
}


@pytest.mark.wide(one_in=3, promise="derivatives and maps of loaded functions go together, in any order")
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name: str) -> None:
    args, compose = (X, {"w": W[0], "b": B[0]}, N), DERIVATIVES[name]
    expected = jax.jit(compose(positional(affine)))(*args)
    for how in (jax.jit, eager) if name in ("vmap of grad", "vmap of jacfwd") else (jax.jit,):
        assert_same_values(how(compose(positional(affine_call())))(*args), expected, rtol=1e-4)


def test_mapped_float0() -> None:
    """Cotangents of integers that are mapped themselves."""
    vjp = jaxexp.export(jax.jit(lambda x, n: (x * n, n)))(f32(0), np.int32(0)).vjp()
    loaded = reload(vjp)
    mapped = jax.vmap(loaded.call)(arr(3), N, arr(3), np.zeros(3, jax.dtypes.float0))
    np.testing.assert_allclose(mapped[0], arr(3) * N, rtol=1e-6)
    assert mapped[1].shape == (3,)
    assert mapped[1].dtype == jax.dtypes.float0


def test_keys() -> None:
    fun = jax.jit(lambda key, x: (jax.random.split(key, 2), jax.random.uniform(key, x.shape) + x, x > 1))
    for impl, in_axes, hows in (("rbg", (0, 1), (eager, jax.jit)), ("threefry2x32", (None, 0), (jax.jit,))):
        keys = jax.random.split(jax.random.key(3, impl=impl), 3)
        call = reload(jaxexp.export(fun)(keys[0], spec((3,)))).call
        args = keys if in_axes[0] == 0 else keys[0], arr(3, 3)
        # A batch of rbg keys gives other numbers than its keys one by one, so that is what to compare with.
        rows = [
            fun(*(v if axis is None else jnp.take(v, i, axis) for v, axis in zip(args, in_axes, strict=True)))
            for i in range(3)
        ]
        expected = jax.tree.map(lambda *rows: jnp.stack(rows), *rows)
        for how in hows:
            assert_same_values(how(jax.vmap(call, in_axes))(*args), expected)


@each("name", ["custom_node", "dropped", "zero_size", "multi_platform", "no_results"])
def test_corpus(name: str) -> None:
    p = CASES[name].build()
    stacked = jax.tree.map(lambda x: jnp.stack([x, x, x]), p.args)
    call = reload(export_with(jaxexp, p)).call
    expected = jax.jit(jax.vmap(p.live))(*stacked)
    for how in (eager, jax.jit) if name == "custom_node" else (jax.jit,):
        assert_same_values(how(jax.vmap(call))(*stacked), expected)


def test_symbolic_sizes() -> None:
    b, c = jaxexp.symbolic_shape("b, c")
    inner = reload(jaxexp.export(jax.jit(lambda x: jnp.sin(x) * x.sum()))(spec((b,))), 1)
    fun = jax.vmap(jax.value_and_grad(lambda x: inner.call(x).sum()))
    outer = reload(jaxexp.export(jax.jit(fun))(spec((b, c))))
    assert_same_values(outer.call(arr(2, 3)), fun(arr(2, 3)))


def test_ordered_effects() -> None:
    call = reload(jaxexp.export(jax.jit(lambda x, y: touch(touch(x, "first"), "second") + y))(arr(3), arr(3))).call
    for how in (eager, jax.jit):
        with pytest.raises(jaxexp.errors.ExportError, match=r"vmap of .*ordered effects.*First.*Second.*scan") as error:
            how(jax.vmap(call, (0, None)))(arr(2, 3), arr(3))
        assert isinstance(error.value, NotImplementedError)
    # A call that is not part of the batch runs once.
    unmapped = jax.vmap(lambda x: x + call(arr(3), arr(3)))
    np.testing.assert_allclose(jax.jit(unmapped)(arr(2, 3)), arr(2, 3) + np.sin(np.sin(arr(3))) + arr(3), rtol=1e-5)


def test_unordered_effects() -> None:
    call = reload(jaxexp.export(jax.jit(lambda x: touch(x, "unordered") * 2))(arr(3))).call
    mapped = jax.jit(jax.vmap(call))
    found, expected = (jax.make_jaxpr(f)(x).effects for f, x in ((mapped, arr(2, 3)), (call, arr(3))))
    assert set(map(str, found)) == set(map(str, expected))
    np.testing.assert_allclose(mapped(arr(2, 3)), np.sin(arr(2, 3)) * 2, rtol=1e-5)


EXPLICIT, AUTO = AxisType.Explicit, AxisType.Auto


def row(x: Any, w: Any) -> Any:
    return jnp.sin(x) * w, (x * w).sum()


@pytest.fixture(autouse=True, scope="module")
def _exported_outside_of_any_mesh() -> None:
    """Whichever test is the first: one that has set a mesh would export for that mesh."""
    row_call(False)
    row_call(True)


@functools.cache
def row_call(batch: bool) -> Callable[..., Any]:
    (b,) = jaxexp.symbolic_shape("b")
    size, how = ((b, 4), {"batch_dim": "b"}) if batch else ((4,), {})
    return reload(jaxexp.export(jax.jit(LIVE[batch]), **how)(spec(size), spec(size)), 2).call


def batched_row(x: Any, w: Any) -> Any:
    return jnp.sin(x) * w, (x * w).sum(1)


LIVE = {False: row, True: batched_row}


def assert_same(transform: Any, batch: bool, *args: Any, hows: Any = (eager, jax.jit)) -> None:
    """Values and shardings of the live function's results."""
    for how in hows:
        found, expected = (how(transform(f))(*args) for f in (row_call(batch), LIVE[batch]))
        assert_same_values(found, expected)
        assert_same_placement(found, expected)


SHARDED = [(EXPLICIT, 0, (eager, jax.jit)), (EXPLICIT, 1, (jax.jit,)), (AUTO, 1, (jax.jit,)), (AUTO, 0, (eager,))]


@each("axis_type, axis, hows", SHARDED)
def test_sharded_batch(axis_type: AxisType, axis: int, hows: Any) -> None:
    m = mesh((4, 2), ("x", "y"), axis_type)
    w = jax.device_put(arr(4, seed=1), NamedSharding(m, P()))
    partition = P("x", None) if axis == 0 else P(None, "x")
    x = jax.device_put(arr(8, 4) if axis == 0 else arr(4, 8), NamedSharding(m, partition))
    assert_same(lambda f: jax.vmap(f, (axis, None)), False, x, w, hows=hows)


@each("axis_type, how", [(EXPLICIT, eager), (AUTO, jax.jit)])
def test_sharded_batch_in_one_call(axis_type: AxisType, how: Any) -> None:
    m = mesh((4, 2), ("x", "y"), axis_type)
    x = jax.device_put(arr(8, 3, 4), NamedSharding(m, P("x")))
    w = jax.device_put(arr(3, 4, seed=1), NamedSharding(m, P()))
    assert_same(lambda f: jax.vmap(f, (0, None)), True, x, w, hows=[how])
    assert operations(jax.vmap(row_call(True), (0, None)), x, w) == ONE


@each("batch, how", [(False, jax.jit), (True, eager)])
def test_gradient_over_an_explicitly_sharded_batch(batch: bool, how: Any) -> None:
    m = mesh((8,), ("x",), EXPLICIT)
    x = jax.device_put(arr(8, 3, 4) if batch else arr(8, 4), NamedSharding(m, P("x")))
    w = arr(3, 4, seed=1) if batch else arr(4, seed=1)
    with jax.set_mesh(m):  # the live function needs it, too, where nothing is jitted
        assert_same(lambda f: jax.vmap(jax.grad(lambda x, w: f(x, w)[0].sum()), (0, None)), batch, x, w, hows=[how])


def test_two_sharded_axes() -> None:
    """The mapped axis over one axis of an Explicit mesh, a dimension of the function's own over the other."""
    m = mesh((4, 2), ("x", "y"), EXPLICIT)
    x = jax.device_put(arr(8, 4), NamedSharding(m, P("x", "y")))
    w = jax.device_put(arr(4, seed=1), NamedSharding(m, P("y")))
    found, expected = (jax.jit(jax.vmap(f, (0, None)))(x, w) for f in (row_call(False), row))
    assert_same_values(found, expected)
    assert [r.sharding.spec[0] for r in found] == [r.sharding.spec[0] for r in expected] == ["x", "x"]


@each("axis_type", [EXPLICIT, AUTO])
def test_function_with_shardings_of_its_own(axis_type: AxisType) -> None:
    """The exported function is sharded over one axis of the mesh, its batch over the other one."""
    m = mesh((2, 4), ("batch", "model"), axis_type)
    s, t = NamedSharding(m, P("model")), NamedSharding(m, P("batch", "model"))
    fun = jax.jit(lambda x: jnp.sin(x) * 2, in_shardings=s, out_shardings=s)
    call = reload(jaxexp.export(fun)(jax.device_put(arr(4), s))).call
    found = jax.jit(jax.vmap(call))(jax.device_put(arr(6, 4), t))
    np.testing.assert_allclose(found, np.sin(arr(6, 4)) * 2, rtol=1e-5)
    assert found.sharding.is_equivalent_to(t, 2)


def test_memory_kinds() -> None:
    p = CASES["memory_kinds"].build()
    call = reload(export_with(jaxexp, p)).call
    stacked = [jax.device_put(np.stack([a, a]), a.sharding.update(spec=P(None, *a.sharding.spec))) for a in p.args]
    found, expected = (jax.jit(jax.vmap(f))(*stacked) for f in (call, p.live))
    assert_same_values(found, expected)
    assert [r.sharding.memory_kind for r in found] == [r.sharding.memory_kind for r in expected]


def test_spmd_axis_name() -> None:
    m = mesh((8,), ("x",))
    with jax.set_mesh(m):
        x, w = jax.device_put(arr(8, 4), P()), arr(4)
        for batch, args in ((False, (x, w)), (True, (jax.device_put(arr(8, 3, 4), P()), arr(3, 4)))):
            found = jax.jit(jax.vmap(row_call(batch), (0, None), spmd_axis_name="x"))(*args)
            assert_same_values(found, jax.vmap(LIVE[batch], (0, None))(*args))
            assert [r.sharding.spec[0] for r in found] == ["x", "x"]
    # Without a mesh there is nothing to be sharded over.
    found = jax.vmap(row_call(False), (0, None), spmd_axis_name="x")(arr(8, 4), w)
    assert_same_values(found, jax.vmap(row, (0, None))(arr(8, 4), w))
