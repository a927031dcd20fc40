"""`jax.vmap` of loaded functions whose batch dimension was declared: one call."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import mlir
from kit.batches import MAPPED, ONE, operations, reload, rows
from kit.compare import assert_same_values
from kit.corpus import arr, spec
from kit.each import each

pytestmark = pytest.mark.jax


@functools.cache
def rows_bytes(batch_dim: str | None = "b", constraints: tuple[str, ...] = ()) -> bytes:
    (b,) = jaxexp.symbolic_shape("b", constraints=constraints)
    specs = spec((b, 4)), spec((4, 2)), spec((b,), np.int32)
    return bytes(jaxexp.export(jax.jit(rows), batch_dim=batch_dim)(*specs).serialize(vjp_order=2))


def rows_loaded(**kwargs: Any) -> jaxexp.Exported:
    return jaxexp.deserialize(rows_bytes(**kwargs))


@functools.cache
def pointwise_loaded() -> jaxexp.Exported:
    """Every differentiable argument has the batch dimension: so have the VJPs."""
    (b,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(pointwise), batch_dim="b")(spec((b, 4)), spec((b, 4)), spec((4,), np.int32))
    return reload(exported, 3)


def pointwise(x: Any, y: Any, n: Any) -> Any:
    return jnp.sin(x) * jnp.sum(y * n, axis=1, keepdims=True), jnp.cos(y).sum(1)


def test_the_declaration_is_a_property() -> None:
    (b,) = jaxexp.symbolic_shape("b")
    plain = jaxexp.export(jax.jit(jnp.sin))
    assert [one.batch_dim for one in (plain(spec((b,))), plain(spec((3,))), reload(plain(spec((b,)))))] == [None] * 3
    assert jaxexp.export(jax.jit(jnp.sin), batch_dim="b")(spec((b,))).batch_dim == "b"
    assert rows_loaded().batch_dim == "b"
    assert rows_loaded(batch_dim=None).batch_dim is None
    assert rows_loaded() != rows_loaded(batch_dim=None)
    with pytest.raises(AttributeError):
        rows_loaded().batch_dim = "c"
    for wrong in (3, ["b"], b):
        with pytest.raises(jaxexp.errors.ExportError, match=r"batch_dim.*str"):
            jaxexp.export(jax.jit(jnp.sin), batch_dim=wrong)(spec((b,)))


def test_vjps_have_the_batch_if_all_that_is_differentiated_has() -> None:
    assert rows_loaded().vjp().batch_dim is None
    assert pointwise_loaded().vjp().vjp().vjp().batch_dim == "b"


def test_the_declaration_survives() -> None:
    """Each library's reading and writing, and crossing over between them; jax.export takes no notice."""
    ours = rows_loaded()
    theirs = jax_export.deserialize(bytearray(rows_bytes()))
    again = jax_export.deserialize(theirs.serialize(vjp_order=1))
    for exported in (
        jaxexp.deserialize(again.serialize(1)),
        jaxexp.Exported.from_jax(again),
        jaxexp.Exported.from_jax(ours.to_jax()),
    ):
        assert exported.batch_dim == "b"
        assert operations(jax.vmap(exported.call, (0, None, None)), *ROWS) == ONE
    chain = jax_export.deserialize(bytearray(pointwise_loaded().serialize(3)))
    assert jaxexp.deserialize(chain.serialize(2)).vjp().vjp().batch_dim == "b"
    one = ROWS[0][0], *ROWS[1:]
    assert_same_values(theirs.call(*one), rows(*one))


def test_a_caller_does_not_inherit_it() -> None:
    (b,) = jaxexp.symbolic_shape("b")
    call = rows_loaded().call
    outer = jaxexp.export(jax.jit(call))(spec((b, 4)), spec((4, 2)), spec((b,), np.int32))
    assert "batch_dim" not in outer.mlir_module()
    assert outer.batch_dim is None


WRONG: dict[str, tuple[Any, Callable[..., Any], tuple[Any, ...], str]] = {
    "no such dimension": ("c", jnp.sin, (("b",),), r"batch_dim='c'.*no argument has.*: b$"),
    "no dimension at all": ("b", jnp.sin, ((3,),), r"no argument has.*none"),
    "not leading": ("b", jnp.sin, ((2, "b"),), r"x.*\(2, b\).*leading"),
    "in an expression": ("b", jnp.sin, (("2*b",),), r"x.*\(2\*b\).*leading"),
    "in another argument": ("b", lambda x, y: (x, y), (("b",), (3, "b + 1")), r"args\[1\].*\(3, b \+ 1\).*leading"),
    "result without it": ("b", lambda x: {"s": x.sum(), "x": x}, (("b",),), r"result\['s'\].*\(\).*every result"),
    "result with it elsewhere": ("b", lambda x: x.T, (("b", 2),), r"result.*\(2, b\).*leading"),
}


@each("mistake", WRONG)
def test_what_the_shapes_contradict(mistake: str) -> None:
    batch_dim, fun, shapes, message = WRONG[mistake]
    scope = jaxexp.SymbolicScope()
    specs = [spec(jaxexp.symbolic_shape(", ".join(map(str, shape)) + ",", scope=scope)) for shape in shapes]
    named = (lambda x: fun(x)) if len(specs) == 1 else (lambda x, y: fun(x, y))
    with pytest.raises(jaxexp.errors.ExportError, match=message):
        jaxexp.export(jax.jit(named), batch_dim=batch_dim)(*specs)
    assert jaxexp.export(jax.jit(named))(*specs).batch_dim is None


def with_attribute(exported: jaxexp.Exported, attribute: str, name: str = "jaxexp.batch_dim") -> jaxexp.Exported:
    """The function with another attribute in its module, as any writer could put it there."""
    with _jax.make_ir_context() as context:
        module = mlir.parse(exported.mlir_module_serialized, context)
        module.operation.attributes[name] = _jax.ir.Attribute.parse(attribute)
        return dataclasses.replace(exported, mlir_module_serialized=mlir.serialize(module))


@each("attribute", ['"c"', '""', "7 : i32", '"b, c"'])
def test_a_false_declaration_is_ignored(attribute: str) -> None:
    """A mapped call is right whatever the attribute says."""
    hostile = reload(with_attribute(rows_loaded(), attribute), 1)
    assert hostile.batch_dim is None
    if attribute != '"c"':
        return
    mapped = jax.vmap(hostile.call, (0, None, None))
    assert operations(mapped, *ROWS) == MAPPED
    assert_same_values(mapped(*ROWS), jax.vmap(rows, (0, None, None))(*ROWS))


def test_a_declaration_that_the_shapes_contradict_is_ignored() -> None:
    (b,) = jaxexp.symbolic_shape("b")
    total = jaxexp.export(jax.jit(lambda x: x - x.sum(0)))(spec((2, b)))
    hostile = reload(with_attribute(total, '"b"'))
    assert hostile.batch_dim is None
    assert_same_values(jax.vmap(hostile.call)(arr(5, 2, 3)), arr(5, 2, 3) - arr(5, 2, 3).sum(1, keepdims=True))


ROWS = arr(5, 3, 4), arr(4, 2), np.arange(3, dtype=np.int32)
FOLDED = {
    "one": ((0, None, None), ROWS),
    "both": ((0, None, 0), (*ROWS[:2], np.arange(15, dtype=np.int32).reshape(5, 3))),
    "integer": ((None, None, -1), (arr(3, 4), ROWS[1], np.arange(15, dtype=np.int32).reshape(3, 5))),
    "middle": ((1, None, None), (arr(3, 5, 4), *ROWS[1:])),
}


@each("name", FOLDED)
def test_one_call(name: str) -> None:
    in_axes, args = FOLDED[name]
    call = rows_loaded().call
    for out_axes in (0, {"y": -1, "n": 0}) if name == "one" else (1,):
        mapped, live = (jax.vmap(f, in_axes, out_axes) for f in (call, rows))
        assert operations(mapped, *args) == ONE
        assert_same_values(jax.jit(mapped)(*args), jax.jit(live)(*args))
    if name == "both":
        assert_same_values(mapped(*args), live(*args))


def over(*in_axes: Any, inside: Any = lambda f: f) -> Callable[[Any], Any]:
    return lambda f: jax.vmap(inside(f), in_axes)


def gradient_of_parameters(f: Any) -> Any:
    """Such a gradient sums over the batch, so elements of the map must not share a call."""
    return jax.grad(lambda x, w, n: f(x, w, n)["y"].sum(), (0, 1))


SIX, BOTH = np.arange(6, dtype=np.int32).reshape(2, 3), (arr(5, 3, 4), arr(5, 4, 2), ROWS[2])
MAPS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...], list[str]]] = {
    "two maps that fold": (over(1, None, 0, inside=over(0, None, None)), (arr(5, 2, 3, 4), ROWS[1], SIX), ONE),
    "parameters, too": (over(0, 0, None), BOTH, MAPPED),
    "parameters first": (over(0, None, None, inside=over(None, 0, None)), BOTH, MAPPED),  # which is mapped once more
    "gradient of parameters": (over(0, None, None, inside=gradient_of_parameters), ROWS, [*ONE, *MAPPED]),
}


@each("name", MAPS)
def test_maps(name: str) -> None:
    transform, args, expected = MAPS[name]
    assert operations(transform(rows_loaded().call), *args) == expected
    assert_same_values(transform(rows_loaded().call)(*args), transform(rows)(*args))


# A dimension variable is at least 1, so an empty batch takes the other way.
BATCHES = [
    ((), 0, MAPPED), (("b <= 8",), 5, MAPPED), (("b <= 8",), 2, ONE), (("mod(b, 4) == 3",), 5, ONE),
    (("mod(b, 4) == 3",), 2, MAPPED),
]  # fmt: skip


@each("constraints, size, expected", BATCHES)
def test_constraints_on_the_batch(constraints: tuple[str, ...], size: int, expected: list[str]) -> None:
    args = arr(size, 3, 4), *ROWS[1:]
    mapped, live = (over(0, None, None)(f) for f in (rows_loaded(constraints=constraints).call, rows))
    assert operations(mapped, *args) == expected
    assert_same_values(mapped(*args), live(*args))


def test_constraints_on_several_dimension_variables() -> None:
    b, k = jaxexp.symbolic_shape("b, k", constraints=["b <= 2*k", "k >= 2"])
    exported = jaxexp.export(jax.jit(lambda x, t: x * t.sum()), batch_dim="b")(spec((b,)), spec((k,)))
    for one in (exported, reload(exported)):
        mapped = jax.vmap(one.call, (0, None))
        for length, expected in ((8, ONE), (7, MAPPED)):
            args = arr(5, 3), arr(length)
            assert operations(mapped, *args) == expected
            assert_same_values(mapped(*args), args[0] * args[1].sum())
    with pytest.raises(jaxexp.errors.ExportError, match=r"b <= 2\*k"):
        jax.vmap(exported.call, (0, None))(arr(5, 3), arr(1))


POINTWISE = arr(5, 3, 4), arr(3, 4, seed=1), np.arange(4, dtype=np.int32)
PER_ROW: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: jax.grad(lambda x, y, n: sum(r.sum() for r in f(x, y, n)), (0, 1)),
    "value and vjp": lambda f: lambda x, y, n: jax.vjp(f, x, y, n)[1]((x, y[:, 0])),
    "jvp": lambda f: lambda x, y, n: jax.jvp(lambda x: f(x, y, n), (x,), (x + 1,)),
    "hvp": lambda f: lambda x, y, n: jax.jvp(jax.grad(lambda x: f(x, y, n)[0].sum()), (x,), (x + 1,)),
    "grad of grad": lambda f: jax.grad(lambda x, y, n: jnp.sum(jax.grad(lambda x: f(x, y, n)[0].sum())(x) ** 2)),
}


@pytest.mark.wide(one_in=2, promise="derivatives of declared batches are one call each")
@pytest.mark.parametrize("name", PER_ROW)
def test_derivatives_are_one_call_each(name: str) -> None:
    mapped, live = (jax.vmap(PER_ROW[name](f), (0, None, None)) for f in (pointwise_loaded().call, pointwise))
    assert "scan" not in operations(mapped, *POINTWISE)
    expected = jax.jit(live)(*POINTWISE)
    for how in (jax.jit, lambda f: f) if name == "grad" else (jax.jit,):
        assert_same_values(how(mapped)(*POINTWISE), expected, rtol=1e-4)


@each("name", ["hessian", "grad of vmap"])
def test_jacobians(name: str) -> None:
    def run(f: Any) -> Any:
        g = lambda x: f(x, POINTWISE[1], POINTWISE[2])[0]  # noqa: E731
        if name == "grad of vmap":
            return jax.grad(lambda x: jnp.sum(jax.vmap(g)(x) ** 2)), POINTWISE[0]
        return jax.hessian(g), POINTWISE[0][0]

    (found, x), (expected, _) = run(pointwise_loaded().call), run(pointwise)
    assert "scan" not in operations(found, x)
    assert_same_values(jax.jit(found)(x), jax.jit(expected)(x), rtol=1e-4)


def test_one_call_of_symbolic_size() -> None:
    m, b = jaxexp.symbolic_shape("m, b")
    mapped = jax.vmap(rows_loaded().call, (0, None, None))
    outer = reload(jaxexp.export(jax.jit(mapped))(spec((m, b, 4)), spec((4, 2)), spec((b,), np.int32)))
    assert_same_values(outer.call(*ROWS), jax.vmap(rows, (0, None, None))(*ROWS))


def test_keys_and_several_platforms() -> None:
    b, k = jaxexp.symbolic_shape("b, k", constraints=["k >= 2"])
    fun = jax.jit(lambda key, x, table: (jax.vmap(jax.random.uniform)(key) + x.sum(1), table[None, :k] * x))
    keys = jax.ShapeDtypeStruct((b,), jax.random.key(0).dtype)
    exported = jaxexp.export(fun, batch_dim="b", platforms=("cpu", "tpu"))(keys, spec((b, k)), spec((k,)))
    args = jax.random.split(jax.random.key(1), (5, 3)), arr(5, 3, 2), arr(2)
    mapped = jax.vmap(reload(exported).call, (0, 0, None))
    assert operations(mapped, *args) == ONE
    live = jax.vmap(lambda key, x, t: (jax.vmap(jax.random.uniform)(key) + x.sum(1), t[None] * x), (0, 0, None))
    assert_same_values(mapped(*args), live(*args))


def scaled(x: Any, y: Any) -> Any:
    return x * y.sum()


def test_an_argument_that_gets_another_name() -> None:
    """If it gets that of the batch, there is none any more."""
    b, c = jaxexp.symbolic_shape("b, c")
    exported = jaxexp.export(jax.jit(scaled), batch_dim="b")(spec((b,)), spec((c,)))
    (n,) = jaxexp.symbolic_shape("b")
    same = exported.specialize(spec((n,)), spec((n,)))
    x, y = arr(2, 3), arr(2, 3) + 1
    assert same.batch_dim is None
    for in_axes, given in (((0, 0), (x, y)), ((0, None), (x, y[0]))):
        assert_same_values(jax.vmap(reload(same).call, in_axes)(*given), jax.vmap(scaled, in_axes)(*given))
    (n,) = jaxexp.symbolic_shape("n")
    other = reload(exported.specialize(spec((n,)), spec((4,))))
    assert other.batch_dim == "n"
    assert_same_values(jax.vmap(other.call, (0, None))(x, arr(4)), jax.vmap(scaled, (0, None))(x, arr(4)))


def test_a_batch_that_gets_constraints() -> None:
    """One call for both elements would have a batch of 16."""
    (n,) = jaxexp.symbolic_shape("b", constraints=["b <= 8"])
    (b,) = jaxexp.symbolic_shape("b")
    small = jaxexp.export(jax.jit(lambda x: x * 2), batch_dim="b")(spec((b,))).specialize(spec((n,)))
    for exported in (small, reload(small)):
        assert_same_values(jax.vmap(exported.call)(arr(2, 8)), arr(2, 8) * 2)
