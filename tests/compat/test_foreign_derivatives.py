"""Derivatives of modules as they are written: zero stays zero, and what has no derivative is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp
from jax import lax, nn
from jax.scipy import special as jsp

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import mlir
from jaxexp._readback.read_back import on_any_platform
from jaxexp.errors import UnsupportedError
from kit.each import each
from kit.other_modules import serialized
from kit.vhlo import bytecode

pytestmark = pytest.mark.jax

INF = np.inf
REAL = 0, 1e-20, -1e-20, 0.3, -0.7, 1.7, -5.3, 30, -30, INF, -INF
FINITE = REAL[:-2]
BELOW_INF = (*FINITE, -INF)
UNIT = 0, 1e-20, -1e-20, 0.3, -0.7, 0.95
NOT_ZERO = 0.3, -0.7, 1.7, -5.3, 30
POSITIVE = 0.3, 1.7, 9.1, 30, INF


class Case(NamedTuple):
    """A function of JAX, the same in float64 without JAX, and where it is differentiated."""

    function: Callable[[Any], Any]
    reference: Callable[[Any], Any]
    points: Sequence[float]


def power(x: Any, y: float) -> Any:
    return lax.pow(x, jnp.full_like(x, y))


FUNCTIONS = {
    "acos": Case(jnp.arccos, np.arccos, UNIT),
    "acosh": Case(jnp.arccosh, np.arccosh, (1.7, 9.1, 30, INF)),
    "asin": Case(jnp.arcsin, np.arcsin, UNIT),
    "asinh": Case(jnp.arcsinh, np.arcsinh, REAL),
    "atan": Case(jnp.arctan, np.arctan, REAL),
    "atan2": Case(lambda x: jnp.arctan2(x, jnp.full_like(x, 2)), lambda x: np.arctan2(x, 2), REAL),
    "atan2_below": Case(lambda x: jnp.arctan2(jnp.full_like(x, 2), x), lambda x: np.arctan2(2, x), REAL),
    "atanh": Case(jnp.arctanh, np.arctanh, UNIT),
    "cbrt": Case(jnp.cbrt, np.cbrt, (*NOT_ZERO, -30, INF, -INF)),
    "clamp": Case(lambda x: jnp.clip(x, -2, 3), lambda x: np.clip(x, -2, 3), REAL),
    "cos": Case(jnp.cos, np.cos, FINITE),
    "cosh": Case(jnp.cosh, np.cosh, FINITE),
    "cumsum": Case(lambda x: jnp.cumsum(jnp.stack([x, jnp.sin(x)]), 0)[1], lambda x: x + np.sin(x), FINITE),
    "digamma": Case(lax.digamma, sp.digamma, (*NOT_ZERO, INF)),
    "elu": Case(nn.elu, lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), REAL),
    "erf": Case(lax.erf, sp.erf, REAL),
    "erf_inv": Case(lax.erf_inv, sp.erfinv, UNIT),
    "erfc": Case(lax.erfc, sp.erfc, REAL),
    "exp": Case(jnp.exp, np.exp, BELOW_INF),
    "expm1": Case(jnp.expm1, np.expm1, BELOW_INF),
    "gelu": Case(lambda x: nn.gelu(x, approximate=False), lambda x: x * sp.ndtr(x), FINITE),
    "gelu_tanh": Case(nn.gelu, lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2, FINITE),
    "hypot": Case(lambda x: jnp.hypot(x, jnp.full_like(x, 0.5)), lambda x: np.hypot(x, 0.5), FINITE),
    "i0": Case(jsp.i0, sp.i0, FINITE),
    "i0e": Case(jsp.i0e, sp.i0e, REAL),
    "i1": Case(jsp.i1, sp.i1, FINITE),
    "i1e": Case(jsp.i1e, sp.i1e, REAL),
    "lgamma": Case(lax.lgamma, sp.gammaln, NOT_ZERO),
    "log": Case(jnp.log, np.log, POSITIVE),
    "log1p": Case(jnp.log1p, np.log1p, (*UNIT, *POSITIVE)),
    "log_ndtr": Case(jsp.log_ndtr, sp.log_ndtr, FINITE),
    "logaddexp": Case(lambda x: jnp.logaddexp(x, jnp.ones_like(x)), lambda x: np.logaddexp(x, 1), REAL),
    "logistic": Case(lax.logistic, sp.expit, REAL),
    "logsumexp": Case(
        lambda x: jsp.logsumexp(jnp.stack([x, x * 0, -x]), 0), lambda x: sp.logsumexp([x, 0, -x]), FINITE
    ),
    "ndtri": Case(jsp.ndtri, sp.ndtri, (0.01, 0.3, 0.95)),
    "norm": Case(lambda x: jnp.linalg.norm(jnp.stack([x, x + 1]), axis=0), lambda x: np.hypot(x, x + 1), FINITE),
    "power": Case(lambda x: power(x, 2.5), lambda x: x**2.5, (0, *POSITIVE[:-1])),
    "power_of_integer": Case(lambda x: power(x, 3), lambda x: x**3, FINITE),
    "power_above": Case(lambda x: lax.pow(jnp.full_like(x, 2), x), lambda x: 2.0**x, BELOW_INF),
    "remainder": Case(lambda x: lax.rem(x, jnp.full_like(x, 3)), lambda x: np.fmod(x, 3), FINITE),
    "rsqrt": Case(lax.rsqrt, lambda x: 1 / np.sqrt(x), POSITIVE),
    "silu": Case(nn.silu, lambda x: x * sp.expit(x), BELOW_INF[:-1]),
    "sinc": Case(jnp.sinc, np.sinc, (0, *NOT_ZERO[:-1])),
    "sinh": Case(jnp.sinh, np.sinh, FINITE),
    "softmax": Case(lambda x: nn.softmax(jnp.stack([x, 2 * x]), 0)[0], lambda x: sp.expit(-x), FINITE),
    "softplus": Case(nn.softplus, lambda x: np.logaddexp(x, 0), REAL),
    "sqrt": Case(jnp.sqrt, np.sqrt, POSITIVE),
    "tan": Case(jnp.tan, np.tan, FINITE),
    "tanh": Case(jnp.tanh, np.tanh, REAL),
    "xlogy": Case(lambda x: jsp.xlogy(x, jnp.full_like(x, 3)), lambda x: x * np.log(3), FINITE[1:]),
}
# Functions as PyTorch and TensorFlow write them: what overflows, or is a root of 0, is computed and not chosen.
WRITTEN_OUT = {
    "elu": Case(lambda x: jnp.where(x > 0, x, jnp.exp(x) - 1), FUNCTIONS["elu"].reference, REAL),
    "gelu": Case(lambda x: 0.5 * x * lax.erfc(-x * np.float32(np.sqrt(0.5))), FUNCTIONS["gelu"].reference, FINITE),
    "log_of_mask": Case(lambda x: jnp.where(x > 0.1, jnp.log(x), 0), lambda x: np.log(x) if x > 0.1 else 0 * x, REAL),
    "log_sigmoid": Case(
        lambda x: jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x))), lambda x: -np.logaddexp(0, -x), REAL
    ),
    "logistic": Case(lambda x: 1 / (1 + jnp.exp(-x)), sp.expit, (*REAL, 100, -100)),
    "mish": Case(
        lambda x: x * jnp.tanh(jnp.where(x > 20, x, jnp.log1p(jnp.exp(x)))),
        lambda x: x * np.tanh(np.logaddexp(0, x)),
        (*FINITE, 100, -100),
    ),
    "norm_or_least": Case(
        lambda x: jnp.maximum(jnp.sqrt(x * x), 1e-12), lambda x: np.maximum(np.abs(x), 1e-12), FINITE[:1] + FINITE[3:]
    ),
    "quotient_of_mask": Case(
        lambda x: jnp.where(x == 0, 1 + 0 * x, jnp.sin(x) / x), lambda x: np.sinc(x / np.pi), (0, *NOT_ZERO)
    ),
    "softplus": Case(
        lambda x: jnp.where(x > 20, x, jnp.log1p(jnp.exp(x))), lambda x: np.logaddexp(x, 0), (*REAL, 100, -100)
    ),
    "sqrt_of_relu": Case(
        lambda x: jnp.where(x > 0.1, jnp.sqrt(nn.relu(x)), 0), lambda x: np.sqrt(x) if x > 0.1 else 0 * x, REAL
    ),
}
# Where something else than the derivative is documented: `sign(x) * f(abs(x))` at 0.
ZERO_AT_ZERO = "asinh", "i1", "i1e"


def slope(function: Callable[[Any], Any], x: float) -> float:
    """The derivative by differences in float64; NaN if the two sides differ."""
    with np.errstate(all="ignore"):
        if np.isinf(x):
            return float(function(2 * np.copysign(1e15, x)) - function(np.copysign(1e15, x))) / np.copysign(1e15, x)
        h = 1e-6 * max(1, abs(x))
        left, right = ((function(np.float64(x + s * h)) - function(np.float64(x))) / (s * h) for s in (-1, 1))
    if abs(left - right) > 1e-3 * max(1, abs(left)):
        return float(np.nan if x == 0 else right if x > 0 else left) if abs(x) < h else np.nan
    return float(left + right) / 2


def with_chlo_expanded(text: str) -> bytes:
    with _jax.make_ir_context():
        module = _jax.ir.Module.parse(text)
        mlir.run_passes(module, "func.func(chlo-legalize-to-stablehlo)")
        return bytes(_jax.module_to_bytecode(module))


def for_an_old_reader(text: str) -> bytes:
    with _jax.make_ir_context():
        return bytes(_jax.serialize_portable_artifact(_jax.ir.Module.parse(text), "1.0.0", True))


def imported(function: Callable[..., Any], *args: Any, through: Callable[[str], bytes] = bytecode) -> jaxexp.Exported:
    return jaxexp.from_stablehlo(through(jax.jit(function).lower(*args).as_text()), differentiable=True)


@pytest.mark.wide(one_in=2, promise="derivatives of modules of other producers are those by differences")
@pytest.mark.parametrize(
    ("producer", "cases"),
    [
        (serialized, FUNCTIONS),
        (for_an_old_reader, FUNCTIONS),
        (with_chlo_expanded, FUNCTIONS),
        (with_chlo_expanded, WRITTEN_OUT),
    ],
)
def test_derivatives_are_those_by_differences(producer: Callable[[str], bytes], cases: dict[str, Case]) -> None:
    """All functions in one module, which returns the sum of all their results."""
    xs = {name: np.float32(case.points) for name, case in cases.items()}
    takes_bits = [name for name in cases if "bitcast" in jax.jit(cases[name].function).lower(xs[name]).as_text()]
    for name in takes_bits:  # as JAX 0.12 lowers `lgamma`
        del xs[name]

    def every(*arrays: Any) -> Any:
        return [cases[name].function(x) for name, x in zip(xs, arrays, strict=True)]

    exported = jaxexp.from_stablehlo(producer(jax.jit(every).lower(*xs.values()).as_text()), differentiable=True)
    cotangents = [np.ones(aval.shape, aval.dtype) for aval in exported.out_avals]
    found = dict(zip(xs, exported.vjp().call(*xs.values(), *cotangents), strict=True))
    wrong = {}
    for name, case in cases.items():
        for x, one in zip(case.points, found.get(name, ()), strict=False):
            expected = slope(case.reference, x)
            allowed = (0, expected) if x == 0 and name in ZERO_AT_ZERO else (expected,)
            if np.isfinite(expected) and not any(np.isclose(one, each, 2e-3, 1e-5) for each in allowed):
                wrong[name, x] = float(one), expected
    assert not wrong, wrong


@each("dtype, tolerance", [("float64", 1e-6), ("bfloat16", 2e-2), ("float16", 5e-3)])
def test_derivatives_in_other_dtypes(dtype: str, tolerance: float) -> None:
    with jax.enable_x64(True):
        x = np.array([0, 0.1, -0.5, 0.9, 1.5]).astype(jnp.dtype(dtype))
        exported = imported(lax.erfc, x, through=with_chlo_expanded)
        found = jax.grad(lambda x: exported.call(x).astype(np.float64).sum())(x)
    np.testing.assert_allclose(np.float64(found), [slope(sp.erfc, float(v)) for v in x], rtol=tolerance)


def in_a_loop(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: lax.fori_loop(0, 3, lambda _, y: f(y) / 2, x)


def in_a_branch(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: lax.cond(x.sum() > 0, f, lambda x: -x, x)


# What is chosen, where, what it is chosen from, and what is taken elsewhere.
CHOSEN: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "acosh": (lambda x: x > 1.1, jnp.arccosh, jnp.sin),
    "atan2": (lambda x: x != 0, lambda x: jnp.arctan2(x, 2 * x * x), jnp.square),
    "log": (lambda x: x > 0.1, lambda x: x * jnp.log(x), jnp.sin),
    "power": (lambda x: x > 0.1, lambda x: power(x, 2.5), jnp.cos),
    "quotient": (lambda x: x != 0, lambda x: jnp.sin(x) / x, lambda x: power(x, 3)),
    "root": (lambda x: x > 0.1, jnp.sqrt, jnp.square),
}


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.wide(one_in=6, promise="zero stays zero in derivatives of all orders and under all transformations")
def test_transformations(name: str) -> None:
    where, chosen, other = CHOSEN[name]
    x, direction = np.float32([-2, 0, 0.5, 2]), np.float32([1, 2, 0, -1])

    def as_written(x: Any) -> Any:
        return jnp.where(where(x), chosen(x), other(x))

    def careful(x: Any) -> Any:
        return jnp.where(where(x), chosen(jnp.where(where(x), x, 1.5)), other(jnp.where(where(x), 1.5, x)))

    def gradient(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return jax.grad(lambda x: (f(x) * np.float32([1, 2, 3, 4])).sum())

    def pushed(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: jax.jvp(f, (x,), (direction,))[1]

    transformations: list[Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = [
        lambda f: jax.jit(gradient(f)),
        lambda f: gradient(gradient(f)),
        lambda f: gradient(gradient(gradient(f))),
        pushed,
        lambda f: lambda x: jax.vmap(gradient(f))(np.stack([x, x[::-1]])),
    ]
    exported = jaxexp.deserialize(imported(as_written, x).serialize(vjp_order=3))
    for transformed in transformations:
        np.testing.assert_allclose(transformed(exported.call)(x), transformed(careful)(x), 1e-4, 1e-4)
    # What is read back has forward mode, too.
    read = lambda x: on_any_platform(exported, [x], differentiable=True)[0]  # noqa: E731
    for transformed in (lambda f: pushed(gradient(f)), lambda f: gradient(pushed(f)), jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(transformed(read)(x), transformed(careful)(x), 1e-4, 1e-4)
    for around in (in_a_loop, in_a_branch):
        found = gradient(imported(around(as_written), x).call)(x)
        np.testing.assert_allclose(found, gradient(around(careful))(x), 1e-4, 1e-4)


def test_complex_numbers() -> None:
    x = np.float32([0, 0.5])
    function = lambda x: jnp.where(x > 0.1, jnp.log(x + 0j).real, x)  # noqa: E731
    np.testing.assert_allclose(jax.grad(lambda x: imported(function, x).call(x).sum())(x), [1, 2], rtol=1e-6)


def test_an_infinite_cotangent_is_no_zero() -> None:
    """Only zeros stay what they are: a loss that is not finite is seen in the gradient."""
    x = np.float32([0, 4])
    exported = imported(lambda x: jnp.sqrt(x) + 0 * jnp.log(x), x)
    np.testing.assert_allclose(exported.vjp().call(x, np.float32([np.nan, 1]))[0], [np.nan, 0.25])


def test_sizes_that_were_open() -> None:
    text = """func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      %0 = chlo.erf_inv %x : tensor<?xf32> -> tensor<?xf32>
      return %0 : tensor<?xf32>
    }"""
    x = np.float32([0, 0.25, -0.5])
    exported = jaxexp.from_stablehlo(bytecode(text), shapes={0: (3,)}, differentiable=True)
    expected = [slope(sp.erfinv, float(v)) for v in x]
    np.testing.assert_allclose(jax.grad(lambda x: exported.call(x).sum())(x), expected, rtol=1e-5)


BITS = """func.func @main(%x: tensor<2xf32>, %n: tensor<2xui32>) -> tensor<2xf32> {
  %half = stablehlo.constant dense<0.5> : tensor<2xf32>
  %0 = stablehlo.multiply %half, %GIVEN : tensor<2xf32>
  %1 = stablehlo.bitcast_convert %0 : (tensor<2xf32>) -> tensor<2xui32>
  %2 = stablehlo.and %1, %n : tensor<2xui32>
  %3 = stablehlo.bitcast_convert %2 : (tensor<2xui32>) -> tensor<2xf32>
  %4 = stablehlo.multiply %3, %x : tensor<2xf32>
  return %4 : tensor<2xf32>
}"""


def test_bits_of_what_is_differentiated_are_refused() -> None:
    with pytest.raises(
        UnsupportedError,
        match=r"differentiable=True: stablehlo.bitcast_convert at .* takes the bits of a number",
    ):
        jaxexp.from_stablehlo(bytecode(BITS.replace("GIVEN", "x")), differentiable=True)
    # Bits of other numbers are numbers, as in code that draws random ones.
    x, n = np.float32([3, 4]), np.uint32([2**32 - 1] * 2)
    exported = jaxexp.from_stablehlo(bytecode(BITS.replace("GIVEN", "half")), differentiable=True)
    np.testing.assert_array_equal(jax.grad(lambda x: exported.call(x, n).sum())(x), [0.25, 0.25])


def test_reductions_that_start_from_a_broadcast_constant() -> None:
    """JAX lowers the starts of some of its reductions to this."""
    text = """func.func @main(%x: tensor<5xf32>) -> tensor<4xf32> {
      %c = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<f32>
      %1 = "stablehlo.reduce_window"(%x, %0) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %2 = stablehlo.maximum %a, %b : tensor<f32>
        stablehlo.return %2 : tensor<f32>
      }) {window_dimensions = array<i64: 2>} : (tensor<5xf32>, tensor<f32>) -> tensor<4xf32>
      return %1 : tensor<4xf32>
    }"""
    x = np.float32([3, 1, 4, 1, 5])
    exported = jaxexp.from_stablehlo(bytecode(text), differentiable=True)
    np.testing.assert_array_equal(exported.call(x), [3, 4, 4, 5])
    np.testing.assert_array_equal(jax.grad(lambda x: exported.call(x).sum())(x), [1, 0, 2, 0, 1])


REDUCE = """func.func @main(%x: tensor<4xf32>) -> tensor<f32> {
  %s = stablehlo.constant dense<START> : tensor<f32>
  %0 = "stablehlo.reduce"(%x, %s) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    REGION
    stablehlo.return %r : tensor<f32>
  }) {dimensions = array<i64: 0>} : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}"""
LOG_ADD_EXP = """%m = stablehlo.maximum %a, %b : tensor<f32>
    %d = stablehlo.subtract %a, %b : tensor<f32>
    %p = stablehlo.abs %d : tensor<f32>
    %n = stablehlo.negate %p : tensor<f32>
    %e = stablehlo.exponential %n : tensor<f32>
    %l = stablehlo.log_plus_one %e : tensor<f32>
    %r = stablehlo.add %m, %l : tensor<f32>"""


@pytest.mark.parametrize(
    ("operation", "start", "slopes"),
    [
        ("maximum", 0, [0, 0, 0, 0]),  # it is the start
        ("maximum", -2.5, [0, 1, 0, 0]),
        ("minimum", -30, [0, 0, 0, 0]),
        ("minimum", 3, [0, 0, 0, 1]),
        ("add", 7, [1, 1, 1, 1]),
        ("multiply", -2, [24, 48, 16, 12]),
    ],
)
def test_reductions_from_other_starts(operation: str, start: float, slopes: list[float]) -> None:
    x = np.float32([-2, -1, -3, -4])
    region = f"%r = stablehlo.{operation} %a, %b : tensor<f32>"
    text = REDUCE.replace("START", f"{start:.1f}").replace("REGION", region)
    exported = jaxexp.from_stablehlo(bytecode(text), differentiable=True)
    value, found = jax.value_and_grad(exported.call)(x)
    functions: dict[str, Any] = {"maximum": np.max, "minimum": np.min, "add": np.sum, "multiply": np.prod}
    assert value == functions[operation](np.append(x, np.float32(start)))
    np.testing.assert_array_equal(found, slopes)


def test_regions_of_several_operations_have_derivatives_from_their_neutral_starts_only() -> None:
    x = np.float32([0.5, -1, 2, 0])
    text = REDUCE.replace("REGION", LOG_ADD_EXP)
    exported = jaxexp.from_stablehlo(bytecode(text.replace("START", "0xFF800000")), differentiable=True)
    np.testing.assert_allclose(jax.grad(exported.call)(x), jax.nn.softmax(x), rtol=1e-5)
    with pytest.raises(UnsupportedError, match="from a start that is not known to be the neutral element"):
        jaxexp.from_stablehlo(bytecode(text.replace("START", "0.0")), differentiable=True)
    squares = "%q = stablehlo.multiply %b, %b : tensor<f32>\n%r = stablehlo.add %a, %q : tensor<f32>"
    with pytest.raises(UnsupportedError, match="neutral element"):
        jaxexp.from_stablehlo(bytecode(REDUCE.replace("REGION", squares).replace("START", "0.0")), differentiable=True)


def test_the_sign_of_a_complex_number_has_slopes() -> None:
    text = """func.func @main(%x: tensor<f32>) -> tensor<f32> {
      %o = stablehlo.constant dense<1.0> : tensor<f32>
      %z = stablehlo.complex %x, %o : tensor<complex<f32>>
      %s = stablehlo.sign %z : tensor<complex<f32>>
      %0 = stablehlo.real %s : (tensor<complex<f32>>) -> tensor<f32>
      return %0 : tensor<f32>
    }"""
    exported = jaxexp.from_stablehlo(bytecode(text), differentiable=True)
    for x in (0.0, 1.0, -3.0):
        np.testing.assert_allclose(jax.grad(exported.call)(np.float32(x)), (x * x + 1) ** -1.5, rtol=1e-5)
        np.testing.assert_allclose(exported.call(np.float32(x)), x / np.hypot(x, 1), rtol=1e-6)
    at_zero = jaxexp.from_stablehlo(bytecode(text.replace("dense<1.0>", "dense<0.0>")), differentiable=True)
    assert at_zero.call(np.float32(0)) == 0
    assert np.isfinite(jax.grad(at_zero.call)(np.float32(0)))


@each(
    "body, function",
    [
        ("divide %x, %y", lambda x, y: x / y * x),
        ("log %y", lambda x, y: jnp.log(y) * x),
        ("log_plus_one %y", lambda x, y: jnp.log1p(y) * x),
    ],
)
def test_slopes_by_large_numbers_are_not_flushed_to_zero(body: str, function: Callable[[Any, Any], Any]) -> None:
    """One by such a number is subnormal."""
    text = f"""func.func @main(%x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> {{
      %0 = stablehlo.{body} : tensor<f32>
      %1 = stablehlo.multiply %0, %x : tensor<f32>
      return %1 : tensor<f32>
    }}"""
    exported = jaxexp.from_stablehlo(bytecode(text), differentiable=True)
    args = np.float32(3e38), np.float32(2e38)
    for order in (exported.call, jax.jit(exported.call)):
        found, expected = (jax.vjp(one, *args)[1](np.float32(0.5)) for one in (order, function))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert jax.vjp(exported.call, np.float32(1), np.float32(0))[1](np.float32(0)) == (0, 0)
