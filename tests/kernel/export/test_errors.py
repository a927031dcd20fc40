"""Bad input to `export`, calls and derivatives: an ExportError each, which is also what jax.export raises."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit.alike import LIBRARIES, raises_alike, reload
from kit.corpus import CASES, Tagged, arr, export_with, f32, spec

# --- exporting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "not_jitted", [lambda x: x, Tagged, 3, None, "f"], ids=["lambda", "class", "int", "None", "str"]
)
def test_not_jitted(not_jitted) -> None:
    raises_alike(lambda library: library.export(not_jitted)(f32(1)), match="jit")


def test_what_was_not_jitted_is_named_in_a_line() -> None:
    with pytest.raises(jaxexp.ExportError, match=r"not an object of <class '.*ArrayImpl'>: pass jax\.jit\(function\)"):
        jaxexp.export(jnp.ones((50, 50)))


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


@pytest.mark.parametrize(
    "callback",
    [
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        lambda x: jax.experimental.io_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True),
        lambda x: (jax.debug.print("{x}", x=x), x)[1],
    ],
    ids=["pure_callback", "io_callback", "debug_print"],
)
def test_host_callbacks(callback) -> None:
    import jax.experimental

    error = raises_alike(lambda library: library.export(jax.jit(callback))(arr(2)), match="callback")
    assert isinstance(error, NotImplementedError)


@pytest.fixture
def calling_convention():
    name = "jax_export_calling_convention_version"
    before = getattr(jax.config, name)
    yield lambda version: jax.config.update(name, version)
    jax.config.update(name, before)


@pytest.mark.parametrize("version", [0, 8, 11])
def test_calling_convention_out_of_range(calling_convention, version: int) -> None:
    calling_convention(version)
    raises_alike(lambda library: library.export(jax.jit(jnp.sin))(arr(2)), match=f"{version}.*9.*10")


@pytest.mark.parametrize("version", [9, 10])
def test_calling_convention_in_range(calling_convention, version: int) -> None:
    calling_convention(version)
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(2))
    assert exported.calling_convention_version == version
    assert reload(jax_export, exported).calling_convention_version == version
    np.testing.assert_allclose(reload(jaxexp, exported).call(arr(2)), np.sin(arr(2)), rtol=1e-6)


def test_wrong_arguments_of_the_function_itself() -> None:
    """Errors of the function being traced are the user's own and pass through."""

    @jax.jit
    def broken(x):
        raise LookupError("mine")

    for library in LIBRARIES.values():
        with pytest.raises(LookupError, match="mine"):
            library.export(broken)(arr(2))
        with pytest.raises(TypeError):
            library.export(jax.jit(lambda x: x))(arr(2), arr(2))


# --- calling --------------------------------------------------------------------------------------------------------


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
    "rank of scalar": ((X, {"k": K, "n": N}), {"scale": f32([1])}, "0.*1"),
    "constant dimension": ((arr(3, 4), {"k": K, "n": N}), {"scale": f32(1)}, "2.*4"),
    "indivisible dimension": ((X, {"k": arr(7), "n": N}), {"scale": f32(1)}, "7"),
    "inconsistent dimension": ((X, {"k": arr(8), "n": N}), {"scale": f32(1)}, "8"),
    "dtype": ((X.astype(np.int32), {"k": K, "n": N}), {"scale": f32(1)}, "float32.*int32|int32.*float32"),
    "dtype in tree": ((X, {"k": K, "n": f32(2)}), {"scale": f32(1)}, "int32"),
    "weak dtype": ((X, {"k": K, "n": 2.0}), {"scale": f32(1)}, "int32"),
    "zero-size dimension": ((arr(0, 2), {"k": arr(0), "n": N}), {"scale": f32(1)}, "0"),
}


@pytest.mark.sampled(one_in=4, reason="many cases go the same way")
@pytest.mark.parametrize("how", ["eager", "jit", "grad"])
@pytest.mark.parametrize("mistake", WRONG_CALLS)
def test_wrong_call(mistake: str, how: str) -> None:
    args, kwargs, match = WRONG_CALLS[mistake]

    def provoke(library):
        call = _function(library).call
        if how == "jit":
            call = jax.jit(call)
        if how == "grad":
            return jax.vjp(lambda a, k: call(*a, **k), args, kwargs)
        return call(*args, **kwargs)

    raises_alike(provoke, match=match)


def test_right_call() -> None:
    """What the wrong calls above are wrong about."""
    for library in LIBRARIES.values():
        found = _function(library).call(X, {"k": K, "n": N}, scale=f32(1))
        np.testing.assert_allclose(found, X * 2 + K.sum(), rtol=1e-6)


def test_wrong_call_after_a_right_one() -> None:
    """The way that repeated calls take must check as much as the first one."""
    loaded = _function(jaxexp)
    for _ in range(2):
        loaded.call(X, {"k": K, "n": N}, scale=f32(1))
        for args, kwargs, _match in WRONG_CALLS.values():
            with pytest.raises(jaxexp.ExportError):
                loaded.call(*args, **kwargs)


def test_errors_name_the_argument() -> None:
    for mistake, where in {"dtype in tree": r"\[1\]\['n'\]|d\['n'\]|'n'", "rank of scalar": "scale"}.items():
        args, kwargs, _ = WRONG_CALLS[mistake]
        with pytest.raises(jaxexp.ExportError, match=where):
            _function(jaxexp).call(*args, **kwargs)


def test_constraint_violated() -> None:
    def provoke(library):
        (a,) = library.symbolic_shape("a", constraints=["a >= 4"])
        library.export(jax.jit(lambda x: x))(spec((a,))).call(arr(3))

    raises_alike(provoke, match="4.*3|3.*4")


@pytest.mark.parametrize("argument", ["text", object(), [1, "x"]], ids=["str", "object", "list"])
def test_argument_is_no_array(argument) -> None:
    for library in LIBRARIES.values():
        loaded = reload(library, library.export(jax.jit(lambda x: x))(arr(2)))
        with pytest.raises((TypeError, ValueError)):
            loaded.call(argument)


@pytest.mark.parametrize("how", ["eager", "jit"])
def test_wrong_platform(how: str) -> None:
    def provoke(library):
        loaded = reload(library, library.export(jax.jit(jnp.cos), platforms=("tpu", "rocm"))(arr(2)))
        (jax.jit(loaded.call) if how == "jit" else loaded.call)(arr(2))

    raises_alike(provoke, match="tpu.*cpu|cpu.*tpu")


def test_wrong_platform_among_several() -> None:
    """A function lowered for two platforms may only call what covers both."""

    def provoke(library):
        inner = library.export(jax.jit(jnp.cos), platforms=("cpu",))(arr(2))
        library.export(jax.jit(lambda x: inner.call(x)), platforms=("cpu", "tpu"))(arr(2))

    raises_alike(provoke, match="tpu")


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("devices", [1, 4])
def test_wrong_device_count(how: str, devices: int) -> None:
    p = CASES["sharded_1d"].build()
    args = [np.asarray(a) for a in p.args]
    if devices > 1:
        m = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices], axis_types=(AxisType.Auto,))
        args = [jax.device_put(a, NamedSharding(m, P("x"))) for a in args]

    def provoke(library):
        loaded = reload(library, export_with(library, p))
        (jax.jit(loaded.call) if how == "jit" else loaded.call)(*args)

    raises_alike(provoke, match=f"8 devices.*{devices}|{devices}.*8")


# --- derivatives ----------------------------------------------------------------------------------------------------


def _loaded_sin(library: Any, vjp_order: int) -> Any:
    return reload(library, library.export(jax.jit(jnp.sin))(f32(0)), vjp_order)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_missing_vjp(order: int) -> None:
    """Derivatives up to the order that was written work; the next one is an error."""

    def provoke(library):
        fun = _loaded_sin(library, order).call
        for _ in range(order):
            fun = jax.grad(fun)
        assert abs(float(fun(f32(1))) - [np.sin, np.cos, lambda x: -np.sin(x)][order](1)) < 1e-5
        jax.grad(fun)(f32(1))

    raises_alike(provoke, match=r"(?i)vjp")

    def ask(library):
        link = _loaded_sin(library, order)
        for _ in range(order):
            link = link.vjp()
        assert not link.has_vjp()
        link.vjp()

    raises_alike(ask, match=r"(?i)vjp")


@pytest.mark.parametrize("order", [1, 2])
def test_serialize_without_vjp(order: int) -> None:
    raises_alike(lambda library: _loaded_sin(library, order - 1).serialize(vjp_order=order), match=r"(?i)vjp")


def test_save_without_vjp(tmp_path) -> None:
    with pytest.raises(jaxexp.ExportError, match=r"(?i)vjp"):
        _loaded_sin(jaxexp, 0).save(tmp_path / "f", vjp_order=1)
    assert list(tmp_path.iterdir()) == []
