"""`raised()` and `jaxpr()`: the function for tracing, and for reading."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import mlir
from jaxexp._readback.read_back import OPERATIONS
from jaxexp.errors import ExportError, UnsupportedError
from kit.batches import loaded, reload
from kit.compiled import compiling
from kit.corpus import arr, spec
from kit.each import each
from kit.other_modules import from_text, serialized
from kit.raising import assert_same_bits

pytestmark = pytest.mark.jax


@jax.jit
def one_step(c: Any, w: Any, i: Any) -> Any:
    return jnp.tanh(c @ w + i) * jnp.where(c > 0, 1, 2) / c.sum()


def recurrent(x: Any, w: Any) -> Any:
    """float32[4], float32[4, 4] -> {"last": [4], "all": [5, 4]}"""
    last, every = jax.lax.scan(lambda c, i: (one_step(c, w, i), c), x, jnp.arange(5, dtype=np.float32))
    return {"last": last, "all": every}


X, W = arr(4), arr(4, 4, seed=1)


def test_no_call_is_left() -> None:
    exported = loaded(recurrent, X, W)
    text = str(jax.make_jaxpr(exported.raised())(X, W))
    assert "call_exported" not in text
    assert "scan" in text
    found, expected = jax.jit(exported.raised())(X, W), exported.call(X, W)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert_same_bits(jax.tree.leaves(found), jax.tree.leaves(expected))


@each("how", [jax.grad, jax.jacfwd, jax.linearize])
def test_no_derivatives(how: Any) -> None:
    """stop_gradient is not in a module: the gradient of what was read back would be another one."""
    exported = loaded(lambda x: (jax.lax.stop_gradient(x) * x).sum(), X)
    np.testing.assert_allclose(jax.grad(exported.call)(X), X)
    with pytest.raises(UnsupportedError, match=r"stop_gradient.*stored VJPs"):
        how(exported.raised())(X) if how is not jax.linearize else how(exported.raised(), X)


def test_other_platforms() -> None:
    exported = loaded(recurrent, X, W)
    again = jaxexp.export(jax.jit(exported.raised()), platforms=["cpu", "cuda", "tpu"])(X, W)
    assert again.platforms == ("cpu", "cuda", "tpu")
    assert_same_bits(jax.tree.leaves(again.call(X, W)), jax.tree.leaves(exported.call(X, W)))


def test_foreign_functions_stay_on_their_platform() -> None:
    exported = loaded(jnp.linalg.cholesky, np.eye(3, dtype=np.float32))
    matrix = 2 * np.eye(3, dtype=np.float32)
    assert_same_bits([exported.raised()(matrix)], [exported.call(matrix)])
    batch = np.stack([matrix, 3 * matrix])
    assert_same_bits([jax.vmap(exported.raised())(batch)], [np.stack(list(map(exported.call, batch)))])
    message = r"lowering cholesky.raised\(\) for tpu: it calls lapack_spotrf_ffi, available only on cpu"
    with pytest.raises(UnsupportedError, match=message):
        jaxexp.export(jax.jit(exported.raised()), platforms=["tpu"])(matrix)


def test_jaxpr() -> None:
    exported = loaded(recurrent, X, W)
    closed = exported.make_jaxpr()
    assert [str(v.aval) for v in closed.jaxpr.invars] == ["float32[4]", "float32[4,4]"]
    assert [e.primitive.name for e in closed.jaxpr.eqns].count("scan") == 1
    assert "while" not in str(closed)
    assert "one_step" in str(closed)
    assert_same_bits(jax.jit(jax.extend.core.jaxpr_as_fun(closed))(X, W), jax.tree.leaves(exported.call(X, W)))


def test_jaxpr_of_symbolic_shapes() -> None:
    (b,) = jaxexp.symbolic_shape("b")
    exported = loaded(lambda x: x.sum(0), spec((b, 3)))
    with pytest.raises(ExportError, match=r"symbolic shapes.*ShapeDtypeStruct"):
        exported.make_jaxpr()
    assert [str(v.aval) for v in exported.make_jaxpr(spec((7, 3))).jaxpr.invars] == ["float32[7,3]"]
    with pytest.raises(ExportError, match="tree structure"):
        exported.make_jaxpr(spec((7, 3)), spec(()))
    with pytest.raises(ExportError, match="rank 2"):
        exported.make_jaxpr(spec((7,)))


def test_what_cannot_be_read_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATIONS, "stablehlo.cosine", lambda operation: operation.refuse("in this test"))
    with pytest.raises(UnsupportedError, match=r"stablehlo.cosine \(in this test\) at jit\(<lambda>\)/cos"):
        loaded(lambda x: jax.lax.cos(x), X).make_jaxpr()


REGION = """({
^bb0(%a: tensor<f32>, %b: tensor<f32>):
  %c = stablehlo.multiply %b, %y : tensor<f32>
  %s = stablehlo.OPERATION
  stablehlo.return %s : tensor<RESULT>
})"""
SUM = REGION.replace("OPERATION", "add %a, %c : tensor<f32>").replace("RESULT", "f32")
LESS = REGION.replace("OPERATION", "compare LT, %a, %c : (tensor<f32>, tensor<f32>) -> tensor<i1>").replace(
    "RESULT", "i1"
)
INDICES = "#stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
X4, Y1 = "tensor<4xf32>", "tensor<f32>"
ONE = "<{window_dimensions = array<i64: 1>}>"
# The rest of each operation, and its result's type.
CAPTURING = {
    "reduce": (f"(%x, %y) <{{dimensions = array<i64: 0>}}> {SUM} : ({X4}, {Y1})", Y1),
    "reduce_window": (f"(%x, %y) <{{window_dimensions = array<i64: 4>}}> {SUM} : ({X4}, {Y1})", "tensor<1xf32>"),
    "scatter": (f"(%x, %i, %x) <{{scatter_dimension_numbers = {INDICES}}}> {SUM} : ({X4}, tensor<4x1xi32>, {X4})", X4),
    "select_and_scatter": (f"(%x, %x, %y) {ONE} ({LESS[1:-1]}, {SUM[1:-1]}) : ({X4}, {X4}, {Y1})", X4),
    "sort": (f"(%x) {LESS} : ({X4})", X4),
}


@each("name", CAPTURING)
def test_regions_that_use_values_from_around_them(name: str) -> None:
    """JAX does not make such a region, and no compiler takes it: there is nothing that it could be read back as."""
    rest, result = CAPTURING[name]
    exported = from_text(f'''func.func @main(%x: {X4}, %y: {Y1}) -> {result} {{
        %i = stablehlo.iota dim = 0 : tensor<4x1xi32>
        %r = "stablehlo.{name}"{rest} -> {result}
        return %r : {result} }}''')
    with pytest.raises(UnsupportedError, match=rf"{name} \(whose region uses values from around it\)"):
        exported.make_jaxpr()
    with compiling(), pytest.raises(Exception, match="in the parent region"):
        exported.call(X, np.float32(2))


OTHER_TOP_K = {
    "an order of all floats": (": (tensor<f32>, tensor<f32>) -> tensor<i1>", ", TOTALORDER {0}", "another order"),
    "another last number": ("dense<0xFF800000>", "dense<0x7F800000>", "other initial values"),
    "another place": ("dense<-1>", "dense<77>", "other initial values"),
    "no axis": ("reduction_dim =", "an_axis =", "without reduction_dim"),
}


@each("what", OTHER_TOP_K)
def test_approximate_top_k_is_that_of_jax(what: str) -> None:
    """XLA computes with what JAX leaves no choice of."""
    old, new, message = OTHER_TOP_K[what]
    exported = jaxexp.export(jax.jit(lambda x: jax.lax.approx_max_k(x, 1)))(arr(1, 4))
    assert loaded(lambda x: jax.lax.approx_max_k(x, 1), arr(1, 4)).make_jaxpr()
    with _jax.make_ir_context() as context:
        text = str(mlir.parse(exported.mlir_module_serialized, context))
    assert old in text
    changed = dataclasses.replace(exported, mlir_module_serialized=serialized(text.replace(old, new.format(old), 1)))
    with pytest.raises(UnsupportedError, match=message):
        jaxexp.deserialize(changed.serialize()).make_jaxpr()


@each("sizes", [(2, 2), (2, 3)])
def test_a_broadcast_that_transposes(sizes: tuple[int, int]) -> None:
    """JAX does not write that, and takes it for nothing where the shape stays the same."""
    rows, columns = sizes
    taken, given = f"tensor<{rows}x{columns}xf32>", f"tensor<{columns}x{rows}xf32>"
    exported = from_text(f"""func.func @main(%x: {taken}) -> {given} {{
        %y = stablehlo.broadcast_in_dim %x, dims = [1, 0] : ({taken}) -> {given}
        return %y : {given} }}""")
    x = arr(rows, columns)
    assert_same_bits([exported.call(x), exported.raised()(x), jax.vmap(exported.call)(x[None])[0]], [x.T] * 3)


def test_a_state_of_random_bits_that_jax_has_not() -> None:
    text = """func.func @main(%s: tensor<3xui64>) -> tensor<5xui32> {
        %a, %b = stablehlo.rng_bit_generator %s, algorithm = PHILOX
          : (tensor<3xui64>) -> (tensor<3xui64>, tensor<5xui32>)
        return %b : tensor<5xui32> }"""
    with jax.enable_x64(True):
        exported = from_text(text)
        with pytest.raises(UnsupportedError, match="a state of a type that JAX does not use"):
            exported.make_jaxpr()


@each("size", [1, 4])
def test_rows_of_a_loop_that_repeat_a_number(size: int) -> None:
    """A row is made in the shape that the loop writes, even if that repeats an axis of length 1."""

    def f(x: Any, v: Any) -> Any:
        def body(state: Any) -> Any:
            i, out = state
            row = jax.lax.broadcast_in_dim(v * (i + 1.0), (1, 4), (1,))
            return i + 1, jax.lax.dynamic_update_slice(out, row, (i, 0), allow_negative_indices=False)

        return jax.lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]

    x, v = np.zeros((3, 4), np.float32), np.ones(size, np.float32)
    exported = reload(jaxexp.export(jax.jit(f))(x, v))
    np.testing.assert_array_equal(exported.raised()(x, v), f(x, v))
    np.testing.assert_array_equal(jax.vmap(exported.call)(x[None], v[None]), f(x, v)[None])
