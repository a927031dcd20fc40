"""Custom calls that nothing implements here: named, before the compiler is asked."""

from __future__ import annotations

import ctypes
from typing import Any

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit.linear_algebra import ARTIFACTS, LAPACK, close, load, precision, stored


def is_lapack(target: str) -> bool:
    return target.startswith(("lapack_", "blas_"))


# Custom calls that nothing implements


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


@pytest.mark.parametrize("api_version", [2, 4])
def test_unknown_targets_are_named(api_version: int) -> None:
    exported = calling("jaxexp_nowhere", api_version=api_version)
    message = r"calling function: .* on cpu: jaxexp_nowhere\. Register each with jax\.ffi\.register_ffi_target"
    for call in (exported.call, jax.jit(exported.call), lambda x: jax.vmap(exported.call)(x[None])):
        with pytest.raises(jaxexp.ExportError, match=message):
            call(X)
    # Another process may have it.
    again = jaxexp.export(
        jax.jit(exported.call), disabled_checks=[jaxexp.DisabledSafetyCheck.custom_call("jaxexp_nowhere")]
    )(X)
    assert b"jaxexp_nowhere" in again.mlir_module_serialized


def test_dropped_linear_algebra_says_which_jax() -> None:
    with pytest.raises(jaxexp.ExportError, match=r"lapack_sgone\. .* need the JAX release that exported the function"):
        calling("lapack_sgone").call(X)


def test_registered_targets_are_called() -> None:
    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
    def double(out: int, operands: Any, status: int) -> None:
        for i in range(4):
            value = ctypes.c_float.from_address(operands[0] + 4 * i).value
            ctypes.c_float.from_address(out + 4 * i).value = 2 * value

    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    untyped = capsule(ctypes.cast(double, ctypes.c_void_p), b"xla._CUSTOM_CALL_TARGET", None)
    exported = calling("jaxexp_double", api_version=2)
    with pytest.raises(jaxexp.ExportError, match="jaxexp_double"):
        exported.call(X)
    jax.ffi.register_ffi_target("jaxexp_double", untyped, platform="cpu", api_version=0)
    KEPT.append(double)
    close(exported.call(X), 2 * X + 1)


KEPT: list[Any] = []  # what is registered stays so


def test_registered_typed_targets_are_called() -> None:
    from jaxlib.cpu import _lapack

    _lapack.initialize()

    def factor(x: Any) -> Any:
        shapes = jax.ShapeDtypeStruct((2, 2), np.float32), jax.ShapeDtypeStruct((), np.int32)
        a = x.reshape(2, 2)
        a = a @ a.T
        return a, jax.ffi.ffi_call("jaxexp_potrf", shapes)(a, uplo=np.uint8(ord("L")))[0]

    exported = reread(factor, "jaxexp_potrf")
    with pytest.raises(jaxexp.ExportError, match="jaxexp_potrf"):
        exported.call(X)
    jax.ffi.register_ffi_target("jaxexp_potrf", _lapack.registrations()["lapack_spotrf_ffi"], platform="cpu")
    _, found = exported.call(X)
    assert np.isfinite(found).all()


def test_calls_of_other_platforms_do_not_matter() -> None:
    """A function for several platforms holds the custom calls of all of them."""

    def elsewhere(x: Any) -> Any:
        return jax.ffi.ffi_call("jaxexp_elsewhere", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    def function(x: Any) -> Any:
        return jax.lax.platform_dependent(x, cpu=lambda x: x * 2, default=elsewhere)

    exported = reread(function, "jaxexp_elsewhere", platforms=("cpu", "tpu"))
    close(exported.call(X), 2 * X)


def test_callbacks_to_python_are_named() -> None:
    with pytest.raises(jaxexp.ExportError, match=r"calls back to Python \(xla_python_cpu_callback\)"):
        calling("xla_python_cpu_callback", api_version=2).call(X)


def test_what_the_compiler_takes_apart_is_no_custom_call() -> None:
    def function(x: Any) -> Any:
        return jax.lax.approx_max_k(x, 2), jax.lax.top_k(x, 2), jax.lax.erf_inv(x / 5)

    exported = jaxexp.export(jax.jit(function))(X)
    assert b"custom_call" in exported.mlir_module_serialized
    jax.tree.map(close, exported.call(X), function(X))


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
