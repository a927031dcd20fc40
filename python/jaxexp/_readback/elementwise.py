"""Operations on each element: arithmetic, comparisons, conversions, functions of CHLO; and derivatives of these."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxexp import _jax
from jaxexp._errors import UnsupportedError

from .array_type import with_axis_in_front
from .reader import Operation, Read, place

_Functions = Mapping[str, tuple[Callable[..., Any], str]]


def _namesakes(by_kinds: Mapping[str, str]) -> _Functions:
    """Operations that have JAX's names, by the kinds of their numbers."""
    return {name: (getattr(lax, name), kinds) for kinds, names in by_kinds.items() for name in names.split()}


# Each function lowers to the operation of its name for the given kinds of numbers (see `ArrayType.kind`). For other
# kinds, JAX lowers to more than one operation, or does not have the function.
_PLAIN: _Functions = {
    **_namesakes({"c": "imag real", "f": "ceil complex floor is_finite", "fc": "atan2", "ifc": "abs sign"}),
    **_namesakes({"iu": "shift_left shift_right_arithmetic shift_right_logical", "iuf": "clamp"}),
    "add": (lax.add, "iufc"),
    "and": (lax.bitwise_and, "biu"),
    "count_leading_zeros": (lax.clz, "iu"),
    "divide": (lax.div, "iufc"),
    "maximum": (lax.max, "biuf"),
    "minimum": (lax.min, "biuf"),
    "multiply": (lax.mul, "iufc"),
    "negate": (lax.neg, "iufc"),
    "not": (lax.bitwise_not, "biu"),
    "or": (lax.bitwise_or, "biu"),
    "popcnt": (lax.population_count, "iu"),
    "power": (lax.pow, "fc"),
    "remainder": (lax.rem, "iuf"),
    "round_nearest_afz": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), "f"),
    "round_nearest_even": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), "f"),
    "select": (lambda which, on_true, on_false: lax.select_n(which, on_false, on_true), "biufc"),
    "subtract": (lax.sub, "iufc"),
    "xor": (lax.bitwise_xor, "biu"),
}

# These may say how exact they must be.
_WITH_ACCURACY: _Functions = {
    **_namesakes({"f": "cbrt", "fc": "log logistic rsqrt sqrt tan tanh"}),
    "cosine": (lax.cos, "fc"),
    "exponential": (lax.exp, "fc"),
    "exponential_minus_one": (lax.expm1, "fc"),
    "log_plus_one": (lax.log1p, "fc"),
    "sine": (lax.sin, "fc"),
}

# In artifacts these are composites, or custom calls; see `composites`.
CHLO: _Functions = {
    **_namesakes({"c": "conj", "f": "bessel_i1e digamma erf erf_inv erfc lgamma polygamma zeta", "iu": "mulhi"}),
    **_namesakes({"fc": "acos acosh asin asinh atan atanh cosh sinh tan", "iufc": "square"}),
    "is_inf": (lambda x: lax.eq(lax.abs(x), np.asarray(np.inf, x.dtype)), "f"),
    "next_after": (lax.nextafter, "f"),
}


def _plain(function: Callable[..., Any], kinds: str, *, may_be_exact: bool = False) -> Read:
    def read(operation: Operation) -> Callable[..., Any]:
        operation.check_kinds(kinds)
        is_said = may_be_exact and operation.has("result_accuracy")
        wanted = operation.structure("result_accuracy", _accuracy) if is_said else None
        return function if wanted is None else lambda x: function(x, accuracy=wanted)

    return read


def _accuracy(attribute: Any) -> Any:
    accuracy = _jax.hlo.ResultAccuracyAttr(attribute)
    tolerance = accuracy.atol, accuracy.rtol, accuracy.ulps
    if accuracy.mode == "TOLERANCE":
        return lax.Tolerance(*tolerance)
    if any(tolerance):
        raise ValueError(str(attribute))
    return {"DEFAULT": None, "HIGHEST": lax.AccuracyMode.HIGHEST}[accuracy.mode]


# --- comparisons, choices, conversions

_COMPARISONS = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}
_COMPARED = {"b": "UNSIGNED", "u": "UNSIGNED", "i": "SIGNED", "f": "FLOAT", "c": "FLOAT"}
_KINDS_OF_COMPARISON = {kind: kind for kind in ("NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED")}


def _compare(operation: Operation) -> Callable[..., Any]:
    direction = operation.keyword("comparison_direction", {name: name for name in _COMPARISONS})
    kind = operation.keyword("compare_type", _KINDS_OF_COMPARISON, "NOTYPE")
    usual = _COMPARED[operation.operands[0].kind]
    if kind == "TOTALORDER" and usual == "FLOAT":
        return _TOTAL_ORDER[direction]
    if kind not in ("NOTYPE", usual):
        operation.refuse(f"of {operation.operands[0].dtype} as {kind}")
    return _COMPARISONS[direction]


_TOTAL_ORDER: Mapping[str, Callable[..., Any]] = {
    "EQ": lax.eq_to_p.bind,
    "NE": lambda x, y: lax.bitwise_not(lax.eq_to_p.bind(x, y)),
    "LT": lax.lt_to_p.bind,
    "LE": lax.le_to_p.bind,
    "GT": lambda x, y: lax.lt_to_p.bind(y, x),
    "GE": lambda x, y: lax.le_to_p.bind(y, x),
}


def _convert(operation: Operation) -> Callable[..., Any]:
    (source,), (target,) = operation.operands, operation.results
    if source.kind == "c" and target.kind != "c":
        operation.refuse(f"of {source.dtype} to {target.dtype}")
    return lambda x: lax.convert_element_type(x, target.dtype)


def _bitcast_convert(operation: Operation) -> Callable[..., Any]:
    dtype = operation.results[0].dtype
    return lambda x: lax.bitcast_convert_type(x, dtype)


def _reduce_precision(operation: Operation) -> Callable[..., Any]:
    exponent, mantissa = operation.integer("exponent_bits"), operation.integer("mantissa_bits")
    return lambda x: lax.reduce_precision(x, exponent, mantissa)


# Their derivatives are products with numbers that may be infinite or NaN. Those of the others are not.
CURVED = (
    *(f"stablehlo.{name}" for name in ("atan2", "divide", "multiply", "power", "remainder", *_WITH_ACCURACY)),
    *(f"chlo.{name}" for name in CHLO),
)
OPERATIONS: dict[str, Read] = {
    **{f"stablehlo.{name}": _plain(*entry) for name, entry in _PLAIN.items()},
    **{f"stablehlo.{name}": _plain(*entry, may_be_exact=True) for name, entry in _WITH_ACCURACY.items()},
    **{f"chlo.{name}": _plain(*entry) for name, entry in CHLO.items()},
    "stablehlo.bitcast_convert": _bitcast_convert,
    "stablehlo.compare": _compare,
    "stablehlo.convert": _convert,
    "stablehlo.reduce_precision": _reduce_precision,
}


# --- derivatives that keep zeros: a tangent or cotangent of 0 stays 0, whatever the slope is

# Code often computes what it does not choose: the root of a negative number, a series outside of its interval. There
# the cotangent is 0, and the slope may be infinite or NaN. JAX's own functions have derivative rules for this. A module
# has only what they were lowered to, of which JAX's rules make NaN.

# In fewer operations than JAX makes of a product, and without overflow in a quotient.
_SLOPES: Mapping[Any, Sequence[Callable[..., Any]]] = {
    lax.mul: (lambda x, y: y, lambda x, y: x),
    lax.div: (lambda x, y: lax.div(lax.full_like(y, 1), y), lambda x, y: lax.neg(lax.div(lax.div(x, y), y))),
}
# Slopes that are 1 / a number, as functions whose first argument has them.
_DIVISORS: Mapping[Any, Callable[..., Any]] = {
    lax.div: lambda x, y: y,
    lax.log: lambda x: x,
    lax.log1p: lambda x: lax.add(x, lax.full_like(x, 1)),
}


def keeping_zeros(read: Read) -> Read:
    """Reads an operation as `read` does; a function of each element gets derivatives, of any order, that keep zeros."""

    def read_keeping(operation: Operation) -> Any:
        made, types = read(operation), {*operation.operands, *operation.results}
        return _with_zeros(made) if callable(made) and [type_.kind in "fc" for type_ in types] == [True] else made

    return read_keeping


def absolute(operation: Operation) -> Callable[..., Any]:
    """`abs` with the slope 0 at 0: the mean of both sides, as JAX has it for `max`. With JAX's slope of 1, that of
    softplus, which is `max(x, 0) + log1p(exp(-abs(x)))`, would be 0 there.
    """
    return (lambda x: lax.mul(x, lax.sign(x))) if operation.operands[0].kind == "f" else lax.abs


def sign(operation: Operation) -> Callable[..., Any]:
    """`sign`; of a complex number, `z / abs(z)`, which has slopes everywhere but at 0, where JAX has none."""
    if operation.operands[0].kind == "f":
        return lax.sign

    def of_complex(z: Any) -> Any:
        is_zero = lax.eq(z, lax.full_like(z, 0))
        safe = lax.select(is_zero, lax.full_like(z, 1), z)
        length = lax.abs(safe)
        return lax.select(is_zero, z, lax.div(safe, lax.complex(length, lax.full_like(length, 0))))

    return of_complex


def bits(operation: Operation) -> Callable[..., Any]:
    """`bitcast_convert`, which refuses to be differentiated: for JAX, the derivative is 0."""
    dtype, at = operation.results[0].dtype, place(operation.mlir.location)
    return undifferentiable(
        lambda x: lax.bitcast_convert_type(x, dtype),
        f"stablehlo.bitcast_convert{at and f' at {at}'} takes the bits of a number apart, which has no "
        "derivative. Let the producer keep the function around it as an operation of CHLO",
    )


def undifferentiable(function: Callable[..., Any], why: str) -> Callable[..., Any]:
    """The function; differentiating it is an error."""
    same = jax.custom_jvp(function)

    def refuse(primals: Any, tangents: Any) -> NoReturn:
        raise UnsupportedError(why)

    same.defjvp(refuse)
    return same


def _with_zeros(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        terms = [
            _term(function, i, tangent, primals)
            for i, tangent in enumerate(tangents)
            if not isinstance(tangent, SymbolicZero)
        ]
        return same(*primals), functools.reduce(lax.add, terms)

    same = jax.custom_jvp(lambda *arrays: function(*arrays))
    same.defjvp(rule, symbolic_zeros=True)
    return same


def _term(function: Callable[..., Any], i: int, tangent: Any, primals: Sequence[Any]) -> Any:
    """A tangent times the slope of a function by its argument `i`."""
    if i > 0 or function not in _DIVISORS:
        return _product(tangent, _with_zeros(functools.partial(_slope, function, i))(*primals))
    # One by a large number is subnormal, which processors may take for 0. So both are scaled by the same power of two.
    divisor = _DIVISORS[function](*primals)
    size = lax.abs(divisor)
    large = 2.0 ** (jnp.finfo(size.dtype).maxexp // 2)
    is_large = lax.gt(size, lax.full_like(size, large))
    scale = lax.select(is_large, lax.full_like(divisor, 1 / large), lax.full_like(divisor, 1))
    slope = _with_zeros(functools.partial(_slope, lax.div, 0))(lax.full_like(divisor, 1), lax.mul(divisor, scale))
    return _product(lax.mul(tangent, scale), slope)


def _slope(function: Callable[..., Any], i: int, *arrays: Any) -> Any:
    """The derivative of a function of each element by its argument `i`."""
    if function in _SLOPES:
        return _SLOPES[function][i](*arrays)

    def of_one(array: Any) -> Any:
        return function(*arrays[:i], array, *arrays[i + 1 :])

    return jax.jvp(of_one, arrays[i : i + 1], (lax.full_like(arrays[i], 1),))[1]


def _lowered(left: Any, right: Any, *, either: bool) -> Sequence[Any]:
    zero = lax.full_like(left, 0)
    is_zero = lax.eq(left, zero)
    if either:
        is_zero = lax.bitwise_or(is_zero, lax.eq(right, zero))
    return [lax.select(is_zero, zero, lax.mul(left, right))]


def _product(left: Any, right: Any, *, either: bool = False) -> Any:
    """A product that is 0 if its left factor is, which is a tangent; or if `either` is, where both factors are."""
    return product_p.bind(left, right, either=either)


product_p = _jax.Primitive("product_keeping_zeros")
product_p.def_abstract_eval(lambda left, right, *, either: left)
product_p.def_impl(functools.partial(_jax.apply_primitive, product_p))
_jax.register_lowering(product_p, _jax.lower_as_function(_lowered))
_jax.primitive_batchers[product_p] = lambda arrays, dims, *, either: (
    _product(*with_axis_in_front(arrays, dims), either=either),
    0,
)
_jax.define_bilinear(
    product_p,
    lambda ct, _, right, *, either: _product(ct, right, either=either),
    lambda ct, left, _, *, either: _product(left, ct, either=either),
)
_jax.define_jvp(
    product_p,
    lambda tangent, _, right, *, either: _product(tangent, right, either=either),
    lambda tangent, left, _, *, either: _product(left, tangent, either=True),
)
