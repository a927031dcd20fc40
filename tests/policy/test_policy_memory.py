"""A module that a policy allowed reads and writes no memory but its own, also where its code is none of JAX's."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import mlir, runnable
from jaxexp.errors import DeserializationError, ExportError, PolicyError
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


def text_of(exported: jaxexp.Exported) -> str:
    with _jax.make_ir_context() as context:
        return str(mlir.parse(exported.mlir_module_serialized, context))


def with_text(old: str, new: str, function: Any, *args: Any) -> jaxexp.Exported:
    exported = jaxexp.export(jax.jit(function))(*args)
    text = text_of(exported)
    assert old in text, text
    return with_module(exported, text.replace(old, new))


SORT = """module @f { func.func public @main(%x: tensor<SIZExf32>) -> tensor<SIZExf32> {
  %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = false}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %d = stablehlo.subtract %a, %b : tensor<f32>
      %c = stablehlo.constant dense<1.5> : tensor<f32>
      %t = stablehlo.compare HOW, OF, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
  }) : (tensor<SIZExf32>) -> tensor<SIZExf32>
  return %0 : tensor<SIZExf32> } }"""


@each("how, of, size", [("LT", "%d, %c", 3000), ("NE", "%a, %b", 200), ("LE", "%a, %b", 33)])
def test_a_sort_without_an_order_stays_within_its_array(how: str, of: str, size: int) -> None:
    """The C++ library's sort, with which XLA sorts on a CPU, would leave it."""
    function = allowed(from_text(SORT.replace("SIZE", str(size)).replace("HOW", how).replace("OF", of)))
    x = np.random.default_rng(size).integers(0, 5, size).astype(F32)
    for found in (function.call(x), jax.vmap(function.call)(x[None])[0]):
        np.testing.assert_array_equal(np.sort(np.asarray(found)), np.sort(x))


# In place of %d, another number each time, or one of other code, or of arrays, which are on the stack.
ONE_OF_FOUR = """%one = stablehlo.slice %four [1:2] : (tensor<4xf32>) -> tensor<1xf32>
      %d = stablehlo.reshape %one : (tensor<1xf32>) -> tensor<f32>"""
OTHERS = {
    "random": """%d = stablehlo.rng %z, %z, %shape, distribution = UNIFORM
      : (tensor<f32>, tensor<f32>, tensor<0xi64>) -> tensor<f32>""",
    "from outside": """%d, %u = "stablehlo.infeed"(%token) <{infeed_config = ""}>
      : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)""",
    "a call": "%d = func.call @g(%a) : (tensor<f32>) -> tensor<f32>",
    "a custom call": "%d = stablehlo.custom_call @jaxexp_other(%a) : (tensor<f32>) -> tensor<f32>",
    "an array": f"%four = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<4xf32>\n{ONE_OF_FOUR}",
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
        OTHER
        %s = stablehlo.compare LT, %d, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %s : tensor<i1>
      }, { stablehlo.return %truth : tensor<i1> }) : (tensor<i1>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
  }) : (tensor<33xf32>) -> tensor<33xf32>
  return %0 : tensor<33xf32> }
  func.func private @g(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> } }"""


@each("name", OTHERS)
def test_sorts_compare_elements_alone(name: str) -> None:
    """A stable sort, too, leaves its array if two comparisons of the same elements differ."""
    exported = jaxexp.export(jax.jit(lambda x: x))(arr(33))
    blob = with_module(exported, COMPARED_BY_OTHERS.replace("OTHER", OTHERS[name])).serialize()
    message = "a sort that (may compare the same elements with different results|compares by more than numbers)"
    with pytest.raises(DeserializationError, match=message):
        jaxexp.deserialize(blob, policy=jaxexp.Policy(custom_calls=None, effects=None))
    with pytest.raises(DeserializationError, match=message):
        jaxexp.deserialize(blob).call(arr(33))


def test_sorts_of_trusted_functions_stay_as_they_are() -> None:
    plain = from_text(COMPARED_BY_OTHERS.replace("OTHER", "%d = stablehlo.negate %a : tensor<f32>"))
    assert plain.call(arr(33)).shape == (33,)
    exported = jaxexp.export(jax.jit(lambda x: jax.lax.sort((x, -x), is_stable=False)))(arr(9))
    for policy in (None, jaxexp.Policy()):
        loaded = jaxexp.deserialize(exported.serialize(), policy=policy)
        assert loaded.mlir_module() == exported.mlir_module()
        assert_same_values(loaded.call(arr(9)), exported.call(arr(9)))


@each("symbolic, function", [(False, jax.lax.approx_max_k), (True, jax.lax.approx_min_k)])
def test_comparators_of_approximate_top_k(symbolic: bool, function: Any) -> None:
    spec = jax.ShapeDtypeStruct((*jaxexp.symbolic_shape("n"), 64) if symbolic else (2, 64), F32)
    exported = jaxexp.export(jax.jit(lambda x: function(x, 3)))(spec)
    x = arr(2, 64)
    assert_same_values(allowed(exported).call(x), exported.call(x))
    (direction,) = {"GT", "LT"} & set(exported.mlir_module().replace(",", " ").split())
    changed = with_text(f"compare {direction}, %arg0", "compare GE, %arg0", lambda x: function(x, 3), spec)
    with pytest.raises(PolicyError, match="is not the order of its first two arguments"):
        allowed(changed)
    jaxexp.deserialize(changed.serialize(), policy=jaxexp.Policy(custom_calls=None))


@pytest.fixture(autouse=True)
def used_memory() -> None:
    """Memory that is free has something in it."""
    kept = [np.full(1 << 12, 77, np.uint8) for _ in range(200)]
    del kept


SVD = "lapack_sgesdd_ffi", "mode = 65 : ui8"


def lapack(target: str, choices: str, arrays: str, results: str, *returned: int) -> str:
    """A module that calls a routine and returns some of its results; arrays such as 2x3xf32."""

    def layout(array: str) -> str:
        rank = array.count("x") - ("complex" in array)
        order = [*range(rank)] if rank < 2 else [rank - 2, rank - 1, *reversed(range(rank - 2))]
        return f"dense<{order or ''}> : tensor<{rank}xindex>"

    given, made = arrays.split(), results.split()
    names = ", ".join(f"%{i}: tensor<{array}>" for i, array in enumerate(given))
    out = [", ".join(f"tensor<{array}>" for array in group) for group in (given, made, [made[i] for i in returned])]
    layouts = [", ".join(map(layout, group)) for group in (given, made)]
    return f"""module @f {{ func.func public @main({names}) -> ({out[2]}) {{
      %r:{len(made)} = stablehlo.custom_call @{target}({", ".join(f"%{i}" for i in range(len(given)))}) {{
        api_version = 4 : i32, backend_config = {{{choices}}}, operand_layouts = [{layouts[0]}],
        result_layouts = [{layouts[1]}]}} : ({out[0]}) -> ({out[1]})
      return {", ".join(f"%r#{i}" for i in returned)} : {out[2]} }} }}"""


NOT_COMPUTED = {
    "gesdd": ("mode = 78 : ui8", "16x64xf32", "16x64xf32 16xf32 16x64xf32 64x64xf32 i32", 2, 3),
    "geev": (
        "compute_left = 78 : ui8, compute_right = 78 : ui8",
        "8x8xf32",
        "8xf32 8xf32 8x8xcomplex<f32> 8x8xcomplex<f32> i32",
        2,
        3,
    ),
    "gees": ("mode = 78 : ui8, sort = 78 : ui8", "8x8xf32", "8x8xf32 8x8xf32 8xf32 8xf32 i32 i32", 1),
}


@each("name", NOT_COMPUTED)
def test_results_that_are_not_computed_are_zeros(name: str) -> None:
    """A call is told not to compute them, and its module returns them all the same."""
    exported = from_text(lapack(f"lapack_s{name}_ffi", *NOT_COMPUTED[name]))
    x = arr(*exported.in_avals[0].shape)
    for _ in range(5):
        for found in jax.tree.leaves(allowed(exported).call(x)):
            assert not np.asarray(found).any()


def test_open_sizes_of_results_that_are_not_computed() -> None:
    (b,) = jaxexp.symbolic_shape("b")
    function = jax.jit(lambda x: (jnp.linalg.svd(x, compute_uv=False), jax.lax.linalg.schur(x)))
    exported = jaxexp.export(function)(jax.ShapeDtypeStruct((b, 8, 8), F32))
    x = arr(3, 8, 8)
    assert_same_values(allowed(exported).call(x), exported.call(x))


def test_a_routine_that_fails_gives_zeros() -> None:
    """It says so in its last result; JAX's modules make NaN of the others, and this one does not look."""
    results = "2x8x8xf32 2x8xf32 2x8x8xf32 2x8x8xf32 2xi32"
    x = np.array(arr(2, 8, 8))
    x[1, 3, 3] = np.nan
    vectors, failed = map(np.asarray, allowed(from_text(lapack(*SVD, "2x8x8xf32", results, 2, 4))).call(x))
    assert failed[0] == 0
    assert failed[1] != 0
    np.testing.assert_allclose(vectors[0] @ vectors[0].T, np.eye(8), atol=1e-5)
    assert not vectors[1].any()


GTSV = "lapack_sgtsv_ffi", ""
EMPTY = {
    # Its loop over the columns runs once if there are none, and writes one.
    "gtsv": (*GTSV, "1000xf32 1000xf32 1000xf32 1000x0xf32", "1000xf32 1000xf32 1000xf32 1000x0xf32 i32", 0),
    "gtsv, info": (*GTSV, "2x9xf32 2x9xf32 2x9xf32 2x9x0xf32", "2x9xf32 2x9xf32 2x9xf32 2x9x0xf32 2xi32", 4),
    "potrf": ("lapack_spotrf_ffi", "uplo = 76 : ui8", "2x0x0xf32", "2x0x0xf32 2xi32", 1),
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
    exported = from_text(lapack(*EMPTY[name]))
    function = allowed(exported)
    x = [np.ones(aval.shape, aval.dtype) for aval in exported.in_avals]
    assert not np.asarray(function.call(*x)).any()
    with _jax.make_ir_context() as context:
        assert not mlir.custom_calls(runnable.parse(function, context))


def solve(x: Any) -> Any:
    return jax.lax.linalg.tridiagonal_solve(x[..., 0], x[..., 1], x[..., 2], x[..., 3:])


def test_matrices_that_may_be_empty() -> None:
    """Where a size is open, it may not be 0. Without a policy, nothing is asserted."""
    (b,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(solve))(jax.ShapeDtypeStruct((9, b + 2), F32))
    x = np.ones((9, 5), F32) + np.eye(9, 5, 1, dtype=F32)
    assert_same_values(allowed(exported).call(x), exported.call(x))
    assert exported.call(x[:, :3]).shape == (9, 0)
    with pytest.raises(ExportError, match="The custom call lapack_sgtsv_ffi has empty matrices"):
        allowed(exported).call(x[:, :3])
    batches = jaxexp.export(jax.jit(solve))(jax.ShapeDtypeStruct((b, 9, 3), F32))
    with pytest.raises(PolicyError, match="not empty if one of their sizes is open"):
        jaxexp.Policy().check(batches)


LINALG = jax.lax.linalg
SQUARES, MATRICES = [(0, 0), (2, 0, 0), (0, 3, 3)], [(3, 0), (0, 3), (2, 0, 3)]
OF_EMPTY = {
    "cholesky": (LINALG.cholesky, SQUARES),
    "eigh": (LINALG.eigh, SQUARES),
    "eig": (LINALG.eig, SQUARES),
    "schur": (LINALG.schur, SQUARES),
    "triangular_solve": (lambda a: LINALG.triangular_solve(a, a), SQUARES),
    "lu": (LINALG.lu, SQUARES + MATRICES),
    "qr": (LINALG.qr, SQUARES + MATRICES),
    "svd": (LINALG.svd, SQUARES + MATRICES),
    "gram": (lambda a: LINALG.cholesky(a @ a.mT), SQUARES + MATRICES),
}


@pytest.mark.wide(one_in=5, promise="linear algebra of empty matrices is what JAX computes")
@pytest.mark.parametrize("name", OF_EMPTY)
def test_what_jax_computes_of_empty_matrices(name: str) -> None:
    linear, shapes = OF_EMPTY[name]
    function = jax.jit(linear)
    for shape in shapes:
        x = np.zeros(shape, F32)
        assert_same_values(allowed(jaxexp.export(function)(x)).call(x), function(x))


OF_RELEASES = [*sorted(GOLDEN.rglob("*_poly_*.bin"))[:12], *sorted(GOLDEN.rglob("svd*.bin"))[:4]]


@pytest.mark.wide(one_in=16, promise="golden artifacts compute under a policy what they compute without")
@pytest.mark.parametrize("path", OF_RELEASES, ids=str)
def test_golden_artifacts_compute_the_same(path: Any) -> None:
    try:
        plain = jaxexp.load(path)
        checked = jaxexp.load(path, policy=jaxexp.Policy(custom_calls=("*",), effects=("*",)))
    except ExportError:
        pytest.skip("an artifact that is refused on purpose")
    args = [np.asarray(arr(*[s if isinstance(s, int) else 4 for s in a.shape]), a.dtype) for a in plain.in_avals]
    args, _ = jax.tree.unflatten(plain.in_tree, args)
    try:
        expected = plain.call(*args)
    except Exception:
        pytest.skip("an artifact whose arguments have to be others")
    assert_same_values(checked.call(*args), expected)


ALLOCATING = """module @f { func.func public @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %0 = stablehlo.custom_call @AllocateBuffer() : () -> tensor<64xf32> return %0 : tensor<64xf32> } }"""


def test_jax_gets_what_runs() -> None:
    trusted = dataclasses.replace(from_text(ALLOCATING), fun_name="f")
    assert trusted.to_jax().mlir_module_serialized == trusted.mlir_module_serialized
    checked = allowed(trusted)
    converted = checked.to_jax()
    for function in (checked, converted, jaxexp.Exported.from_jax(converted)):
        assert not np.asarray(function.call(arr(64))).any()

    doubled = jax.custom_vjp(lambda x: x * 2)
    doubled.defvjp(lambda x: (x * 2, x), lambda _, ct: (jax.lax.sort((ct, -ct), is_stable=False)[0],))
    exported = jaxexp.export(jax.jit(doubled))(arr(9))
    assert "is_stable = true" not in exported.vjp().mlir_module()
    function = jaxexp.deserialize(exported.serialize(vjp_order=1), policy=jaxexp.Policy()).to_jax()
    assert "is_stable = true" in function.vjp().mlir_module()


# Each says that its result is float32[4,4], and XLA computes another array, which a call of LAPACK would take for that.
UNTYPED = {
    "einsum": """%r = "stablehlo.einsum"(%x, %x) <{einsum_config = "i,j->ij"}>
      : (tensor<300xf32>, tensor<300xf32>) -> tensor<4x4xf32>""",
    "dynamic_broadcast_in_dim": """%y = stablehlo.slice %x [0:1] : (tensor<300xf32>) -> tensor<1xf32>
      %s = stablehlo.constant dense<4> : tensor<2xi32>
      %r = "stablehlo.dynamic_broadcast_in_dim"(%y, %s) <{broadcast_dimensions = array<i64: 1>,
        known_nonexpanding_dimensions = array<i64: 0>}> : (tensor<1xf32>, tensor<2xi32>) -> tensor<4x4xf32>""",
}


@each("name", UNTYPED)
def test_operations_whose_types_xla_does_not_compare(name: str) -> None:
    function = f"func.func public @main(%x: tensor<300xf32>) -> tensor<4x4xf32> {{ {UNTYPED[name]}"
    exported = from_text(f"module @f {{ {function}\n return %r : tensor<4x4xf32> }} }}")
    with pytest.raises(PolicyError, match="types that XLA does not check") as caught:
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
    with pytest.raises(PolicyError, match="whose open sizes need dimension variables"):
        allowed(lying)
    computed = dataclasses.replace(lying, uses_global_constants=True)
    with pytest.raises(ExportError, match="its module refuses these shapes"):
        allowed(computed).call(arr(9))


def test_calls_have_layouts() -> None:
    """By these, XLA notices an operand of another size than its type says."""
    text = f"""module @f {{ func.func public @main(%x: tensor<300xf32>) -> tensor<4x4xf32> {{ {UNTYPED["einsum"]}
      %l:3 = stablehlo.custom_call @lapack_sgetrf_ffi(%r) {{api_version = 4 : i32, backend_config = {{}}}}
        : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xi32>, tensor<i32>)
      return %l#0 : tensor<4x4xf32> }} }}"""
    policy = jaxexp.Policy(operations=["stablehlo.einsum"])
    with pytest.raises(jax.errors.JaxRuntimeError, match="operand"):
        jaxexp.deserialize(from_text(text).serialize(), policy=policy).call(arr(300))


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
    with pytest.raises(PolicyError, match=r"has branches and \S+ of open sizes"):
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
    with pytest.raises(PolicyError, match="which are not the sizes for its groups of devices"):
        jaxexp.deserialize(blob, policy=jaxexp.Policy())
    jaxexp.deserialize(blob, policy=jaxexp.Policy(operations=[f"stablehlo.{how['NAME']}"]))


@each("how, sizes", [(GATHERING, "3x7xf32"), (SCATTERING, "3x?xf32")])
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


def test_division_of_sizes_by_zero() -> None:
    (n,) = jaxexp.symbolic_shape("n")
    spec = jax.ShapeDtypeStruct((n, 4), F32)
    changed = with_text("dense<2> : tensor<i32>", "dense<0> : tensor<i32>", lambda x: x[x.shape[0] // 2 :], spec)
    with pytest.raises(ExportError, match="refuses these shapes"):
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
    "nothing": ("other = 1 : i32", TEXT),
    "a width": ('error_message = "{0,+2000000000}"', WIDE),
    "a style": ('error_message = "is {0:x}"', WIDE),
    "no end": ('error_message = "is {0"', WIDE),
    "a space": ('error_message = "{ 0}"', WIDE),
    "numbers and braces": ('error_message = "{{0} of {0}: "', None),
}


@pytest.fixture(scope="module")
def doubled() -> tuple[jaxexp.Exported, str]:
    """A function with an assertion about its size, and the text of its module."""
    (n,) = jaxexp.symbolic_shape("n")
    exported = jaxexp.export(jax.jit(lambda x: x * 2))(jax.ShapeDtypeStruct((n,), F32))
    return exported, text_of(exported)


@each("what", ASSERTIONS)
def test_assertions_say_something(what: str, doubled: tuple[jaxexp.Exported, str]) -> None:
    """JAX reads the words of an assertion, crashes if there are none, and does all that they tell it: with or without a
    policy.
    """
    (exported, text), (said, message) = doubled, ASSERTIONS[what]
    changed = with_module(exported, re.sub('error_message = ".*?"(?=, )', said, text))
    loaded = jaxexp.deserialize(changed.serialize())
    if message is None:
        assert_same_values(loaded.call(np.ones(5, F32)), np.full(5, 2, F32))
        return
    with pytest.raises(DeserializationError, match=message):
        loaded.call(np.ones(3, F32))


@each("how", ["FLOAT", "TOTALORDER"])
def test_integers_are_compared_as_integers(how: str, doubled: tuple[jaxexp.Exported, str]) -> None:
    exported, text = doubled
    assert ", SIGNED :" in text
    changed = with_module(exported, text.replace(", SIGNED :", f", {how} :"))
    with pytest.raises(DeserializationError, match="compare_v1"):
        jaxexp.deserialize(changed.serialize()).call(np.ones(3, F32))


@pytest.mark.parametrize("k", ["k = {a = 1 : i32}", "k = dense<1> : tensor<2xi64>", "j = 2 : i64"])
def test_top_k_has_a_number(k: str) -> None:
    (n,) = jaxexp.symbolic_shape("n")
    exported = jaxexp.export(jax.jit(lambda x: jax.lax.top_k(x, 2)))(jax.ShapeDtypeStruct((n, 8), F32))
    text = text_of(exported)
    if "composite_attributes = {k = 2 : i64}" not in text:
        pytest.skip("this release of JAX writes top_k in another way")
    changed = with_module(exported, text.replace("k = 2 : i64", k))
    with pytest.raises(DeserializationError, match=r"chlo\.top_k without a number"):
        jaxexp.deserialize(changed.serialize()).call(np.ones((3, 8), F32))


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
    with pytest.raises(PolicyError, match=f"(?s)stablehlo.convolution in its function @main with .*{what}"):
        allowed(exported)
    named = jaxexp.Policy(operations=("stablehlo.convolution",))
    assert jaxexp.deserialize(exported.serialize(), policy=named).fun_name


def test_the_largest_convolution() -> None:
    x, k = np.ones((1, 5, 5, 1), F32), np.zeros((3, 3, 1, 1), F32)
    k[0, 1] = 1
    exported = from_text(convolution(5, high=FAR - 6, stride=FAR - 4))
    found = np.asarray(allowed(exported).call(x, k))
    np.testing.assert_array_equal(found[0, :, :, 0], [[1] * 5, [0] * 5])
    with pytest.raises(PolicyError, match="16,777,216 places"):
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
    for use in (lambda x: loaded.call(x, k), lambda x: loaded.specialize(x, k)):
        with pytest.raises(ExportError, match="A convolution has 2\\^24 places or more in a dimension, or"):
            use(np.zeros((1, rows, 1, 1), F32))


CROPPED = {  # padding, dilation, and by an operation of its own, in front of the convolution
    "in front": ((-2, 2), 1, (0, 0)),
    "all": ((-9, 4), 1, (0, 0)),
    "both": ((-2, -1), 1, (0, 0)),
    "with more by a pad": ((-5, 0), 1, (0, 4)),
    "and taken by both": ((-3, -1), 1, (0, 4)),
    "between elements": ((-5, -2), 3, (0, 4)),
    "behind": ((2, -5), 2, (0, 0)),
}


@pytest.mark.wide(one_in=5, promise="convolutions that take away rows compute the same under a policy")
@pytest.mark.parametrize("rows", [9, "b"])
@pytest.mark.parametrize("name", CROPPED)
def test_convolutions_that_take_away(name: str, rows: Any) -> None:
    """XLA adds the paddings of both operations."""
    padding, dilation, first = CROPPED[name]

    def function(x: Any, k: Any) -> Any:
        x = jax.lax.pad(x, np.float32(0), [(0, 0, 0), (*first, 0), (0, 0, 0)])
        how = {"lhs_dilation": (dilation,), "dimension_numbers": ("NWC", "WIO", "NWC")}
        return jax.lax.conv_general_dilated(x, k, (1,), [padding], **how)

    (rows,) = jaxexp.symbolic_shape(rows, constraints=["b >= 8"]) if rows == "b" else (rows,)
    k, x = np.array(arr(3, 4, 4)), np.array(arr(2, 9, 4))
    exported = jaxexp.export(jax.jit(function))(jax.ShapeDtypeStruct((2, rows, 4), F32), k)
    padded = np.pad(x, ((0, 0), first, (0, 0)))
    places = np.zeros((2, (padded.shape[1] - 1) * dilation + 1, 4), F32)
    places[:, ::dilation] = padded
    places = np.pad(places, ((0, 0), tuple(max(0, side) for side in padding), (0, 0)))
    places = places[:, max(0, -padding[0]) : places.shape[1] - max(0, -padding[1])]
    expected = np.stack([np.einsum("bwi,wio->bo", places[:, i : i + 3], k) for i in range(places.shape[1] - 2)], 1)
    if name == "all" and rows != 9:
        with pytest.raises(ExportError, match=r"takes away more than it has|negative size"):
            allowed(exported).call(x[:, :8], k)
    found = jax.vmap(allowed(exported).call, (0, None))(x[None], k)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
