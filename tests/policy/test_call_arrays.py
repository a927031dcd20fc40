"""Under a policy, custom calls whose code trusts the sizes of arrays have the arrays that it reads and writes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
from jax import export as jax_export
from jax import lax

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.artifact.operations import STABLE_CUSTOM_CALLS
from jaxexp._kernel.module import call_arrays, mlir, runnable
from kit.corpus import arr
from kit.each import each
from kit.other_modules import context, serialized, with_module
from kit.policies import refusal

pytestmark = pytest.mark.jax

# Calls as releases of JAX write them, for one precision: operands, results, and choices.
CALLS = {
    "lapack_spotrf_ffi": ("2x3x3f 2x3x3f 2i", 1, "uplo = 76 : ui8"),
    "lapack_sgetrf_ffi": ("2x5x3f 2x5x3f 2x3i 2i", 1, ""),
    "lapack_sgeqrf_ffi": ("2x3x5f 2x3x5f 2x3f", 1, ""),
    "lapack_sgeqp3_ffi": ("5x3f 3i 5x3f 3i 3f", 2, ""),
    "lapack_sorgqr_ffi": ("2x5x3f 2x3f 2x5x3f", 2, ""),
    "lapack_sormqr_ffi": ("5x3f 3f 5x7f 5x7f", 3, "left = true, transpose = false"),
    "lapack_ssyevd_ffi": ("2x3x3f 2x3x3f 2x3f 2i", 1, "mode = 86 : ui8, uplo = 85 : ui8"),
    "lapack_ssytrd_ffi": ("2x5x5f 2x5x5f 2x5f 2x4f 2x4f 2i", 1, "uplo = 76 : ui8"),
    "lapack_sgeev_ffi": ("3x3f 3f 3f 3x3c 3x3c i", 1, "compute_left = 86 : ui8, compute_right = 78 : ui8"),
    "lapack_cgeev_ffi": ("3x3c 3c 3x3c 3x3c i", 1, "compute_left = 86 : ui8, compute_right = 86 : ui8"),
    "lapack_sgees_ffi": ("2x3x3f 2x3x3f 2x3x3f 2x3f 2x3f 2i 2i", 1, "mode = 86 : ui8, sort = 78 : ui8"),
    "lapack_cgees_ffi": ("3x3c 3x3c 3x3c 3c i i", 1, "mode = 78 : ui8, sort = 78 : ui8"),
    "lapack_sgehrd_ffi": ("2x5x5f 2x5x5f 2x4f 2i", 1, "high = 5 : i32, low = 1 : i32"),
    "lapack_sgesdd_ffi": ("2x5x3f 2x5x3f 2x3f 2x5x5f 2x3x3f 2i", 1, "mode = 65 : ui8"),
    "lapack_cgesdd_ffi": ("3x5c 3x5c 3f 3x3c 3x5c i", 1, "mode = 83 : ui8"),
    "lapack_sgesvd_ffi": ("2x5x3f 2x5x3f 2x3f 2x5x3f 2x3x3f 2i", 1, "mode = 83 : ui8"),
    "lapack_strsm_ffi": (
        "2x3x3f 2x3x5f 2x3x5f",
        2,
        "diag = 78 : ui8, side = 76 : ui8, trans_x = 78 : ui8, uplo = 76 : ui8",
    ),
    "lapack_ctrsm_ffi": ("3x3c 5x3c 5x3c", 2, "diag = 85 : ui8, side = 82 : ui8, trans_x = 67 : ui8, uplo = 76 : ui8"),
    "lapack_sgtsv_ffi": ("2x4f 2x4f 2x4f 2x4x3f 2x4f 2x4f 2x4f 2x4x3f 2i", 4, ""),
    "cusparse_gtsv2_ffi": ("2x4f 2x4f 2x4f 2x4x3f 2x4x3f", 4, ""),
    "cu_threefry2x32_ffi": ("5u 5u 5u 5u 5u 5u", 4, ""),
    "Qr": ("2x5x3f 2x5x3f 2x3f", 1, ""),
    "ProductOfElementaryHouseholderReflectors": ("5x5f 5f 5x5f", 2, ""),
    "Eigh": ("2x3x3c 2x3x3c 2x3f", 1, ""),
    "LuDecomposition": ("5x3f 5x3f 3i 5i", 1, ""),
}
HEAD = "module @f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32"
ELEMENTS = {"f": "f32", "c": "complex<f32>", "i": "i32", "u": "ui32"}
# Sizes that may be smaller or larger than others.
FREE = {("lapack_sormqr_ffi", 0, 1)}


def type_of(array: str) -> str:
    sizes, element = array[:-1], ELEMENTS[array[-1]]
    return f"tensor<{sizes}x{element}>" if sizes else f"tensor<{element}>"


def layout(array: str) -> str:
    rank = len(array[:-1].split("x")) if array[:-1] else 0
    return f"dense<{list(reversed(range(rank))) or ''}> : tensor<{rank}xindex>"


def call(target: str, arrays: list[str], operands: int, choices: str, extra: str = "") -> str:
    """A module that calls a target with values that it makes, as text."""
    types = list(map(type_of, arrays))
    makes = "\n".join(f"%{i} = stablehlo.iota dim = 0 : {type_}" for i, type_ in enumerate(types[:operands]))
    layouts = list(map(layout, arrays))
    return f"""{HEAD}}} {{ func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {{
        {makes}
        %r:{len(types) - operands} = stablehlo.custom_call @{target}({", ".join(f"%{i}" for i in range(operands))})
            {{has_side_effect = true, mhlo.backend_config = {{{choices}}}{extra},
              operand_layouts = [{", ".join(layouts[:operands])}], result_layouts = [{", ".join(layouts[operands:])}]}}
            : ({", ".join(types[:operands])}) -> ({", ".join(types[operands:])})
        return %arg0 : tensor<2xf32>
    }} }}"""


def why_wrong(text: str) -> Any:
    with context(), _jax.ir.Location.unknown():
        module = _jax.ir.Module.parse(text)  # operations do not keep it alive
        ((target, operation),) = mlir.custom_calls(module)
        return call_arrays.why_wrong(operation, target)


def test_every_stable_routine_has_a_call_here() -> None:
    names = {"heevd": "syevd", "hetrd": "sytrd", "ungqr": "orgqr"}
    lapack = {target for target in STABLE_CUSTOM_CALLS if target.startswith("lapack_")}
    stable = {re.fullmatch(r"lapack_[sdcz](\w+)_ffi", target)[1] for target in lapack}
    assert lapack <= set(call_arrays._targets())
    assert {names.get(name, name) for name in stable} <= {
        found[1] for target in CALLS if (found := re.fullmatch(r"lapack_[sdcz](\w+)_ffi", target))
    }


@each("target", [target for target in CALLS if target in STABLE_CUSTOM_CALLS])
def test_what_jax_writes_is_allowed(target: str) -> None:
    arrays, operands, choices = CALLS[target]
    artifact = with_module(call(target, arrays.split(), operands, choices))
    assert jaxexp.Policy().check(jaxexp.deserialize(artifact, policy=jaxexp.Policy())) is None
    error = refusal(artifact, stable_custom_calls=False)
    assert f"has the custom call '{target}' in its function @main. " in str(error)
    assert error.field == "custom_calls"
    for allowing in (
        {"stable_custom_calls": None},
        {"stable_custom_calls": False, "custom_calls": (target[:3] + "*",)},
    ):
        jaxexp.deserialize(artifact, policy=jaxexp.Policy(**allowing))


@each("target", CALLS)
def test_other_arrays_are_wrong(target: str) -> None:
    arrays, operands, choices = CALLS[target]
    right = arrays.split()
    assert why_wrong(call(target, right, operands, choices)) is None
    for place, array in enumerate(right):
        sizes = array[:-1].split("x") if array[:-1] else []
        for axis, size in enumerate(sizes):
            if (target, place, axis) in FREE:
                continue
            larger = "x".join([*sizes[:axis], str(int(size) + 1), *sizes[axis + 1 :]]) + array[-1]
            wrong = why_wrong(call(target, [*right[:place], larger, *right[place + 1 :]], operands, choices))
            assert wrong, f"{target} with {larger} as array {place}"
        for other in ("x".join(["2", *sizes]) + array[-1], array[:-1] + ("i" if array[-1] == "f" else "f")):
            assert why_wrong(call(target, [*right[:place], other, *right[place + 1 :]], operands, choices))
    for place in range(len(right)):
        if len(right) - operands > 1 or place < operands:
            fewer = [*right[:place], *right[place + 1 :]]
            assert why_wrong(call(target, fewer, operands - (place < operands), choices))
    assert why_wrong(call(target, [*right, right[-1]], operands, choices))


@each("target", [target for target in CALLS if CALLS[target][2]])
def test_other_choices_are_wrong(target: str) -> None:
    arrays, operands, choices = CALLS[target]
    for one in choices.split(", "):
        if one.startswith("transpose"):
            continue
        name = one.partition(" = ")[0]
        others = [choices.replace(one, f"{name} = 79 : ui8"), ", ".join(c for c in choices.split(", ") if c != one)]
        for other in others:
            assert name in why_wrong(call(target, arrays.split(), operands, other)).expected
    right = call(target, arrays.split(), operands, choices)
    for other in (
        "api_version = 4 : i32, backend_config = {}, mhlo.",
        'backend_config = "x", api_version = 2 : i32, was_',
    ):
        assert why_wrong(right.replace("mhlo.backend_config", f"{other}backend_config")).what == "attributes"


def test_dimensions_that_the_partitioner_divides() -> None:
    def with_batch(rank: str) -> Any:
        extra = f', mhlo.frontend_attributes = {{num_batch_dims = "{rank}"}}'
        return why_wrong(call("lapack_spotrf_ffi", ["2x3x3f", "2x3x3f", "2i"], 1, "uplo = 76 : ui8", extra))

    assert with_batch("1") is None
    assert str(with_batch("2")) == "attributes have to be num_batch_dims 1, and are num_batch_dims 2"


WRONG = (
    HEAD
    + """} {
  func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %m = stablehlo.iota dim = 0 : tensor<2000x2000xf32>
    %r:3 = stablehlo.custom_call @lapack_sgetrf_ffi(%m) {api_version = 4 : i32, mhlo.backend_config = {}}
        : (tensor<2000x2000xf32>) -> (tensor<2x1xf32>, tensor<1xi32>, tensor<i32>)
    %s = stablehlo.reshape %r#0 : (tensor<2x1xf32>) -> tensor<2xf32>
    return %s : tensor<2xf32>
  }
}"""
)


@each(
    "policy",
    [
        jaxexp.Policy(),
        jaxexp.Policy(custom_calls=("lapack_*",)),
        jaxexp.Policy(custom_calls=("lapack_*",), stable_custom_calls=False),
    ],
)
def test_wrong_arrays_are_refused(policy: jaxexp.Policy) -> None:
    expected = (
        "has the custom call 'lapack_sgetrf_ffi' in its function @main, whose arrays have to be float32[...,m,n] -> "
        "float32[...,m,n], int32[...,min(m, n)], int32[...], and are float32[2000,2000] -> float32[2,1], "
        "int32[1], int32[]. No release of JAX writes that. To allow any custom call, pass Policy(custom_calls=None)"
    )
    with pytest.raises(jaxexp.errors.PolicyError, match=re.escape(expected)) as error:
        jaxexp.deserialize(with_module(WRONG), policy=policy)
    assert error.value.field == "custom_calls"
    for allowing in (None, jaxexp.Policy(custom_calls=None)):
        assert jaxexp.deserialize(with_module(WRONG), policy=allowing).nr_devices == 1


def test_wrong_arrays_of_an_old_call_are_refused() -> None:
    """It has another form, with sizes as operands."""
    matrix, vector, number = (
        "dense<[0, 1]> : tensor<2xindex>",
        "dense<0> : tensor<1xindex>",
        "dense<> : tensor<0xindex>",
    )
    text = (
        HEAD
        + f"""}} {{ func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {{
        %b = stablehlo.constant dense<1> : tensor<i32>
        %n = stablehlo.constant dense<2000> : tensor<i32>
        %m = stablehlo.iota dim = 0 : tensor<2000x2000xf32>
        %r:3 = stablehlo.custom_call @lapack_sgetrf(%b, %n, %n, %m) {{api_version = 2 : i32,
            operand_layouts = [{number}, {number}, {number}, {matrix}],
            result_layouts = [{matrix}, {vector}, {number}]}}
            : (tensor<i32>, tensor<i32>, tensor<i32>, tensor<2000x2000xf32>)
            -> (tensor<2x1xf32>, tensor<1xi32>, tensor<i32>)
        %s = stablehlo.reshape %r#0 : (tensor<2x1xf32>) -> tensor<2xf32>
        return %s : tensor<2xf32>
    }} }}"""
    )
    with pytest.raises(jaxexp.errors.PolicyError, match=r"'lapack_sgetrf_ffi' .* float32\[2,1\]"):
        jaxexp.deserialize(with_module(text), policy=jaxexp.Policy())


def open_call(size: str) -> jaxexp.Exported:
    """A function of float32[n] that factorizes a matrix of n by n into results of `size`."""
    text = (
        HEAD
        + f""", jax.uses_shape_polymorphism = true}} {{
  func.func public @main(%arg0: tensor<?xf32>) -> tensor<?xf32> {{
    %n = stablehlo.get_dimension_size %arg0, dim = 0 : (tensor<?xf32>) -> tensor<i32>
    %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
    %nn = stablehlo.concatenate %n1, %n1, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %m = stablehlo.dynamic_iota %nn, dim = 0 : (tensor<2xi32>) -> tensor<?x?xf32>
    %four = stablehlo.constant dense<4> : tensor<i32>
    %s = {size} : tensor<i32>
    %s1 = stablehlo.reshape %s : (tensor<i32>) -> tensor<1xi32>
    %ss = stablehlo.concatenate %s1, %s1, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %e = stablehlo.constant dense<> : tensor<0xi32>
    %r:3 = stablehlo.custom_call @lapack_sgetrf_ffi(%m, %ss, %s1, %e) {{api_version = 4 : i32,
        mhlo.backend_config = {{}}, indices_of_shape_operands = dense<[1, 2, 3]> : tensor<3xi64>}}
        : (tensor<?x?xf32>, tensor<2xi32>, tensor<1xi32>, tensor<0xi32>)
        -> (tensor<?x?xf32>, tensor<?xi32>, tensor<i32>)
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %t = stablehlo.reduce(%r#0 init: %z) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<?x?xf32>, tensor<f32>) -> tensor<f32>
    %q = stablehlo.dynamic_broadcast_in_dim %t, %n1, dims = [] : (tensor<f32>, tensor<1xi32>) -> tensor<?xf32>
    return %q : tensor<?xf32>
  }}
}}"""
    )
    exported = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(jax_export.symbolic_shape("b"), np.float32))
    data = dataclasses.replace(exported, mlir_module_serialized=serialized(text)).serialize()
    return jaxexp.deserialize(data, policy=jaxexp.Policy())


SAID = "The custom call lapack_sgetrf_ffi has arrays of other sizes than its code reads and writes"


@each("size", ["stablehlo.minimum %n, %four", "stablehlo.divide %n, %four"])
def test_open_sizes_that_differ(size: str) -> None:
    exported, x = open_call(size), np.ones(6, np.float32)
    for use in (lambda: exported.call(x), lambda: exported.specialize(arr(6))):
        with pytest.raises(jaxexp.errors.ExportError, match=SAID):
            use()
    for call in (jax.jit(exported.call), exported.to_jax().call):
        with pytest.raises(ValueError, match="Error refining shapes") as error:  # of JAX
            call(x)
        assert SAID in str(error.value.__cause__)


def test_open_sizes_that_agree() -> None:
    exported, x = open_call("stablehlo.minimum %n, %four"), np.ones(4, np.float32)
    found = exported.call(x)
    assert found.shape == (4,)
    np.testing.assert_array_equal(exported.specialize(arr(4)).call(x), found)
    np.testing.assert_array_equal(exported.to_jax().call(x), found)


def householder(x: Any) -> Any:
    return lax.linalg.householder_product(x, x[..., 0, : min(2, x.shape[-1])])


# Each with the least number of dimensions, and whether the matrix has to be square.
FUNCTIONS: dict[str, tuple[Callable[..., Any], bool]] = {
    "cholesky": (jnp.linalg.cholesky, True),
    "inverse": (jnp.linalg.inv, True),
    "determinant": (jnp.linalg.slogdet, True),
    "eigh": (jnp.linalg.eigh, True),
    "eigenvalues": (jnp.linalg.eigvals, True),
    "eig": (jnp.linalg.eig, True),
    "qr": (jnp.linalg.qr, False),
    "qr_complete": (lambda x: jnp.linalg.qr(x, mode="complete"), False),
    "svd": (jnp.linalg.svd, False),
    "svd_some": (lambda x: jnp.linalg.svd(x, full_matrices=False), False),
    "singular_values": (lambda x: jnp.linalg.svd(x, compute_uv=False), False),
    "singular_values_full": (lambda x: lax.linalg.svd(x, compute_uv=False, full_matrices=True), False),
    "pseudoinverse": (jnp.linalg.pinv, False),
    "lu": (jsl.lu_factor, False),
    "solve": (lambda x: jnp.linalg.solve(x, x), True),
    "solve_triangular": (lambda x: jsl.solve_triangular(x, x, lower=True, trans=2), True),
    "solve_from_the_right": (lambda x: lax.linalg.triangular_solve(x, x[..., :2, :], left_side=False), True),
    "solve_tridiagonal": (lambda x: lax.linalg.tridiagonal_solve(x[..., 0, :], x[..., 1, :], x[..., 0, :], x), True),
    "exponential": (jsl.expm, True),
    "schur": (lax.linalg.schur, True),
    "hessenberg": (lax.linalg.hessenberg, True),
    "tridiagonal": (lax.linalg.tridiagonal, True),
    "householder": (householder, True),
}
DTYPES = ("float32", "float64", "complex64", "complex128")


def checked(exported: jaxexp.Exported) -> int:
    """Applies the default policy, and counts the calls of LAPACK."""
    jaxexp.Policy().check(exported)
    with _jax.make_ir_context() as context:
        return sum(
            target in call_arrays._targets() for target, _ in mlir.custom_calls(runnable.parse(exported, context))
        )


def shapes_of(is_square: bool) -> Iterator[tuple[Any, ...]]:
    yield from [(4, 4), (2, 3, 4, 4)] if is_square else [(5, 3), (2, 3, 5)]


@pytest.mark.wide(one_in=10, promise="linear algebra as JAX exports it is allowed")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_exports_are_allowed(name: str) -> None:
    function, is_square = FUNCTIONS[name]
    b, *_ = jax_export.symbolic_shape("b")
    *_, shape = shapes_of(is_square)
    spec = jax.ShapeDtypeStruct((b, *shape[1:]), np.float32)
    exported = jaxexp.export(jax.jit(function), platforms=["cpu"])(spec)
    assert checked(exported)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x = x @ x.swapaxes(-1, -2) + 4 * np.eye(shape[-2], dtype=np.float32) if is_square else x
    found, expected = jax.tree.leaves(exported.call(x)), jax.tree.leaves(jax.jit(function)(x))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.long(
    promise="linear algebra of all dtypes, with VJPs and batches, is allowed",
    sibling="test_call_arrays.py::test_exports_are_allowed",
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_exports_of_all_kinds_are_allowed(name: str, dtype: str) -> None:
    function, is_square = FUNCTIONS[name]
    with jax.enable_x64(True):
        for shape in shapes_of(is_square):
            exported = jaxexp.export(jax.jit(function), platforms=["cpu"])(jax.ShapeDtypeStruct(shape, dtype))
            assert checked(exported)
            try:
                checked(exported.vjp())
            except NotImplementedError:  # it has no derivative
                assert name in ("eig", "schur", "hessenberg", "tridiagonal", "qr_complete", "householder", "svd")
        mapped = jax.ShapeDtypeStruct((2, 3, *next(shapes_of(is_square))), dtype)
        assert checked(jaxexp.export(jax.jit(jax.vmap(jax.vmap(function))), platforms=["cpu"])(mapped))


@each("name", ["qr", "lu"])
def test_exports_for_other_platforms_are_allowed(name: str) -> None:
    for shape in ((4, 4), (*jax_export.symbolic_shape("b"), 4, 4)):
        spec = jax.ShapeDtypeStruct(shape, np.float32)
        jaxexp.Policy().check(jaxexp.export(jax.jit(FUNCTIONS[name][0]), platforms=["cpu", "cuda", "tpu"])(spec))
