"""Custom calls that nothing implements here: lowered like all others, and named when the compiler refuses them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit import other_modules
from kit.each import each
from kit.linear_algebra import ARTIFACTS, LAPACK, close, load, precision, stored

pytestmark = pytest.mark.jax


def is_lapack(target: str) -> bool:
    return target.startswith(("lapack_", "blas_"))


X = np.arange(1.0, 5.0, dtype=np.float32)


def calling(target: str, *, api_version: int = 4, **options: Any) -> jaxexp.Exported:
    """A function that calls a custom target, and adds one; written and read."""

    def function(x: Any) -> Any:
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.ffi.ffi_call(target, result, custom_call_api_version=api_version)(x) + 1

    return reread(function, target, **options)


def reread(function: Any, target: str, **options: Any) -> jaxexp.Exported:
    checks = [jaxexp.DisabledSafetyCheck.custom_call(target)]
    exported = jaxexp.export(jax.jit(function), disabled_checks=checks, **options)(X)
    return jaxexp.deserialize(exported.serialize())


@each("api_version", [2, 4])
def test_unknown_targets_are_named(api_version: int, tmp_path: Path) -> None:
    exported = calling("jaxexp_nowhere", api_version=api_version)
    message = r"calling function: .* on cpu: jaxexp_nowhere\. Register each with jax\.ffi\.register_ffi_target"
    for call in (exported.call, lambda x: exported.precompile(into=tmp_path / "f.exe")):
        with pytest.raises(jaxexp.errors.ExportError, match=message) as error:
            call(X)
        assert isinstance(error.value, jax.errors.JaxRuntimeError), "as in jax.export"
        assert isinstance(error.value.__cause__, jax.errors.JaxRuntimeError)
    for call in (jax.jit(exported.call), lambda x: jax.vmap(exported.call)(x[None])):
        with pytest.raises(jax.errors.JaxRuntimeError, match="jaxexp_nowhere"):  # inside a program of the caller's
            call(X)
    # Another process may have it.
    assert b"jaxexp_nowhere" in reread(exported.call, "jaxexp_nowhere").mlir_module_serialized


def test_lowering_asks_for_nothing() -> None:
    """What is only lowered, or in a branch that is not taken, need not be there; in jax.export it need not, either."""
    ours = calling("jaxexp_nowhere")
    for exported in (ours, jax_export.deserialize(ours.serialize())):

        def in_a_branch(x: Any, f: Any = exported) -> Any:
            return jax.lax.cond(False, f.call, lambda x: x * 3, x)

        assert "jaxexp_nowhere" in jax.jit(exported.call).lower(X).as_text()
        assert jax.eval_shape(exported.call, X).shape == X.shape
        close(jax.jit(in_a_branch)(X), 3 * X)
        jax.jit(lambda x, f=exported: (f.call(x), x)[1]).lower(X)


def test_other_errors_of_the_compiler_stay() -> None:
    """A function with a custom call that is there, and something else that goes wrong."""
    exported = reread(lambda x: jnp.linalg.cholesky(jnp.broadcast_to(x[:1], (1 << 20, 1 << 20))), "unused")
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED|[Oo]ut of memory"):
        jax.block_until_ready(exported.call(X))


def test_other_names_are_explained() -> None:
    for target, message in (
        ("lapack_sgone", r"lapack_sgone\. .* need the JAX release that exported the function"),
        ("xla_python_cpu_callback", r"calls back to Python \(xla_python_cpu_callback\)"),
    ):
        with pytest.raises(jaxexp.errors.ExportError, match=message):
            calling(target, api_version=2).call(X)


OLD_CALL = """func.func public @main(%x: ARRAY) -> ARRAY {
    %c = stablehlo.constant dense<1> : tensor<i32>
    %0:COUNT = stablehlo.custom_call @lapack_sgetrf(%c, %c, %c, %x) {
        api_version = 2 : i32, operand_layouts = [SCALAR, SCALAR, SCALAR, LAYOUT], result_layouts = [LAYOUTS]
    } : (tensor<i32>, tensor<i32>, tensor<i32>, ARRAY) -> (RESULTS)
    return %0#0 : ARRAY }"""


@each(
    "count, message",
    [
        (3, "does not say how large its result 0 is"),
        (1, "expected a module whose operations have the attributes .* found IndexError"),
    ],
)
def test_old_calls_that_no_release_wrote(count: int, message: str) -> None:
    """jaxlib does not check the number of an axis: 0 axes less 2 would be in front of the type."""
    layouts = ", ".join(["LAYOUT", "LAYOUT", "SCALAR"][:count])
    results = ", ".join(["ARRAY", "tensor<?xi32>", "tensor<i32>"][:count])
    text = OLD_CALL.replace("COUNT", str(count)).replace("RESULTS", results).replace("LAYOUTS", layouts)
    text = text.replace("SCALAR", "dense<> : tensor<0xindex>").replace("LAYOUT", "dense<0> : tensor<1xindex>")
    text = text.replace("ARRAY", "tensor<?xf32>")
    serialized = other_modules.serialized(text)
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b"), np.float32)
    exported = dataclasses.replace(jaxexp.export(jax.jit(lambda x: x))(spec), mlir_module_serialized=serialized)
    blob = exported.serialize()
    loaded = jaxexp.deserialize(blob)
    for use in (
        lambda: jaxexp.deserialize(blob, policy=jaxexp.Policy()),
        lambda: jaxexp.migrate(blob),
        lambda: loaded.specialize(X),
        lambda: loaded.call(X),
    ):
        with pytest.raises(jaxexp.errors.ExportError, match=message):
            use()


def test_registered_targets_are_called() -> None:
    from jaxlib.cpu import _lapack

    _lapack.initialize()

    def factor(x: Any) -> Any:
        shapes = jax.ShapeDtypeStruct((2, 2), np.float32), jax.ShapeDtypeStruct((), np.int32)
        a = x.reshape(2, 2)
        a = a @ a.T
        return a, jax.ffi.ffi_call("jaxexp_potrf", shapes)(a, uplo=np.uint8(ord("L")))[0]

    exported = reread(factor, "jaxexp_potrf")
    with pytest.raises(jaxexp.errors.ExportError, match="jaxexp_potrf"):
        exported.call(X)
    jax.ffi.register_ffi_target("jaxexp_potrf", _lapack.registrations()["lapack_spotrf_ffi"], platform="cpu")
    _, found = exported.call(X)
    assert np.isfinite(found).all()


@pytest.mark.wide(one_in=20, promise="linear algebra of old releases runs in jax.export after migrate")
@pytest.mark.parametrize(
    "name", [name for name, calls in ARTIFACTS.items() if "_vjp_" not in name and any(map(is_lapack, calls))]
)
def test_migrated_linear_algebra_runs_in_jax_export(name: str) -> None:
    """What `migrate` writes has the calls of today, which jax.export's own reader runs."""
    with precision(name):
        x, _ = stored(name)
        blob = jaxexp.migrate((LAPACK / f"{name}.bin").read_bytes(), inputs=((x,), {}))
        of_lapack = list(filter(is_lapack, jaxexp.compatibility(blob).custom_calls or ()))
        assert of_lapack
        assert all(target.endswith("_ffi") for target in of_lapack)
        found, expected = (exported.call(x) for exported in (jax_export.deserialize(blob), load(name)))
        jax.tree.map(close, found, expected)
