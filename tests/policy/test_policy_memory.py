"""A module that a policy allowed reads and writes no memory but its own, also where its code is none of JAX's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import confined, mlir, runnable
from kit.compare import assert_same_values
from kit.corpus import arr, mesh
from kit.each import each
from kit.other_modules import from_text, serialized
from kit.places import GOLDEN

pytestmark = pytest.mark.jax

F32 = np.float32


def allowed(exported: jaxexp.Exported) -> jaxexp.Exported:
    return jaxexp.deserialize(exported.serialize(), policy=jaxexp.Policy())


def with_module(exported: jaxexp.Exported, text: str) -> jaxexp.Exported:
    return dataclasses.replace(exported, mlir_module_serialized=serialized(text))


def with_text(old: str, new: str, function: Any, *args: Any) -> jaxexp.Exported:
    """An exported function with something else in its module."""
    exported = jaxexp.export(jax.jit(function))(*args)
    with _jax.make_ir_context() as context:
        text = str(mlir.parse(exported.mlir_module_serialized, context))
        assert old in text, text
        return with_module(exported, text.replace(old, new))


# --- sorts -----------------------------------------------------------------------------------------------------------

SORT = """module @f { func.func public @main(%x: tensor<SIZExf32>) -> tensor<SIZExf32> {
  %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = false}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %d = stablehlo.subtract %a, %b : tensor<f32>
      %c = stablehlo.constant dense<1.5> : tensor<f32>
      %t = stablehlo.compare HOW, OF, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
  }) : (tensor<SIZExf32>) -> tensor<SIZExf32>
  return %0 : tensor<SIZExf32> } }"""
NO_ORDERS = {"near": ("LT", "%d, %c"), "not equal": ("NE", "%a, %b"), "at most": ("LE", "%a, %b")}


@each("name, size", [("near", 3000), ("not equal", 200), ("at most", 33)])
def test_a_sort_without_an_order_stays_within_its_array(name: str, size: int) -> None:
    """The C++ library's sort, with which XLA sorts on a CPU, would leave it."""
    how, of = NO_ORDERS[name]
    text = SORT.replace("SIZE", str(size)).replace("HOW", how).replace("OF", of)
    function = allowed(from_text(text))
    rng = np.random.default_rng(size)
    for values in (2, 5, 100):
        x = rng.integers(0, values, size).astype(F32)
        for found in (function.call(x), jax.vmap(function.call)(x[None])[0]):
            np.testing.assert_array_equal(np.sort(np.asarray(found)), np.sort(x))


# In place of %d, another number each time, or one of other code.
NO_FUNCTIONS = {
    "random": "%d = stablehlo.rng %z, %z, %shape, distribution = UNIFORM",
    "from outside": '%d, %u = "stablehlo.infeed"(%token) <{infeed_config = ""}>',
    "a call": "%d = func.call @g(%a)",
    "a custom call": "%d = stablehlo.custom_call @jaxexp_other(%a)",
    "a composite": '%d = stablehlo.composite "some.thing" %a {decomposition = @g}',
}
TYPES = {
    "random": "(tensor<f32>, tensor<f32>, tensor<0xi64>) -> tensor<f32>",
    "from outside": "(!stablehlo.token) -> (tensor<f32>, !stablehlo.token)",
}
ONE_OF_FOUR = """%one = stablehlo.slice %four [1:2] : (tensor<4xf32>) -> tensor<1xf32>
      %d = stablehlo.reshape %one : (tensor<1xf32>) -> tensor<f32>"""
ARRAYS = {
    "of its own": f"%four = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<4xf32>\n{ONE_OF_FOUR}",
    "a constant": f"%four = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>\n{ONE_OF_FOUR}",
    "from around it": """%d = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
      : (tensor<33xf32>, tensor<f32>) -> tensor<f32>""",
}
COMPARED_BY_OTHERS = """module @f { func.func public @main(%x: tensor<33xf32>) -> tensor<33xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %shape = stablehlo.constant dense<> : tensor<0xi64>
  %token = stablehlo.create_token : !stablehlo.token
  %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %truth = stablehlo.compare LT, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %t = "stablehlo.if"(%truth) ({
        OTHER : TYPES
        %s = stablehlo.compare LT, %d, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %s : tensor<i1>
      }, { stablehlo.return %truth : tensor<i1> }) : (tensor<i1>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
  }) : (tensor<33xf32>) -> tensor<33xf32>
  return %0 : tensor<33xf32> }
  func.func private @g(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> } }"""


@each("name", [*NO_FUNCTIONS, *ARRAYS])
def test_sorts_compare_elements_alone(name: str) -> None:
    """A stable sort, too, leaves its array if two comparisons of the same elements differ. Arrays are on the stack."""
    types = TYPES.get(name, "(tensor<f32>) -> tensor<f32>")
    exported = jaxexp.export(jax.jit(lambda x: x))(arr(33))
    plain = COMPARED_BY_OTHERS.replace("OTHER : TYPES", "%d = stablehlo.negate %a : tensor<f32>")
    assert with_module(exported, plain).call(arr(33)).shape == (33,)
    text = COMPARED_BY_OTHERS.replace("OTHER : TYPES", ARRAYS.get(name, f"{NO_FUNCTIONS.get(name)} : {types}"))
    blob = with_module(exported, text).serialize()
    message = "a sort that (may compare the same elements with different results|compares by more than numbers)"
    with pytest.raises(jaxexp.DeserializationError, match=message):
        jaxexp.deserialize(blob, policy=jaxexp.Policy(custom_calls=None, effects=None))
    with pytest.raises(jaxexp.DeserializationError, match=message):
        jaxexp.deserialize(blob).call(arr(33))


def test_sorts_of_trusted_functions_stay_as_they_are() -> None:
    exported = jaxexp.export(jax.jit(lambda x: jax.lax.sort((x, -x), is_stable=False)))(arr(9))
    blob = exported.serialize()
    for policy in (None, jaxexp.Policy()):
        loaded = jaxexp.deserialize(blob, policy=policy)
        assert loaded.mlir_module() == exported.mlir_module()
        assert_same_values(loaded.call(arr(9)), exported.call(arr(9)))


@each("symbolic", [False, True])
def test_comparators_of_approximate_top_k(symbolic: bool) -> None:
    size = jaxexp.symbolic_shape("n")[0] if symbolic else 64
    spec = jax.ShapeDtypeStruct((size, 64) if symbolic else (2, 64), F32)
    x = arr(2, 64)
    for function in (jax.lax.approx_max_k, jax.lax.approx_min_k):
        exported = jaxexp.export(jax.jit(lambda x, function=function: function(x, 3)))(spec)
        assert_same_values(allowed(exported).call(x), exported.call(x))
        (direction,) = {"GT", "LT"} & set(exported.mlir_module().replace(",", " ").split())
        changed = with_text(f"compare {direction}, %arg0", "compare GE, %arg0", lambda x, f=function: f(x, 3), spec)
        with pytest.raises(jaxexp.PolicyError, match="is not the order of its first two arguments"):
            allowed(changed)
        jaxexp.deserialize(changed.serialize(), policy=jaxexp.Policy(custom_calls=None))


# --- what LAPACK does not write --------------------------------------------------------------------------------------

ROUTINES = {
    "gesdd": (lambda x: jnp.linalg.svd(x, compute_uv=False), "mode = 78 : ui8", [2, 3]),
    "geev": (jnp.linalg.eigvals, "compute_left = 78 : ui8", [2, 3]),
    "gees": (lambda x: jax.lax.linalg.schur(x), "mode = 86 : ui8", [1]),
}


@pytest.fixture(autouse=True)
def used_memory() -> Iterator[None]:
    """Memory that is free has something in it."""
    kept = [np.full(1 << 12, 77, np.uint8) for _ in range(200)]
    del kept
    yield


@each("name, symbolic", [("gesdd", False), ("gesdd", True), ("geev", False), ("gees", True)])
def test_results_that_are_not_computed_are_zeros(name: str, symbolic: bool) -> None:
    """A call is told not to compute them, and its module returns them all the same."""
    function, choice, unwritten = ROUTINES[name]
    (batch,) = jaxexp.symbolic_shape("b") if symbolic else (3,)
    spec = jax.ShapeDtypeStruct((batch, 8, 8), F32)
    exported = jaxexp.export(jax.jit(function))(spec)
    with _jax.make_ir_context() as context:
        module = mlir.parse(exported.mlir_module_serialized, context)
        (call,) = (op for target, op in mlir.custom_calls(module) if target == f"lapack_s{name}_ffi")
        if name == "gees":
            config = str(call.attributes["mhlo.backend_config"])
            assert choice in config
            call.attributes["mhlo.backend_config"] = _jax.ir.Attribute.parse(config.replace(choice, "mode = 78 : ui8"))
        confined.confine(module, b"")
        for number in unwritten:  # nobody uses them in what JAX writes, except for those of gees
            users = {use.owner.operation.name for use in call.results[number].uses}
            assert users <= {"stablehlo.compare", "stablehlo.get_dimension_size"}
    x = arr(3, 8, 8)
    assert_same_values(allowed(exported).call(x), exported.call(x))


def test_vectors_that_nobody_computes() -> None:
    text = """module @f { func.func public @main(%x: tensor<16x64xf32>) -> (tensor<16x64xf32>, tensor<64x64xf32>) {
      %0:5 = stablehlo.custom_call @lapack_sgesdd_ffi(%x) {api_version = 4 : i32,
        backend_config = {mode = 78 : ui8}, operand_layouts = [dense<[0, 1]> : tensor<2xindex>],
        result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<0> : tensor<1xindex>,
          dense<[0, 1]> : tensor<2xindex>, dense<[0, 1]> : tensor<2xindex>, dense<> : tensor<0xindex>]}
        : (tensor<16x64xf32>) -> (tensor<16x64xf32>, tensor<16xf32>, tensor<16x64xf32>, tensor<64x64xf32>, tensor<i32>)
      return %0#2, %0#3 : tensor<16x64xf32>, tensor<64x64xf32> } }"""
    function = allowed(from_text(text))
    for _ in range(20):
        for found in function.call(arr(16, 64)):
            assert not np.asarray(found).any()


def test_a_routine_that_fails_gives_zeros() -> None:
    """It says so in its last result; JAX's modules make NaN of the others, and this one does not look."""
    text = """module @f { func.func public @main(%x: tensor<2x8x8xf32>) -> (tensor<2x8x8xf32>, tensor<2xi32>) {
      %0:5 = stablehlo.custom_call @lapack_sgesdd_ffi(%x) {api_version = 4 : i32,
        backend_config = {mode = 65 : ui8}, operand_layouts = [dense<[1, 2, 0]> : tensor<3xindex>],
        result_layouts = [dense<[1, 2, 0]> : tensor<3xindex>, dense<[1, 0]> : tensor<2xindex>,
          dense<[1, 2, 0]> : tensor<3xindex>, dense<[1, 2, 0]> : tensor<3xindex>, dense<0> : tensor<1xindex>]}
        : (tensor<2x8x8xf32>) -> (tensor<2x8x8xf32>, tensor<2x8xf32>, tensor<2x8x8xf32>, tensor<2x8x8xf32>,
          tensor<2xi32>)
      return %0#2, %0#4 : tensor<2x8x8xf32>, tensor<2xi32> } }"""
    x = np.array(arr(2, 8, 8))
    x[1, 3, 3] = np.nan
    vectors, failed = map(np.asarray, allowed(from_text(text)).call(x))
    assert failed[0] == 0
    assert failed[1] != 0
    np.testing.assert_allclose(vectors[0] @ vectors[0].T, np.eye(8), atol=1e-5)
    assert not vectors[1].any()


def lapack(target: str, choices: str, arrays: str, results: str, at: int) -> str:
    """A module that calls a routine and returns one of its results; arrays such as 2x3xf32."""

    def layout(array: str) -> str:
        rank = array.count("x")
        order = [*range(rank)] if rank < 2 else [rank - 2, rank - 1, *reversed(range(rank - 2))]
        return f"dense<{order or ''}> : tensor<{rank}xindex>"

    given, made = arrays.split(), results.split()
    names = ", ".join(f"%{i}: tensor<{array}>" for i, array in enumerate(given))
    types = [", ".join(f"tensor<{array}>" for array in group) for group in (given, made)]
    layouts = [", ".join(map(layout, group)) for group in (given, made)]
    return f"""module @f {{ func.func public @main({names}) -> tensor<{made[at]}> {{
      %r:{len(made)} = stablehlo.custom_call @{target}({", ".join(f"%{i}" for i in range(len(given)))}) {{
        api_version = 4 : i32, backend_config = {{{choices}}}, operand_layouts = [{layouts[0]}],
        result_layouts = [{layouts[1]}]}} : ({types[0]}) -> ({types[1]})
      return %r#{at} : tensor<{made[at]}> }} }}"""


GTSV = "lapack_sgtsv_ffi", ""
SVD = "lapack_sgesdd_ffi", "mode = 65 : ui8"
EMPTY = {
    # Its loop over the columns runs once if there are none, and writes one.
    "gtsv": (*GTSV, "1000xf32 1000xf32 1000xf32 1000x0xf32", "1000xf32 1000xf32 1000xf32 1000x0xf32 i32", 0),
    "gtsv, info": (*GTSV, "2x9xf32 2x9xf32 2x9xf32 2x9x0xf32", "2x9xf32 2x9xf32 2x9xf32 2x9x0xf32 2xi32", 4),
    "potrf": ("lapack_spotrf_ffi", "uplo = 76 : ui8", "2x0x0xf32", "2x0x0xf32 2xi32", 1),
    "getrf": ("lapack_sgetrf_ffi", "", "2x0x3xf32", "2x0x3xf32 2x0xi32 2xi32", 0),
    "gees": (
        "lapack_sgees_ffi",
        "mode = 86 : ui8, sort = 78 : ui8",
        "2x0x0xf32",
        "2x0x0xf32 2x0x0xf32 2x0xf32 2x0xf32 2xi32 2xi32",
        4,
    ),
    "gesdd, rows": (*SVD, "0x64xf32", "0x64xf32 0xf32 0x0xf32 64x64xf32 i32", 3),
    "gesdd, columns": (*SVD, "64x0xf32", "64x0xf32 0xf32 64x64xf32 0x0xf32 i32", 2),
}


@each("name", EMPTY)
def test_empty_matrices(name: str) -> None:
    """Routines then write nothing, or behind an empty array."""
    exported = from_text(lapack(*EMPTY[name]))
    function = allowed(exported)
    x = [np.ones(aval.shape, aval.dtype) for aval in exported.in_avals]
    for found in (function.call(*x), jax.jit(function.call)(*x)):
        assert not np.asarray(found).any()
    with _jax.make_ir_context() as context:
        assert not mlir.custom_calls(runnable.parse(function, context))


def test_what_a_routine_leaves() -> None:
    """Without columns, a product of reflectors is the identity."""
    arrays = "3x0xf32 0xf32 3x4xf32"
    text = lapack("lapack_sormqr_ffi", "left = true, transpose = false", arrays, "3x4xf32", 0)
    with _jax.make_ir_context(), _jax.ir.Location.unknown():
        module = _jax.ir.Module.parse(text)
        confined.confine(module, b"")
        assert not mlir.custom_calls(module)
        assert "return %arg2 " in str(module)


def solve(x: Any) -> Any:
    return jax.lax.linalg.tridiagonal_solve(x[..., 0], x[..., 1], x[..., 2], x[..., 3:])


def test_matrices_that_may_be_empty() -> None:
    """Where a size is open, it may not be 0. Without a policy, nothing is asserted."""
    (b,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(solve))(jax.ShapeDtypeStruct((9, b + 2), F32))
    x = np.ones((9, 5), F32) + np.eye(9, 5, 1, dtype=F32)
    assert_same_values(allowed(exported).call(x), exported.call(x))
    assert exported.call(x[:, :3]).shape == (9, 0)
    with pytest.raises(jaxexp.ExportError, match="The custom call lapack_sgtsv_ffi has empty matrices"):
        allowed(exported).call(x[:, :3])
    batches = jaxexp.export(jax.jit(solve))(jax.ShapeDtypeStruct((b, 9, 3), F32))
    with pytest.raises(jaxexp.PolicyError, match="not empty if one of their sizes is open"):
        jaxexp.Policy().check(batches)


LINALG = jax.lax.linalg
OF_SQUARES = {
    "cholesky": LINALG.cholesky,
    "eigh": LINALG.eigh,
    "eig": LINALG.eig,
    "schur": LINALG.schur,
    "triangular_solve": lambda a: LINALG.triangular_solve(a, a),
}
OF_MATRICES = {"lu": LINALG.lu, "qr": LINALG.qr, "svd": LINALG.svd, "gram": lambda a: LINALG.cholesky(a @ a.mT)}
SQUARES, MATRICES = [(0, 0), (2, 0, 0), (0, 3, 3)], [(3, 0), (0, 3), (2, 0, 3)]


@pytest.mark.wide(one_in=3, promise="linear algebra of empty matrices is what JAX computes")
@pytest.mark.parametrize("name", [*OF_SQUARES, *OF_MATRICES])
def test_what_jax_computes_of_empty_matrices(name: str) -> None:
    function = jax.jit((OF_SQUARES | OF_MATRICES)[name])
    for shape in SQUARES if name in OF_SQUARES else SQUARES + MATRICES:
        x = np.zeros(shape, F32)
        assert_same_values(allowed(jaxexp.export(function)(x)).call(x), function(x))


OF_RELEASES = [*sorted(GOLDEN.rglob("*_poly_*.bin"))[:12], *sorted(GOLDEN.rglob("svd*.bin"))[:4]]


@pytest.mark.wide(one_in=8, promise="golden artifacts compute under a policy what they compute without")
@pytest.mark.parametrize("path", OF_RELEASES, ids=str)
def test_golden_artifacts_compute_the_same(path: Any) -> None:
    """Linear algebra of all releases, with open sizes, too."""
    try:
        plain = jaxexp.load(path)
        confined_ = jaxexp.load(path, policy=jaxexp.Policy(custom_calls=("*",), effects=("*",)))
    except jaxexp.ExportError:
        pytest.skip("an artifact that is refused on purpose")
    args = [np.asarray(arr(*[s if isinstance(s, int) else 4 for s in a.shape]), a.dtype) for a in plain.in_avals]
    try:
        expected = plain.call(*jax.tree.unflatten(plain.in_tree, args)[0])
    except Exception:
        pytest.skip("an artifact whose arguments have to be others")
    assert_same_values(confined_.call(*jax.tree.unflatten(plain.in_tree, args)[0]), expected)


ALLOCATING = """module @f { func.func public @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %0 = stablehlo.custom_call @AllocateBuffer() : () -> tensor<64xf32> return %0 : tensor<64xf32> } }"""


def test_memory_that_is_asked_for_is_zeros() -> None:
    assert not np.asarray(allowed(from_text(ALLOCATING)).call(arr(64))).any()


def test_jax_gets_what_runs() -> None:
    """Also for VJPs, and on the way back, but not of a function that is trusted."""
    trusted = dataclasses.replace(from_text(ALLOCATING), fun_name="f")
    assert trusted.to_jax().mlir_module_serialized == trusted.mlir_module_serialized
    converted = allowed(trusted).to_jax()
    for function in (converted, jaxexp.Exported.from_jax(converted)):
        assert not np.asarray(function.call(arr(64))).any()

    doubled = jax.custom_vjp(lambda x: x * 2)
    doubled.defvjp(lambda x: (x * 2, x), lambda _, ct: (jax.lax.sort((ct, -ct), is_stable=False)[0],))
    exported = jaxexp.export(jax.jit(doubled))(arr(9))
    assert "is_stable = true" not in exported.vjp().mlir_module()
    function = jaxexp.deserialize(exported.serialize(vjp_order=1), policy=jaxexp.Policy()).to_jax()
    assert "is_stable = true" in function.vjp().mlir_module()


# --- types -----------------------------------------------------------------------------------------------------------

# Each says that its result is float32[4,4], and XLA computes another array, which a call of LAPACK would take for that.
UNTYPED = {
    "einsum": """%r = "stablehlo.einsum"(%x, %x) <{einsum_config = "i,j->ij"}>
      : (tensor<300xf32>, tensor<300xf32>) -> tensor<4x4xf32>""",
    "torch_index_select": """%y = stablehlo.reshape %x : (tensor<300xf32>) -> tensor<1x300xf32>
      %i = stablehlo.constant dense<0> : tensor<300xi32>
      %r = "stablehlo.torch_index_select"(%y, %i) <{dim = 0 : i64, batch_dims = 0 : i64}>
      : (tensor<1x300xf32>, tensor<300xi32>) -> tensor<4x4xf32>""",
    "dynamic_broadcast_in_dim": """%y = stablehlo.slice %x [0:1] : (tensor<300xf32>) -> tensor<1xf32>
      %s = stablehlo.constant dense<4> : tensor<2xi32>
      %r = "stablehlo.dynamic_broadcast_in_dim"(%y, %s) <{broadcast_dimensions = array<i64: 1>,
        known_nonexpanding_dimensions = array<i64: 0>}> : (tensor<1xf32>, tensor<2xi32>) -> tensor<4x4xf32>""",
    "real_dynamic_slice": """%s = stablehlo.constant dense<0> : tensor<1xi64>
      %e = stablehlo.constant dense<300> : tensor<1xi64>
      %t = stablehlo.constant dense<1> : tensor<1xi64>
      %y = stablehlo.real_dynamic_slice %x, %s, %e, %t
      : (tensor<300xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<16xf32>
      %r = stablehlo.reshape %y : (tensor<16xf32>) -> tensor<4x4xf32>""",
    "all_reduce": """%y = stablehlo.slice %x [0:16] : (tensor<300xf32>) -> tensor<16xf32>
      %z = stablehlo.reshape %y : (tensor<16xf32>) -> tensor<4x4xf32>
      %w = "stablehlo.all_reduce"(%z) <{replica_groups = dense<0> : tensor<1x1xi64>}> ({
        ^bb0(%a: tensor<f64>, %b: tensor<f64>): %s = stablehlo.add %a, %b : tensor<f64>
        stablehlo.return %s : tensor<f64> }) : (tensor<4x4xf32>) -> tensor<4x4xf64>
      %r = stablehlo.convert %w : (tensor<4x4xf64>) -> tensor<4x4xf32>""",
    "rng_bit_generator": """%s = stablehlo.constant dense<0> : tensor<2xui64>
      %t, %r = "stablehlo.rng_bit_generator"(%s) <{rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>}>
      : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4x4xf32>)""",
}


@each("name", UNTYPED)
def test_operations_whose_types_xla_does_not_compare(name: str) -> None:
    function = f"func.func public @main(%x: tensor<300xf32>) -> tensor<4x4xf32> {{ {UNTYPED[name]}"
    exported = from_text(f"module @f {{ {function}\n return %r : tensor<4x4xf32> }} }}")
    with pytest.raises(jaxexp.PolicyError, match="types that XLA does not check") as caught:
        allowed(exported)
    assert name in str(caught.value)
    jaxexp.deserialize(exported.serialize(), policy=jaxexp.Policy(operations=[f"stablehlo.{name}"]))


def test_open_sizes_without_dimension_variables() -> None:
    """Nobody computes them, so the next operation may say any size."""
    exported = jaxexp.export(jax.jit(lambda x: x[:4] * 2))(arr(9))
    text = """module @f { func.func public @main(%x: tensor<9xf32>) -> tensor<4xf32> {
      %y = "stablehlo.negate"(%x) : (tensor<9xf32>) -> tensor<?xf32>
      %r = "stablehlo.negate"(%y) : (tensor<?xf32>) -> tensor<4xf32>
      return %r : tensor<4xf32> } }"""
    lying = with_module(exported, text)
    with pytest.raises(jaxexp.PolicyError, match="whose open sizes nobody computes without dimension variables"):
        allowed(lying)
    computed = dataclasses.replace(lying, uses_global_constants=True)
    with pytest.raises(jaxexp.ExportError, match="its module refuses these shapes"):
        allowed(computed).call(arr(9))


def test_calls_have_layouts() -> None:
    """By these, XLA notices an operand of another size than its type says."""
    text = f"""module @f {{ func.func public @main(%x: tensor<300xf32>) -> tensor<4x4xf32> {{ {UNTYPED["einsum"]}
      %l:3 = stablehlo.custom_call @lapack_sgetrf_ffi(%r) {{api_version = 4 : i32, backend_config = {{}}}}
        : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xi32>, tensor<i32>)
      return %l#0 : tensor<4x4xf32> }} }}"""
    policy = jaxexp.Policy(operations=["stablehlo.einsum"])
    function = jaxexp.deserialize(from_text(text).serialize(), policy=policy)
    with pytest.raises(jax.errors.JaxRuntimeError, match="operand"):
        function.call(arr(300))


# --- devices ---------------------------------------------------------------------------------------------------------


def test_devices_meet_in_the_same_operation_only() -> None:
    """JAX gives all collective operations one channel, by which others would meet in branches, of other sizes."""
    devices, spec = mesh((2,), ("x",)), jax.sharding.PartitionSpec("x")

    def of_a_device(x: Any) -> Any:
        small = lambda y: y.at[:1].set(jax.lax.psum(y[:1], "x"))  # noqa: E731
        large = lambda y: jax.lax.psum(y, "x")  # noqa: E731
        return jax.lax.cond(x.sum() > 0, small, large, jax.lax.ppermute(x, "x", [(0, 1), (1, 0)]))

    function = jax.jit(jax.shard_map(of_a_device, mesh=devices, in_specs=spec, out_specs=spec, check_vma=False))
    x = jax.device_put(arr(8), jax.sharding.NamedSharding(devices, spec))
    exported = jaxexp.export(function)(x)
    confined_ = allowed(exported)
    assert_same_values(confined_.call(x), function(x))
    channels = [re.findall(r"handle = (\d+)", jax.jit(f.call).lower(x).as_text()) for f in (exported, confined_)]
    assert len(channels[0]) == len(set(channels[1])) == 3 > len(set(channels[0]))

    open_ = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("2*b"), F32, sharding=x.sharding)
    with pytest.raises(jaxexp.PolicyError, match=r"has branches and \S+ of open sizes"):
        allowed(jaxexp.export(function)(open_))
    straight = jax.shard_map(
        lambda x: jax.lax.psum(x, "x"), mesh=devices, in_specs=spec, out_specs=spec, check_vma=False
    )
    assert_same_values(allowed(jaxexp.export(jax.jit(straight))(open_)).call(x), jax.jit(straight)(x))


RESIZED = """module @f { sdy.mesh @one = <["x"=1]> {stablehlo.mesh = {axes = [{name = "x", size = 1 : i64}]}}
  func.func public @main(%x: tensor<FROM>) -> tensor<TO> { %r = "stablehlo.NAME"(%x) <{
    AXIS = 1 : i64, replica_groups = GROUPS}> REGION : (tensor<FROM>) -> tensor<TO>
  return %r : tensor<TO> } }"""
ADDING = """({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %s = stablehlo.add %a, %b : tensor<f32>
  stablehlo.return %s : tensor<f32> })"""
GATHERING = {"NAME": "all_gather", "AXIS": "all_gather_dim", "REGION": ""}
SCATTERING = {"NAME": "reduce_scatter", "AXIS": "scatter_dimension", "REGION": ADDING}
# For each of these, XLA takes a group for one device.
GROUPS = {
    "one": "dense<[[0]]> : tensor<1x1xi64>",
    "all": "dense<> : tensor<0x0xi64>",
    "an axis": '#stablehlo.replica_group_mesh_axes<mesh = @one, axes = [#stablehlo.axis_ref<name = "x">]>',
    "no axis": "#stablehlo.replica_group_mesh_axes<mesh = @one, axes = []>",
}
KNOWN = [name for name in GROUPS if "axis" not in name or jax.__version_info__ >= (0, 12)]


def resized(how: dict[str, str], groups: str, before: str, after: str) -> bytes:
    text = RESIZED
    for word, meant in {**how, "GROUPS": GROUPS[groups], "FROM": before, "TO": after}.items():
        text = text.replace(word, meant)
    exported = from_text(text, shapes={0: "3, b"} if "?" in before else None)
    return bytes(exported.serialize())


@each("how, groups", [(how, groups) for how in (GATHERING, SCATTERING) for groups in KNOWN])
def test_sizes_of_groups_of_one_device(how: dict[str, str], groups: str) -> None:
    """XLA takes a larger result of these for one that others write to, and returns what was in memory."""
    small, large = "3x100xf32", "3x200xf32"
    blob = resized(how, groups, *((small, large) if how is GATHERING else (large, small)))
    with pytest.raises(jaxexp.PolicyError, match="which are not the sizes for its groups of devices"):
        jaxexp.deserialize(blob, policy=jaxexp.Policy())
    jaxexp.deserialize(blob, policy=jaxexp.Policy(operations=[f"stablehlo.{how['NAME']}"]))


@each("how, sizes", [(how, sizes) for how in (GATHERING, SCATTERING) for sizes in ("3x7xf32", "3x?xf32")])
def test_a_group_of_one_device_keeps_sizes(sizes: str, how: dict[str, str]) -> None:
    function = jaxexp.deserialize(resized(how, "one", sizes, sizes), policy=jaxexp.Policy())
    assert_same_values(function.call(arr(3, 7)), arr(3, 7))


@each("is_open", [False, True])
def test_groups_of_several_devices(is_open: bool) -> None:
    devices, spec = mesh((2, 4), ("x", "y")), jax.sharding.PartitionSpec(("x", "y"))

    def of_a_device(x: Any) -> Any:
        options = {"tiled": True, "axis_index_groups": [[0, 1], [2, 3]]}
        yield jax.lax.all_gather(x, "y", axis=1, **options)
        yield jax.lax.psum_scatter(x, "y", scatter_dimension=1, **options)
        if not is_open:  # JAX 0.12 cannot refine groups that are axes
            yield jax.lax.all_gather(x, ("x", "y"), axis=1, tiled=True)
            yield jax.lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True)

    each = jax.shard_map(lambda x: tuple(of_a_device(x)), mesh=devices, in_specs=spec, out_specs=spec, check_vma=False)
    function = jax.jit(each)
    sharding = jax.sharding.NamedSharding(devices, spec)
    x = jax.device_put(arr(16, 4), sharding)
    shape = jaxexp.symbolic_shape("8*b, 4") if is_open else x.shape
    exported = jaxexp.export(function)(jax.ShapeDtypeStruct(shape, F32, sharding=sharding))
    assert_same_values(allowed(exported).call(x), function(x))


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_sizes_that_a_module_sets_are_refused() -> None:
    exported = jaxexp.export(jax.jit(lambda x: x * 2))(arr(4))
    text = """module @f { func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %n = stablehlo.constant dense<100000> : tensor<i32>
      %0 = stablehlo.set_dimension_size %x, %n, dim = 0
        : (tensor<4xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<4>>
      %1 = stablehlo.get_dimension_size %0, dim = 0 : (tensor<?xf32, #stablehlo.bounds<4>>) -> tensor<i32>
      %2 = stablehlo.convert %1 : (tensor<i32>) -> tensor<f32>
      %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<4xf32>
      return %3 : tensor<4xf32> } }"""
    changed = with_module(exported, text)
    with pytest.raises(jaxexp.PolicyError, match="set_dimension_size"):
        allowed(changed)


@each("dtype", [np.int32, np.uint8])
def test_division_by_zero(dtype: Any) -> None:
    """JAX computes what is constant when the sizes are known with the processor's division, which ends the process."""
    (n,) = jaxexp.symbolic_shape("n")
    spec = jax.ShapeDtypeStruct((n,), dtype)

    def divided(x: Any, y: Any) -> Any:
        return jax.lax.div(x, y), jax.lax.rem(x, y), x // y, x % y

    function = allowed(jaxexp.export(jax.jit(divided))(spec, spec))
    x, y = np.array([5, 0, 7, -3, 3]).astype(dtype), np.array([0, 0, 2, -1, 3]).astype(dtype)
    assert_same_values(function.call(x, y), jax.jit(divided)(x, y))
    spec = jax.ShapeDtypeStruct((n, 4), F32)
    changed = with_text("dense<2> : tensor<i32>", "dense<0> : tensor<i32>", lambda x: x[x.shape[0] // 2 :], spec)
    with pytest.raises(jaxexp.ExportError, match="refuses these shapes"):
        allowed(changed).call(np.ones((5, 4), F32))


def test_division_by_zero_in_a_function_that_is_called() -> None:
    """Its own sizes are known, and those of its caller are not."""
    text = """module @f { func.func public @main(%x: tensor<4xf32>) -> tensor<4xi32> {
      %a = stablehlo.constant dense<7> : tensor<4xi32> %b = stablehlo.constant dense<0> : tensor<4xi32>
      %0 = stablehlo.divide %a, %b : tensor<4xi32> return %0 : tensor<4xi32> } }"""
    called = allowed(from_text(text))
    (n,) = jaxexp.symbolic_shape("n")
    outer = jaxexp.export(jax.jit(lambda x: x[:4].sum() + called.call(x[:4])))(jax.ShapeDtypeStruct((4 + n,), F32))
    np.testing.assert_array_equal(outer.call(np.zeros(9, F32)), np.full(4, -1, F32))


TEXT, WIDE = "without a text as its error_message", "whose error_message has more than numbers in braces"
ASSERTIONS = {
    "a number": ("error_message = 5 : i32", TEXT),
    "a list": ("error_message = [1, 2]", TEXT),
    "nothing": ("other = 1 : i32", TEXT),
    "a width": ('error_message = "{0,+2000000000}"', WIDE),
    "a style": ('error_message = "is {0:x}"', WIDE),
    "no end": ('error_message = "is {0"', WIDE),
    "a space": ('error_message = "{ 0}"', WIDE),
}


@each("what", ASSERTIONS)
def test_assertions_say_something(what: str) -> None:
    """JAX reads the words of an assertion, crashes if there are none, and does all that they tell it: with or without a
    policy.
    """
    (n,) = jaxexp.symbolic_shape("n")
    exported = jaxexp.export(jax.jit(lambda x: x * 2))(jax.ShapeDtypeStruct((n,), F32))
    with _jax.make_ir_context() as context:
        module = mlir.parse(exported.mlir_module_serialized, context)
        text = str(module)
    start = text.index('error_message = "')
    end = text.index('", ', start) + 1
    said, message = ASSERTIONS[what]
    changed = with_module(exported, text[:start] + said + text[end:])
    with pytest.raises(jaxexp.DeserializationError, match=message):
        jaxexp.deserialize(changed.serialize()).call(np.ones(3, F32))


def test_numbers_and_braces_in_an_assertion() -> None:
    (n,) = jaxexp.symbolic_shape("n")
    exported = jaxexp.export(jax.jit(lambda x: x * 2))(jax.ShapeDtypeStruct((n + 2,), F32))
    with _jax.make_ir_context() as context:
        text = str(mlir.parse(exported.mlir_module_serialized, context))
    changed = with_module(exported, text.replace('error_message = "', 'error_message = "{{0} of {0}: '))
    assert_same_values(jaxexp.deserialize(changed.serialize()).call(np.ones(5, F32)), np.full(5, 2, F32))


@each("how", ["FLOAT", "TOTALORDER"])
def test_integers_are_compared_as_integers(how: str) -> None:
    (n,) = jaxexp.symbolic_shape("n")
    spec = jax.ShapeDtypeStruct((n,), F32)
    changed = with_text(", SIGNED :", f", {how} :", lambda x: x * 2, spec)
    with pytest.raises(jaxexp.DeserializationError, match="compare_v1"):
        jaxexp.deserialize(changed.serialize()).call(np.ones(3, F32))


@pytest.mark.parametrize("k", ["{a = 1 : i32}", "dense<1> : tensor<2xi64>", "@main", None])
def test_top_k_has_a_number(k: str | None) -> None:
    (n,) = jaxexp.symbolic_shape("n")
    spec = jax.ShapeDtypeStruct((n, 8), F32)
    old = "composite_attributes = {k = 2 : i64}"
    try:
        changed = with_text(old, f"composite_attributes = {{k = {k}}}" if k else "composite_attributes = {j = 2 : i64}",
                            lambda x: jax.lax.top_k(x, 2), spec)  # fmt: skip
    except AssertionError:
        pytest.skip("this release of JAX writes top_k in another way")
    with pytest.raises(jaxexp.DeserializationError, match=r"chlo\.top_k without a number"):
        jaxexp.deserialize(changed.serialize()).call(np.ones((3, 8), F32))


# --- convolutions ----------------------------------------------------------------------------------------------------

FAR = 2**24
CONVOLUTION = """module @f {{
  func.func public @main(%x: tensor<1x{rows}x5x1xf32>, %k: tensor<3x3x1x1xf32>) -> tensor<1x{out}x5x1xf32> {{
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [{stride}, 1], pad = [[{low}, {high}], [1, 1]],
               lhs_dilate = [{left}, 1], rhs_dilate = [{right}, 1]}}
    {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : (tensor<1x{rows}x5x1xf32>, tensor<3x3x1x1xf32>) -> tensor<1x{out}x5x1xf32>
  return %0 : tensor<1x{out}x5x1xf32> }} }}"""


def convolution(rows: int, low: int = 0, high: int = 0, stride: int = 1, left: int = 1, right: int = 1) -> str:
    places = (rows - 1) * left + 1 + low + high
    out = (places - (2 * right + 1)) // stride + 1
    return CONVOLUTION.format(rows=rows, low=low, high=high, stride=stride, left=left, right=right, out=out)


LARGE = {
    "padding of": {"rows": 5, "high": FAR, "stride": FAR - 1},
    "strides of": {"rows": 5, "stride": 2**32},
    "dilations of": {"rows": 3, "left": 2**32, "low": -(2**33), "high": 6},
    r"padding of \(-10, 5\)": {"rows": 9, "low": -10, "high": 5},
    "places in a dimension": {"rows": 5, "left": 2**22, "stride": 2**23},
}


@each("what", LARGE)
def test_convolutions_that_read_outside_are_refused(what: str) -> None:
    exported = from_text(convolution(**LARGE[what]))
    with pytest.raises(jaxexp.PolicyError, match=f"(?s)stablehlo.convolution in its function @main with .*{what}"):
        allowed(exported)
    named = jaxexp.Policy(operations=("stablehlo.convolution",))
    assert jaxexp.deserialize(exported.serialize(), policy=named).fun_name


def test_the_largest_convolution() -> None:
    """It gives what it is; one more, and it is refused."""
    x, k = np.ones((1, 5, 5, 1), F32), np.zeros((3, 3, 1, 1), F32)
    k[0, 1] = 1
    exported = from_text(convolution(5, high=FAR - 6, stride=FAR - 4))
    found = np.asarray(allowed(exported).call(x, k))
    np.testing.assert_array_equal(found[0, :, :, 0], [[1] * 5, [0] * 5])
    with pytest.raises(jaxexp.PolicyError, match="16,777,216 places"):
        allowed(from_text(convolution(5, high=FAR - 5, stride=FAR - 4)))


@each("padding, dilation, rows", [([(0, 0), (0, 0)], 4096, 4097), ("SAME", None, FAR)])
def test_convolutions_of_open_sizes(padding: Any, dilation: int | None, rows: int) -> None:
    def function(x: Any, k: Any) -> Any:
        dilations = {} if dilation is None else {"lhs_dilation": (dilation, 1)}
        numbers = "NHWC", "HWIO", "NHWC"
        return jax.lax.conv_general_dilated(x, k, (2, 1), padding, **dilations, dimension_numbers=numbers)

    (b,) = jaxexp.symbolic_shape("b")
    k = arr(3, 1, 1, 1)
    exported = jaxexp.export(jax.jit(function))(jax.ShapeDtypeStruct((1, b, 1, 1), F32), k)
    loaded, x = allowed(exported), arr(1, 4, 1, 1)
    assert_same_values(loaded.call(x, k), exported.call(x, k))
    for attempt in (lambda x: loaded.call(x, k), lambda x: loaded.specialize(x, k)):
        with pytest.raises(jaxexp.ExportError, match="A convolution has 2\\^24 places or more in a dimension, or"):
            attempt(np.zeros((1, rows, 1, 1), F32))


CROPPED = {  # rows, padding, dilation, and by an operation of its own, in front of the convolution
    "in front": (9, (-2, 2), 1, (0, 0)),
    "all": (9, (-9, 4), 1, (0, 0)),
    "both": (9, (-2, -1), 1, (0, 0)),
    "with more by a pad": (9, (-5, 0), 1, (0, 4)),
    "and taken by both": (9, (-3, -1), 1, (0, 4)),
    "between elements": (9, (-5, -2), 3, (0, 4)),
    "behind": (9, (2, -5), 2, (0, 0)),
}


@pytest.mark.wide(one_in=3, promise="convolutions that take away rows compute the same under a policy")
@pytest.mark.parametrize("rows", [9, "b"])
@pytest.mark.parametrize("name", CROPPED)
def test_convolutions_that_take_away(name: str, rows: Any) -> None:
    """XLA adds the paddings of both operations."""
    size, padding, dilation, first = CROPPED[name]

    def function(x: Any, k: Any) -> Any:
        x = jax.lax.pad(x, np.float32(0), [(0, 0, 0), (*first, 0), (0, 0, 0)])
        how = {"lhs_dilation": (dilation,), "dimension_numbers": ("NWC", "WIO", "NWC")}
        return jax.lax.conv_general_dilated(x, k, (1,), [padding], **how)

    (rows,) = jaxexp.symbolic_shape(rows, constraints=["b >= 8"]) if rows == "b" else (rows,)
    k, x = np.array(arr(3, 4, 4)), np.array(arr(2, size, 4))
    exported = jaxexp.export(jax.jit(function))(jax.ShapeDtypeStruct((2, rows, 4), F32), k)
    padded = np.pad(x, ((0, 0), first, (0, 0)))
    places = np.zeros((2, (padded.shape[1] - 1) * dilation + 1, 4), F32)
    places[:, ::dilation] = padded
    places = np.pad(places, ((0, 0), tuple(max(0, side) for side in padding), (0, 0)))
    places = places[:, max(0, -padding[0]) : places.shape[1] - max(0, -padding[1])]
    expected = np.stack([np.einsum("bwi,wio->bo", places[:, i : i + 3], k) for i in range(places.shape[1] - 2)], 1)
    if name == "all" and rows != 9:
        with pytest.raises(jaxexp.ExportError, match=r"takes away more than it has|negative size"):
            allowed(exported).call(x[:, :8], k)
    for found in (allowed(exported).call(x, k), jax.vmap(allowed(exported).call, (0, None))(x[None], k)[0]):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
