"""Bad input to `export`, calls and derivatives: an ExportError each, which is also what jax.export raises."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp import _jax
from jaxexp.errors import ExportError
from kit.alike import LIBRARIES, raises_alike, reload
from kit.corpus import Tagged, arr, f32, spec
from kit.each import each

pytestmark = pytest.mark.jax


NOT_JITTED = [
    lambda x: x,
    Tagged,
    jnp.sin.__wrapped__,
    jax.jit(jnp.sin).lower(arr(2)),
    3,
    None,
    "f",
    jnp.ones((50, 50)),
]


@each("not_jitted", NOT_JITTED)
def test_not_jitted(not_jitted: Any) -> None:
    match = r"made by jax\.jit, not .*: pass jax\.jit\(function\)"
    error = raises_alike(lambda library: library.export(not_jitted)(f32(1)), match=match)
    assert len(str(error)) < 400


def test_unstable_custom_call() -> None:
    fun = jax.jit(lambda x: jax.ffi.ffi_call("target_nobody_knows", jax.ShapeDtypeStruct((2,), f32))(x))
    raises_alike(lambda library: library.export(fun)(arr(2)), match="target_nobody_knows")

    def with_another_allowed(library):
        return library.export(fun, disabled_checks=[library.DisabledSafetyCheck.custom_call("other")])(arr(2))

    raises_alike(with_another_allowed, match="target_nobody_knows")
    for target in ("target_nobody_knows", "ALL"):  # ALL lifts the check for every target, as in jax.export
        for library in LIBRARIES.values():
            library.export(fun, disabled_checks=[library.DisabledSafetyCheck.custom_call(target)])(arr(2))


def test_several_symbolic_scopes() -> None:
    (a,), (b,) = jax_export.symbolic_shape("a"), jax_export.symbolic_shape("b")
    fun = jax.jit(lambda x, y: (x, y))
    raises_alike(lambda library: library.export(fun)(spec((a,)), spec((b,))), match="scope")
    nested = jax.jit(lambda d, *, k: (d, k))
    raises_alike(lambda library: library.export(nested)({"p": spec((a,))}, k=spec((b,))), match="'p'.*k|k.*'p'")


@each("version", [0, 8, 11])
def test_calling_convention_out_of_range(version: int) -> None:
    with _jax.calling_convention_flag(version):
        raises_alike(lambda library: library.export(jax.jit(jnp.sin))(arr(2)), match=f"{version}.*9.*10")


def _function(library: Any) -> Any:
    """float32[a, 2], {"k": float32[2*a], "n": int32[]}, scale=float32[] -> float32[a, 2]."""
    (a,) = library.symbolic_shape("a")
    fun = jax.jit(lambda x, d, *, scale: x * d["n"] * scale + d["k"].sum())
    specs = spec((a, 2)), {"k": spec((2 * a,)), "n": spec((), np.int32)}
    return reload(library, library.export(fun)(*specs, scale=spec(())))


X, K, N = arr(3, 2), arr(6), np.int32(2)
WRONG_CALLS = {
    "argument missing": ((X,), {"scale": f32(1)}, ""),
    "argument too many": ((X, {"k": K, "n": N}, X), {"scale": f32(1)}, ""),
    "keyword missing": ((X, {"k": K, "n": N}), {}, "scale"),
    "keyword too many": ((X, {"k": K, "n": N}), {"scale": f32(1), "other": X}, "other"),
    "keyword by position": ((X, {"k": K, "n": N}, f32(1)), {}, ""),
    "tree kind": ((X, [K, N]), {"scale": f32(1)}, "list"),
    "tree key": ((X, {"k": K, "m": N}), {"scale": f32(1)}, "m"),
    "tree leaf": ((X, {"k": (K, K), "n": N}), {"scale": f32(1)}, "tuple"),
    "none": ((None, {"k": K, "n": N}), {"scale": f32(1)}, "None"),
    "rank": ((X[0], {"k": K, "n": N}), {"scale": f32(1)}, "2.*1"),
    "rank of scalar": ((X, {"k": K, "n": N}), {"scale": f32([1])}, "scale.*0.*1"),
    "constant dimension": ((arr(3, 4), {"k": K, "n": N}), {"scale": f32(1)}, "2.*4"),
    "indivisible dimension": ((X, {"k": arr(7), "n": N}), {"scale": f32(1)}, "7"),
    "inconsistent dimension": ((X, {"k": arr(8), "n": N}), {"scale": f32(1)}, "8"),
    "dtype": ((X.astype(np.int32), {"k": K, "n": N}), {"scale": f32(1)}, "float32.*int32|int32.*float32"),
    "dtype in tree": ((X, {"k": K, "n": f32(2)}), {"scale": f32(1)}, r"\['n'\].*int32"),
    "weak dtype": ((X, {"k": K, "n": 2.0}), {"scale": f32(1)}, "int32"),
    "zero-size dimension": ((arr(0, 2), {"k": arr(0), "n": N}), {"scale": f32(1)}, "0"),
}


@each("how", ["eager", "after a right one", "jit", "grad"])
def test_wrong_call(how: str) -> None:
    """Also on the way that repeated calls take."""
    functions = {library: _function(library) for library in LIBRARIES.values()}
    for args, kwargs, match in WRONG_CALLS.values():
        if how == "after a right one":
            functions[jaxexp].call(X, {"k": K, "n": N}, scale=f32(1))

        def provoke(library, args=args, kwargs=kwargs):
            call = functions[library].call
            if how == "grad":
                return jax.vjp(lambda a, k: call(*a, **k), args, kwargs)
            return (jax.jit(call) if how == "jit" else call)(*args, **kwargs)

        raises_alike(provoke, match=match)


@each("argument", ["text", object(), [1, "x"]])
def test_argument_is_no_array(argument) -> None:
    for library in LIBRARIES.values():
        loaded = reload(library, library.export(jax.jit(lambda x: x))(arr(2)))
        with pytest.raises((TypeError, ValueError)):
            loaded.call(argument)


@each("how", [lambda f: f, jax.jit])
def test_wrong_platform(how: Any) -> None:
    def provoke(library):
        loaded = reload(library, library.export(jax.jit(jnp.cos), platforms=("tpu", "rocm"))(arr(2)))
        how(loaded.call)(arr(2))

    raises_alike(provoke, match="tpu.*cpu|cpu.*tpu")


def _loaded_sin(library: Any, vjp_order: int) -> Any:
    return reload(library, library.export(jax.jit(jnp.sin))(f32(0)), vjp_order)


@each("order", [0, 1])
def test_missing_vjp(order: int) -> None:

    def provoke(library):
        fun = _loaded_sin(library, order).call
        for _ in range(order):
            fun = jax.grad(fun)
        assert abs(float(fun(f32(1))) - [np.sin, np.cos][order](1)) < 1e-5
        jax.grad(fun)(f32(1))

    def ask(library):
        link = _loaded_sin(library, order)
        for _ in range(order):
            link = link.vjp()
        assert not link.has_vjp()
        link.vjp()

    for wrong in (provoke, ask):
        raises_alike(wrong, match=r"(?i)vjp")


@each("order", [1, 2])
def test_serialize_without_vjp(order: int, tmp_path) -> None:
    raises_alike(lambda library: _loaded_sin(library, order - 1).serialize(vjp_order=order), match=r"(?i)vjp")
    with pytest.raises(ExportError, match=r"(?i)vjp"):
        _loaded_sin(jaxexp, order - 1).save(tmp_path / "f", vjp_order=order)
    assert list(tmp_path.iterdir()) == []


ONES = np.ones(3, np.float32)


@pytest.mark.skipif(jax.devices()[0].platform == "gpu", reason="here it stands for the kind of GPU")
@each("platforms", [["gpu"], ["cpu", "gpu"], "gpu"])
def test_gpu_without_one(platforms: Any) -> None:
    with pytest.raises(ExportError, match="'cuda' for GPUs of NVIDIA, or 'rocm'") as caught:
        jaxexp.export(jax.jit(jnp.sin), platforms=platforms)(ONES)
    with pytest.raises(RuntimeError) as of_jax:
        jax_export.export(jax.jit(jnp.sin), platforms=["gpu"])(ONES)
    assert isinstance(caught.value, type(of_jax.value))


@each("platforms", [["nonsense"], ("cpu", "GPU"), ["Cuda", "tpu"], [3]])
def test_names_that_jax_does_not_know(platforms: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    exported = jaxexp.export(jax.jit(jnp.sin), platforms=platforms)(ONES)
    assert exported.platforms == jax_export.export(jax.jit(jnp.sin), platforms=platforms)(ONES).platforms
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.name.startswith("jaxexp.")
    said = record.getMessage()
    assert repr(next(p for p in platforms if p not in ("cpu", "tpu"))) in said
    assert all(name in said for name in ("cpu", "cuda", "rocm", "tpu"))
    if platforms == [3]:
        with pytest.raises(ExportError, match="it was exported for 3, and is called on"):
            exported.call(ONES)
    caplog.clear()
    jaxexp.export(jax.jit(jnp.sin), platforms=["cpu", "cuda", "rocm", "tpu"])(ONES)
    assert not caplog.records
