"""`jax.vmap` of loaded functions: one call after the other, or one call where a batch dimension was declared."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax._src import core
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp import _jax
from jaxexp._call.primitive import call_exported_p, pushforward_p
from jaxexp._module import mlir
from kit.compare import assert_same_placement, assert_same_values
from kit.corpus import CASES, arr, export_with, f32, mesh, spec, touch


def reload(exported: Any, vjp_order: int = 0) -> jaxexp.Exported:
    return jaxexp.deserialize(bytes(exported.serialize(vjp_order=vjp_order)))


def operations(fun: Callable[..., Any], *args: Any) -> list[str]:
    """The calls of exported functions, and the loops, in the jaxpr of a function."""
    found: list[str] = []

    def walk(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            if eqn.primitive in (call_exported_p, pushforward_p) or eqn.primitive.name in ("scan", "while"):
                found.append(eqn.primitive.name)
            for inner in core.jaxprs_in_params(eqn.params):
                walk(inner)

    walk(jax.make_jaxpr(fun)(*args).jaxpr)
    return sorted(found)


LOOP, ONE = ["call_exported", "scan"], ["call_exported"]


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
    "first": ((0, None, None), (X, {"w": W[0], "b": B[0]}, N[0])),
    "inside a dict": ((None, {"w": None, "b": 0}, None), (X[0], {"w": W[0], "b": B}, N[0])),
    "whole dict": ((None, 0, None), (X[0], {"w": W, "b": B}, N[0])),
    "integer": ((None, None, 0), (X[0], {"w": W[0], "b": B[0]}, N)),
    "negative": ((-1, {"w": -2, "b": 1}, -1), (X.T, {"w": W.transpose(1, 0, 2), "b": B.T}, N)),
    "last": ((1, {"w": 2, "b": None}, None), (X.T, {"w": W.transpose(1, 2, 0), "b": B[0]}, N[0])),
}


@pytest.mark.parametrize("how", ["eager", "jit outside", "jit inside"])
@pytest.mark.parametrize("out_axes", [0, (1, 0), (-1, -1)], ids=str)
@pytest.mark.parametrize("name", AXES)
def test_axes(name: str, out_axes: Any, how: str) -> None:
    in_axes, args = AXES[name]

    def run(f: Any) -> Any:
        f = jax.jit(positional(f)) if how == "jit inside" else positional(f)
        mapped = jax.vmap(f, in_axes, out_axes)
        return (jax.jit(mapped) if how == "jit outside" else mapped)(*args)

    assert_same_values(run(affine_call()), run(affine))


@pytest.mark.parametrize("size", [0, 1, 5])
def test_sizes(size: int) -> None:
    run = lambda f: jax.vmap(positional(f), (0, None, None))(arr(size, 4), {"w": W[0], "b": B[0]}, N[0])  # noqa: E731
    assert_same_values(run(affine_call()), run(affine))


def test_nothing_is_mapped() -> None:
    """One call, whose result JAX repeats."""
    run = lambda f: jax.vmap(lambda: f(X[0], {"w": W[0], "b": B[0]}, n=N[0]), axis_size=3)()  # noqa: E731
    assert_same_values(run(affine_call()), run(affine))
    unused = lambda f: jax.vmap(lambda x: f(X[0], {"w": W[0], "b": B[0]}, n=N[0]))  # noqa: E731
    assert operations(unused(affine_call()), X) == ONE


def test_nested() -> None:
    def run(f: Any) -> Any:
        inner = jax.vmap(positional(f), (0, None, None))
        middle = jax.vmap(inner, (None, {"w": 0, "b": None}, 0))
        return jax.vmap(middle, (0, None, None), 1)(arr(2, 3, 4), {"w": W, "b": B[0]}, N)

    assert_same_values(run(affine_call()), run(affine))


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "vmap of grad": lambda f: jax.vmap(jax.grad(lambda *a: f(*a)[0].sum(), (0, 1)), (0, None, 0)),
    "grad of vmap": lambda f: jax.grad(lambda *a: jnp.sum(jax.vmap(f, (0, None, 0))(*a)[0] ** 2), (0, 1)),
    "vmap of jacfwd": lambda f: jax.vmap(jax.jacfwd(lambda *a: f(*a)[0]), (0, None, 0)),
    "vmap of jacrev": lambda f: jax.vmap(jax.jacrev(lambda *a: f(*a)[0], 1), (0, None, 0)),
    "vmap of hessian": lambda f: jax.vmap(jax.hessian(lambda *a: f(*a)[0]), (0, None, 0)),
    "jacfwd of vmap": lambda f: jax.jacfwd(lambda *a: jax.vmap(f, (0, None, 0))(*a)[0]),
    "vmap of jvp": lambda f: jax.vmap(lambda x, p, n: jax.jvp(lambda x: f(x, p, n)[0], (x,), (x,)), (0, None, 0)),
    "grad of vmap of grad": lambda f: jax.grad(
        lambda *a: jnp.sum(jax.vmap(jax.grad(lambda *a: f(*a)[0].sum()), (0, None, 0))(*a) ** 2)
    ),
    "vmap of vjp, integers included": lambda f: jax.vmap(
        lambda *a: jax.vjp(f, *a)[1]((jnp.ones(2), np.zeros((), jax.dtypes.float0))), (0, None, 0)
    ),
}


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name: str, how: str) -> None:
    args = X, {"w": W[0], "b": B[0]}, N

    def run(f: Any) -> Any:
        g = DERIVATIVES[name](positional(f))
        return (jax.jit(g) if how == "jit" else g)(*args)

    assert_same_values(run(affine_call()), run(affine), rtol=1e-4)


def test_mapped_float0() -> None:
    """Cotangents of integers that are mapped themselves."""
    vjp = jaxexp.export(jax.jit(lambda x, n: (x * n, n)))(f32(0), np.int32(0)).vjp()
    loaded = reload(vjp)
    mapped = jax.vmap(loaded.call)(arr(3), N, arr(3), np.zeros(3, jax.dtypes.float0))
    np.testing.assert_allclose(mapped[0], arr(3) * N, rtol=1e-6)
    assert mapped[1].shape == (3,)
    assert mapped[1].dtype == jax.dtypes.float0


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys(impl: str, how: str) -> None:
    fun = jax.jit(lambda key, x: (jax.random.split(key, 2), jax.random.uniform(key, x.shape) + x, x > 1))
    keys = jax.random.split(jax.random.key(3, impl=impl), 4)
    call = reload(jaxexp.export(fun)(keys[0], spec((3,)))).call
    for in_axes, args in (((0, None), (keys, arr(3))), ((0, 1), (keys, arr(3, 4))), ((None, 0), (keys[0], arr(4, 3)))):
        # A batch of rbg keys gives other numbers than its keys one by one, so that is what to compare with.
        one = lambda i, a=args, ax=in_axes: [v if x is None else jnp.take(v, i, x) for v, x in zip(a, ax, strict=True)]  # noqa: E731
        expected = jax.tree.map(lambda *rows: jnp.stack(rows), *[fun(*one(i)) for i in range(4)])
        mapped = jax.vmap(call, in_axes)
        assert_same_values((jax.jit(mapped) if how == "jit" else mapped)(*args), expected)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "complex64", "int4", "float8_e5m2"])
def test_dtypes(dtype: str) -> None:
    """Whatever the argument's dtype and the result's are."""
    fun = jax.jit(lambda x, z: (x, z.astype(jnp.float32) if x.dtype == bool else z))
    x, z = np.ones((3, 2), dtype), (arr(3) + 1).astype(np.float32)
    call = reload(jaxexp.export(fun)(spec((2,), x.dtype), spec(()))).call
    assert_same_values(jax.vmap(call)(x, z), jax.vmap(fun)(x, z))
    assert_same_values(jax.jit(jax.vmap(call, (None, 0)))(x[0], z), jax.vmap(fun, (None, 0))(x[0], z))


@pytest.mark.parametrize("name", ["nested_containers", "custom_node", "dropped", "zero_size", "multi_platform", "scan",
                                  "no_results", "all_dropped", "complex_numbers", "standard_dtypes"])  # fmt: skip
def test_corpus(name: str) -> None:
    p = CASES[name].build()
    stacked = jax.tree.map(lambda x: jnp.stack([x, x, x]), p.args)
    call = reload(export_with(jaxexp, p)).call
    assert_same_values(jax.vmap(call)(*stacked), jax.vmap(p.live)(*stacked))
    assert_same_values(jax.jit(jax.vmap(call))(*stacked), jax.vmap(p.live)(*stacked))


def test_symbolic_sizes() -> None:
    """A mapped call may be exported for any size of the mapped axis."""
    b, c = jaxexp.symbolic_shape("b, c")
    inner = reload(jaxexp.export(jax.jit(lambda x: jnp.sin(x) * x.sum()))(spec((b,))), 1)
    for fun in (jax.vmap(inner.call), jax.vmap(jax.grad(lambda x: inner.call(x).sum()))):
        outer = reload(jaxexp.export(jax.jit(fun))(spec((b, c))))
        assert_same_values(outer.call(arr(2, 3)), fun(arr(2, 3)))


# --- effects --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["eager", "jit"])
def test_ordered_effects(how: str) -> None:
    call = reload(jaxexp.export(jax.jit(lambda x, y: touch(touch(x, "first"), "second") + y))(arr(3), arr(3))).call
    mapped = jax.vmap(call, (0, None))
    with pytest.raises(jaxexp.ExportError, match=r"vmap of .*ordered effects.*First.*Second.*scan") as error:
        (jax.jit(mapped) if how == "jit" else mapped)(arr(2, 3), arr(3))
    assert isinstance(error.value, NotImplementedError)
    # A call that is not part of the batch runs once.
    unmapped = jax.vmap(lambda x: x + call(arr(3), arr(3)))
    np.testing.assert_allclose(jax.jit(unmapped)(arr(2, 3)), arr(2, 3) + np.sin(np.sin(arr(3))) + arr(3), rtol=1e-5)


def test_unordered_effects() -> None:
    call = reload(jaxexp.export(jax.jit(lambda x: touch(x, "unordered") * 2))(arr(3))).call
    mapped = jax.jit(jax.vmap(call))
    assert {str(e) for e in jax.make_jaxpr(mapped)(arr(2, 3)).effects} == {
        str(e) for e in jax.make_jaxpr(call)(arr(3)).effects
    }
    np.testing.assert_allclose(mapped(arr(2, 3)), np.sin(arr(2, 3)) * 2, rtol=1e-5)


# --- shardings ------------------------------------------------------------------------------------------------------

EXPLICIT, AUTO = AxisType.Explicit, AxisType.Auto


def row(x: Any, w: Any) -> Any:
    return jnp.sin(x) * w, (x * w).sum()


@functools.cache
def row_call(batch: bool) -> Callable[..., Any]:
    (b,) = jaxexp.symbolic_shape("b")
    if batch:
        fun = jax.jit(lambda x, w: (jnp.sin(x) * w, (x * w).sum(1)))
        return reload(jaxexp.export(fun, batch_dim="b")(spec((b, 4)), spec((b, 4))), 2).call
    return reload(jaxexp.export(jax.jit(row))(spec((4,)), spec((4,))), 2).call


def batched_row(x: Any, w: Any) -> Any:
    return jnp.sin(x) * w, (x * w).sum(1)


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("axis_type", [EXPLICIT, AUTO], ids=lambda t: t.name)
def test_sharded_batch(axis_type: AxisType, axis: int, how: str) -> None:
    """Values and shardings of the live function's results."""
    m = mesh((4, 2), ("x", "y"), axis_type)
    partition = P("x", None) if axis == 0 else P(None, "x")
    x = jax.device_put(arr(8, 4) if axis == 0 else arr(4, 8), NamedSharding(m, partition))
    w = jax.device_put(arr(4, seed=1), NamedSharding(m, P()))

    def run(f: Any) -> Any:
        mapped = jax.vmap(f, (axis, None))
        return (jax.jit(mapped) if how == "jit" else mapped)(x, w)

    found, expected = run(row_call(False)), run(row)
    assert_same_values(found, expected)
    assert_same_placement(found, expected)


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("axis_type", [EXPLICIT, AUTO], ids=lambda t: t.name)
def test_sharded_batch_in_one_call(axis_type: AxisType, how: str) -> None:
    m = mesh((4, 2), ("x", "y"), axis_type)
    x = jax.device_put(arr(8, 3, 4), NamedSharding(m, P("x")))
    w = jax.device_put(arr(3, 4, seed=1), NamedSharding(m, P()))

    def run(f: Any) -> Any:
        mapped = jax.vmap(f, (0, None))
        return (jax.jit(mapped) if how == "jit" else mapped)(x, w)

    found, expected = run(row_call(True)), run(batched_row)
    assert_same_values(found, expected)
    assert_same_placement(found, expected)
    assert operations(jax.vmap(row_call(True), (0, None)), x, w) == ONE


@pytest.mark.parametrize("batch", [False, True], ids=["loop", "one call"])
@pytest.mark.parametrize("how", ["eager", "jit"])
def test_gradient_over_an_explicitly_sharded_batch(how: str, batch: bool) -> None:
    m = mesh((8,), ("x",), EXPLICIT)
    x = jax.device_put(arr(8, 3, 4) if batch else arr(8, 4), NamedSharding(m, P("x")))
    w = arr(3, 4, seed=1) if batch else arr(4, seed=1)
    live = batched_row if batch else row

    def run(f: Any) -> Any:
        g = jax.vmap(jax.grad(lambda x, w: f(x, w)[0].sum()), (0, None))
        return (jax.jit(g) if how == "jit" else g)(x, w)

    with jax.set_mesh(m):  # the live function needs it, too, where nothing is jitted
        found, expected = run(row_call(batch)), run(live)
    assert_same_values(found, expected)
    assert_same_placement(found, expected)


def test_mesh_from_the_context() -> None:
    m = mesh((8,), ("x",), EXPLICIT)
    with jax.set_mesh(m):
        x, w = jax.device_put(arr(8, 4), P("x")), arr(4, seed=1)
        for how in (jax.jit, lambda f: f):
            found, expected = (how(jax.vmap(f, (0, None)))(x, w) for f in (row_call(False), row))
            assert_same_values(found, expected)
            assert_same_placement(found, expected)


def test_two_sharded_axes() -> None:
    """The mapped axis over one axis of an Explicit mesh, a dimension of the function's own over the other."""
    m = mesh((4, 2), ("x", "y"), EXPLICIT)
    x = jax.device_put(arr(8, 4), NamedSharding(m, P("x", "y")))
    w = jax.device_put(arr(4, seed=1), NamedSharding(m, P("y")))
    found, expected = (jax.jit(jax.vmap(f, (0, None)))(x, w) for f in (row_call(False), row))
    assert_same_values(found, expected)
    assert [r.sharding.spec[0] for r in found] == [r.sharding.spec[0] for r in expected] == ["x", "x"]


@pytest.mark.parametrize("axis_type", [EXPLICIT, AUTO], ids=lambda t: t.name)
def test_function_with_shardings_of_its_own(axis_type: AxisType) -> None:
    """The exported function is sharded over one axis of the mesh, its batch over the other one."""
    m = mesh((2, 4), ("batch", "model"), axis_type)
    s, t = NamedSharding(m, P("model")), NamedSharding(m, P("batch", "model"))
    one = jax.device_put(arr(4), s)
    fun = jax.jit(lambda x: jnp.sin(x) * 2, in_shardings=s, out_shardings=s)
    call = reload(jaxexp.export(fun)(one)).call
    x = jax.device_put(arr(6, 4), t)
    found = jax.jit(jax.vmap(call))(x)
    np.testing.assert_allclose(found, np.sin(arr(6, 4)) * 2, rtol=1e-5)
    assert found.sharding.is_equivalent_to(t, 2)


def test_memory_kinds() -> None:
    """Arguments and results that live on the host."""
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
            assert_same_values(found, jax.vmap(batched_row if batch else row, (0, None))(*args))
            assert [r.sharding.spec[0] for r in found] == ["x", "x"]
    # Without a mesh there is nothing to be sharded over.
    found = jax.vmap(row_call(False), (0, None), spmd_axis_name="x")(arr(8, 4), w)
    assert_same_values(found, jax.vmap(row, (0, None))(arr(8, 4), w))


# --- batch_dim: the declaration -------------------------------------------------------------------------------------


def dims(text: str, **kwargs: Any) -> tuple[Any, ...]:
    return jaxexp.symbolic_shape(text, **kwargs)


def rows(x: Any, w: Any, n: Any) -> Any:
    """Rows are independent of one another: float32[b, 4], float32[4, 2], int32[b] -> {"y": [b, 2], "n": [b]}"""
    return {"y": jnp.tanh(x @ w) * n[:, None], "n": n + 1}


@functools.cache
def rows_bytes(batch_dim: str | None = "b", constraints: tuple[str, ...] = ()) -> bytes:
    (b,) = dims("b", constraints=constraints)
    specs = spec((b, 4)), spec((4, 2)), spec((b,), np.int32)
    return bytes(jaxexp.export(jax.jit(rows), batch_dim=batch_dim)(*specs).serialize(vjp_order=2))


def rows_loaded(**kwargs: Any) -> jaxexp.Exported:
    return jaxexp.deserialize(rows_bytes(**kwargs))


@functools.cache
def pointwise_bytes() -> bytes:
    """Every differentiable argument has the batch dimension: so have the VJPs."""
    (b,) = dims("b")
    exported = jaxexp.export(jax.jit(pointwise), batch_dim="b")(spec((b, 4)), spec((b, 4)), spec((4,), np.int32))
    return bytes(exported.serialize(vjp_order=4))


def pointwise(x: Any, y: Any, n: Any) -> Any:
    return jnp.sin(x) * jnp.sum(y * n, axis=1, keepdims=True), jnp.cos(y).sum(1)


def pointwise_loaded() -> jaxexp.Exported:
    return jaxexp.deserialize(pointwise_bytes())


def test_the_declaration_is_a_property() -> None:
    (b,) = dims("b")
    plain = jaxexp.export(jax.jit(jnp.sin))
    assert plain(spec((b,))).batch_dim is None
    assert plain(spec((3,))).batch_dim is None
    assert reload(plain(spec((b,)))).batch_dim is None
    assert jaxexp.export(jax.jit(jnp.sin), batch_dim="b")(spec((b,))).batch_dim == "b"
    assert rows_loaded().batch_dim == "b"
    assert rows_loaded(batch_dim=None).batch_dim is None
    assert rows_loaded() != rows_loaded(batch_dim=None)
    with pytest.raises(AttributeError):
        rows_loaded().batch_dim = "c"


def test_vjps_have_the_batch_if_all_that_is_differentiated_has() -> None:
    assert [e.batch_dim for e in (rows_loaded(), rows_loaded().vjp(), rows_loaded().vjp().vjp())] == ["b", None, None]
    link = pointwise_loaded()
    for _ in range(4):
        assert link.batch_dim == "b"
        link = link.vjp()


def test_the_declaration_survives() -> None:
    """Each library's reading and writing, and crossing over between them."""
    ours = rows_loaded()
    theirs = jax_export.deserialize(bytearray(rows_bytes()))
    again = jax_export.deserialize(theirs.serialize(vjp_order=1))
    for exported in (
        jaxexp.deserialize(ours.serialize(1)),
        jaxexp.deserialize(theirs.serialize(1)),
        jaxexp.deserialize(again.serialize(1)),
        jaxexp.Exported.from_jax(again),
        jaxexp.Exported.from_jax(ours.to_jax()),
        jaxexp.deserialize(ours.to_jax().serialize(1)),
    ):
        assert exported.batch_dim == "b"
        assert operations(jax.vmap(exported.call, (0, None, None)), *ROWS) == ONE
    chain = jax_export.deserialize(bytearray(pointwise_bytes()))
    assert jaxexp.deserialize(chain.serialize(2)).vjp().vjp().batch_dim == "b"


def test_jax_export_takes_no_notice() -> None:
    theirs = jax_export.deserialize(bytearray(rows_bytes()))
    one = ROWS[0][0], ROWS[1], ROWS[2]
    assert_same_values(theirs.call(*one), rows(*one))
    assert_same_values(jax.jit(theirs.call)(*one), rows(*one))
    grad = jax.grad(lambda w: theirs.call(one[0], w, one[2])["y"].sum())(one[1])
    assert_same_values(grad, jax.grad(lambda w: rows(one[0], w, one[2])["y"].sum())(one[1]))


def test_a_caller_does_not_inherit_it() -> None:
    (b,) = dims("b")
    call = rows_loaded().call
    outer = jaxexp.export(jax.jit(lambda x, w, n: call(x, w, n)["y"].sum(0)))(
        spec((b, 4)), spec((4, 2)), spec((b,), np.int32)
    )
    assert "batch_dim" not in outer.mlir_module()
    assert outer.batch_dim is None
    assert "batch_dim" not in jax.jit(call).lower(*(ROWS[0][0], *ROWS[1:])).as_text()


def test_a_new_process_reads_it(tmp_path, subprocess_env) -> None:
    (tmp_path / "f").write_bytes(pointwise_bytes())
    code = f"import jaxexp; f = jaxexp.load({str(tmp_path / 'f')!r}); print(f.batch_dim, f.vjp().batch_dim)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=subprocess_env(), capture_output=True, text=True, check=False
    )
    assert done.stdout == "b b\n", done.stderr


WRONG: dict[str, tuple[Any, Callable[..., Any], tuple[Any, ...], str]] = {
    "no such dimension": ("c", jnp.sin, (("b",),), r"batch_dim='c'.*no argument has.*: b$"),
    "no dimension at all": ("b", jnp.sin, ((3,),), r"no argument has.*none"),
    "not leading": ("b", jnp.sin, ((2, "b"),), r"x.*\(2, b\).*leading"),
    "leading and elsewhere": ("b", jnp.sin, (("b", "b"),), r"x.*\(b, b\).*leading"),
    "in an expression": ("b", jnp.sin, (("2*b",),), r"x.*\(2\*b\).*leading"),
    "in another argument": ("b", lambda x, y: (x, y), (("b",), (3, "b + 1")), r"args\[1\].*\(3, b \+ 1\).*leading"),
    "result without it": ("b", lambda x: {"s": x.sum(), "x": x}, (("b",),), r"result\['s'\].*\(\).*every result"),
    "result in an expression": ("b", lambda x: [jnp.concatenate([x, x])], (("b",),), r"result\[0\].*\(2\*b\).*leading"),
    "result with it elsewhere": ("b", lambda x: x.T, (("b", 2),), r"result.*\(2, b\).*leading"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_what_the_shapes_contradict(mistake: str) -> None:
    batch_dim, fun, shapes, message = WRONG[mistake]
    scope = jaxexp.SymbolicScope()
    text = [", ".join(map(str, shape)) + "," for shape in shapes]
    specs = [spec(jaxexp.symbolic_shape(t, scope=scope)) for t in text]

    def named(x: Any, *y: Any) -> Any:
        return fun(x, *y)

    if len(specs) > 1:
        named = lambda x, y: fun(x, y)  # noqa: E731
    with pytest.raises(jaxexp.ExportError, match=message):
        jaxexp.export(jax.jit(named), batch_dim=batch_dim)(*specs)
    assert jaxexp.export(jax.jit(named))(*specs).batch_dim is None


@pytest.mark.parametrize("wrong", [3, b"b", ["b"], True], ids=repr)
def test_batch_dim_is_no_string(wrong: Any) -> None:
    (b,) = dims("b")
    with pytest.raises(jaxexp.ExportError, match=r"batch_dim.*str"):
        jaxexp.export(jax.jit(jnp.sin), batch_dim=wrong)(spec((b,)))
    with pytest.raises(jaxexp.ExportError, match=r"batch_dim.*str"):
        jaxexp.export(jax.jit(jnp.sin), batch_dim=b)(spec((b,)))


def with_attribute(exported: jaxexp.Exported, attribute: str, name: str = "jaxexp.batch_dim") -> jaxexp.Exported:
    """The function with another attribute in its module, as any writer could put it there."""
    with _jax.make_ir_context() as context:
        module = mlir.parse(exported.mlir_module_serialized, context)
        module.operation.attributes[name] = _jax.ir.Attribute.parse(attribute)
        return dataclasses.replace(exported, mlir_module_serialized=mlir.serialize(module))


@pytest.mark.parametrize("attribute", ['"c"', '""', '"w"', "7 : i32", "unit", '["b"]', '"b, c"'])
def test_a_false_declaration_is_ignored(attribute: str) -> None:
    """The loop is right whatever the attribute says."""
    hostile = reload(with_attribute(rows_loaded(), attribute), 1)
    assert hostile.batch_dim is None
    mapped = jax.vmap(hostile.call, (0, None, None))
    assert operations(mapped, *ROWS) == LOOP
    assert_same_values(mapped(*ROWS), jax.vmap(rows, (0, None, None))(*ROWS))


def test_a_declaration_that_the_shapes_contradict_is_ignored() -> None:
    (b,) = dims("b")
    total = jaxexp.export(jax.jit(lambda x: x - x.sum(0)))(spec((2, b)))
    hostile = reload(with_attribute(total, '"b"'))
    assert hostile.batch_dim is None
    assert_same_values(jax.vmap(hostile.call)(arr(5, 2, 3)), arr(5, 2, 3) - arr(5, 2, 3).sum(1, keepdims=True))


# --- batch_dim: one call --------------------------------------------------------------------------------------------

ROWS = arr(5, 3, 4), arr(4, 2), np.arange(3, dtype=np.int32)
FOLDED = {
    "one": ((0, None, None), ROWS),
    "both": ((0, None, 0), (*ROWS[:2], np.arange(15, dtype=np.int32).reshape(5, 3))),
    "integer": ((None, None, 1), (arr(3, 4), ROWS[1], np.arange(15, dtype=np.int32).reshape(3, 5))),
    "negative": ((-1, None, None), (arr(3, 4, 5), *ROWS[1:])),
    "middle": ((1, None, None), (arr(3, 5, 4), *ROWS[1:])),
}


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("name", FOLDED)
def test_one_call(name: str, how: str) -> None:
    in_axes, args = FOLDED[name]
    call = rows_loaded().call
    for out_axes in (0, 1, {"y": -1, "n": 0}):
        mapped, live = (jax.vmap(f, in_axes, out_axes) for f in (call, rows))
        assert operations(mapped, *args) == ONE
        assert_same_values((jax.jit(mapped) if how == "jit" else mapped)(*args), live(*args))


@pytest.mark.parametrize("size", [0, 1])
def test_one_call_of_small_batches(size: int) -> None:
    """A dimension variable is at least 1, so an empty batch takes the other way."""
    args = arr(size, 3, 4), *ROWS[1:]
    mapped, live = (jax.vmap(f, (0, None, None)) for f in (rows_loaded().call, rows))
    assert_same_values(mapped(*args), live(*args))
    assert operations(mapped, *args) == (ONE if size else LOOP)


def test_nested_maps_fold_twice() -> None:
    def nested(f: Any) -> Any:
        return jax.vmap(jax.vmap(f, (0, None, None)), (1, None, 0), 2)

    args = arr(5, 2, 3, 4), ROWS[1], np.arange(6, dtype=np.int32).reshape(2, 3)
    assert operations(nested(rows_loaded().call), *args) == ONE
    assert_same_values(nested(rows_loaded().call)(*args), nested(rows)(*args))


def test_other_arguments_take_the_loop() -> None:
    args = ROWS[0][0], arr(5, 4, 2), ROWS[2]
    mapped, live = (jax.vmap(f, (None, 0, None)) for f in (rows_loaded().call, rows))
    assert operations(mapped, *args) == LOOP
    assert_same_values(mapped(*args), live(*args))
    both = arr(5, 3, 4), arr(5, 4, 2), ROWS[2]
    mapped, live = (jax.vmap(f, (0, 0, None)) for f in (rows_loaded().call, rows))
    assert operations(mapped, *both) == LOOP
    assert_same_values(mapped(*both), live(*both))
    # One map after the other: the loop's body is one call for the other map.
    mapped, live = (jax.vmap(jax.vmap(f, (None, 0, None)), (0, None, None)) for f in (rows_loaded().call, rows))
    assert operations(mapped, *both) == LOOP
    assert_same_values(mapped(*both), live(*both))


def test_constraints_that_are_none() -> None:
    """Constraints are stored next to the declaration; nonsense there leaves the loop, too."""
    constrained = with_attribute(rows_loaded(constraints=("b <= 8",)), '"b <"', "jaxexp.batch_constraints")
    assert rows_loaded(constraints=("b <= 8",)).batch_dim == "b"
    assert constrained.batch_dim is None


@pytest.mark.parametrize("constraint", ["b <= 8", "mod(b, 4) == 3"])
def test_constraints_on_the_batch(constraint: str) -> None:
    loaded = rows_loaded(constraints=(constraint,))
    mapped, live = (jax.vmap(f, (0, None, None)) for f in (loaded.call, rows))
    for size, expected in ((5, ONE if "mod" in constraint else LOOP), (2, LOOP if "mod" in constraint else ONE)):
        args = arr(size, 3, 4), *ROWS[1:]
        assert operations(mapped, *args) == expected
        assert_same_values(mapped(*args), live(*args))


def test_constraints_on_several_dimension_variables() -> None:
    b, k = dims("b, k", constraints=["b <= 2*k", "k >= 2"])
    exported = jaxexp.export(jax.jit(lambda x, t: x * t.sum()), batch_dim="b")(spec((b,)), spec((k,)))
    for one in (exported, reload(exported)):
        mapped = jax.vmap(one.call, (0, None))
        for length, expected in ((8, ONE), (7, LOOP)):
            args = arr(5, 3), arr(length)
            assert operations(mapped, *args) == expected
            assert_same_values(mapped(*args), args[0] * args[1].sum())
    with pytest.raises(jaxexp.ExportError, match=r"b <= 2\*k"):
        jax.vmap(exported.call, (0, None))(arr(5, 3), arr(1))


POINTWISE = arr(5, 3, 4), arr(3, 4, seed=1), np.arange(4, dtype=np.int32)
PER_ROW: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: jax.grad(lambda x, y, n: sum(r.sum() for r in f(x, y, n)), (0, 1)),
    "grad of one result": lambda f: jax.grad(lambda x, y, n: f(x, y, n)[0].sum()),
    "value and vjp": lambda f: lambda x, y, n: jax.vjp(f, x, y, n)[1]((x, y[:, 0])),
    "jvp": lambda f: lambda x, y, n: jax.jvp(lambda x: f(x, y, n), (x,), (x + 1,)),
    "hvp": lambda f: lambda x, y, n: jax.jvp(jax.grad(lambda x: f(x, y, n)[0].sum()), (x,), (x + 1,)),
    "grad of grad": lambda f: jax.grad(lambda x, y, n: jnp.sum(jax.grad(lambda x: f(x, y, n)[0].sum())(x) ** 2)),
}


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("name", PER_ROW)
def test_derivatives_are_one_call_each(name: str, how: str) -> None:
    mapped, live = (jax.vmap(PER_ROW[name](f), (0, None, None)) for f in (pointwise_loaded().call, pointwise))
    assert "scan" not in operations(mapped, *POINTWISE)
    assert_same_values((jax.jit(mapped) if how == "jit" else mapped)(*POINTWISE), live(*POINTWISE), rtol=1e-4)


@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "hessian", "grad of vmap"])
def test_jacobians(name: str) -> None:
    def run(f: Any) -> Any:
        g = lambda x: f(x, POINTWISE[1], POINTWISE[2])[0]  # noqa: E731
        if name == "grad of vmap":
            return jax.grad(lambda x: jnp.sum(jax.vmap(g)(x) ** 2)), POINTWISE[0]
        return getattr(jax, name)(g), POINTWISE[0][0]

    (found, x), (expected, _) = run(pointwise_loaded().call), run(pointwise)
    assert "scan" not in operations(found, x)
    assert_same_values(found(x), expected(x), rtol=1e-4)


def test_gradient_of_shared_parameters_takes_the_loop() -> None:
    """Such a gradient sums over the batch, so elements of the map must not share a call."""
    g = lambda f: jax.vmap(jax.grad(lambda x, w, n: f(x, w, n)["y"].sum(), (0, 1)), (0, None, None))  # noqa: E731
    assert operations(g(rows_loaded().call), *ROWS).count("scan") == 1
    assert_same_values(g(rows_loaded().call)(*ROWS), g(rows)(*ROWS))


def test_fresh_export_and_several_dimension_variables() -> None:
    b, k = dims("b, k", constraints=["k >= 2"])
    fun = jax.jit(lambda key, x, table: (jax.vmap(jax.random.uniform)(key) + x.sum(1), table[None, :k] * x))
    keys = jax.ShapeDtypeStruct((b,), jax.random.key(0).dtype)
    exported = jaxexp.export(fun, batch_dim="b", platforms=("cpu", "tpu"))(keys, spec((b, k)), spec((k,)))
    args = jax.random.split(jax.random.key(1), (5, 3)), arr(5, 3, 2), arr(2)
    live = jax.vmap(lambda key, x, t: (jax.vmap(jax.random.uniform)(key) + x.sum(1), t[None] * x), (0, 0, None))
    for one in (exported, reload(exported)):
        mapped = jax.vmap(one.call, (0, 0, None))
        assert operations(mapped, *args) == ONE
        assert_same_values(mapped(*args), live(*args))


def test_one_call_of_symbolic_size() -> None:
    """Exported again, with the mapped axis and the batch both symbolic."""
    m, b = dims("m, b")
    mapped = jax.vmap(rows_loaded().call, (0, None, None))
    outer = reload(jaxexp.export(jax.jit(mapped))(spec((m, b, 4)), spec((4, 2)), spec((b,), np.int32)))
    assert_same_values(outer.call(*ROWS), jax.vmap(rows, (0, None, None))(*ROWS))
