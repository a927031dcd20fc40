"""Operations on each element: arithmetic, comparisons, conversions, and the functions of CHLO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax import lax

from jaxexp import _jax

from .operation import Operation, Read

# Each function lowers to the operation of its name for the given kinds of numbers (see `Type.kind`). For other kinds,
# JAX lowers to more than one operation, or does not have the function.
_PLAIN: Mapping[str, tuple[Callable[..., Any], str]] = {
    "abs": (lax.abs, "ifc"),
    "add": (lax.add, "iufc"),
    "and": (lax.bitwise_and, "biu"),
    "atan2": (lax.atan2, "fc"),
    "ceil": (lax.ceil, "f"),
    "clamp": (lax.clamp, "iuf"),
    "complex": (lax.complex, "f"),
    "count_leading_zeros": (lax.clz, "iu"),
    "divide": (lax.div, "iufc"),
    "floor": (lax.floor, "f"),
    "imag": (lax.imag, "c"),
    "is_finite": (lax.is_finite, "f"),
    "maximum": (lax.max, "biuf"),
    "minimum": (lax.min, "biuf"),
    "multiply": (lax.mul, "iufc"),
    "negate": (lax.neg, "iufc"),
    "not": (lax.bitwise_not, "biu"),
    "or": (lax.bitwise_or, "biu"),
    "popcnt": (lax.population_count, "iu"),
    "power": (lax.pow, "fc"),
    "real": (lax.real, "c"),
    "remainder": (lax.rem, "iuf"),
    "round_nearest_afz": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), "f"),
    "round_nearest_even": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), "f"),
    "select": (lambda which, on_true, on_false: lax.select_n(which, on_false, on_true), "biufc"),
    "shift_left": (lax.shift_left, "iu"),
    "shift_right_arithmetic": (lax.shift_right_arithmetic, "iu"),
    "shift_right_logical": (lax.shift_right_logical, "iu"),
    "sign": (lax.sign, "ifc"),
    "subtract": (lax.sub, "iufc"),
    "xor": (lax.bitwise_xor, "biu"),
}

# These may say how exact they must be.
_WITH_ACCURACY: Mapping[str, tuple[Callable[..., Any], str]] = {
    "cbrt": (lax.cbrt, "f"),
    "cosine": (lax.cos, "fc"),
    "exponential": (lax.exp, "fc"),
    "exponential_minus_one": (lax.expm1, "fc"),
    "log": (lax.log, "fc"),
    "log_plus_one": (lax.log1p, "fc"),
    "logistic": (lax.logistic, "fc"),
    "rsqrt": (lax.rsqrt, "fc"),
    "sine": (lax.sin, "fc"),
    "sqrt": (lax.sqrt, "fc"),
    "tan": (lax.tan, "fc"),
    "tanh": (lax.tanh, "fc"),
}

# In artifacts these are composites, or custom calls; see `composites`.
CHLO: Mapping[str, tuple[Callable[..., Any], str]] = {
    "acos": (lax.acos, "fc"),
    "acosh": (lax.acosh, "fc"),
    "asin": (lax.asin, "fc"),
    "asinh": (lax.asinh, "fc"),
    "atan": (lax.atan, "fc"),
    "atanh": (lax.atanh, "fc"),
    "bessel_i1e": (lax.bessel_i1e, "f"),
    "conj": (lax.conj, "c"),
    "cosh": (lax.cosh, "fc"),
    "digamma": (lax.digamma, "f"),
    "erf": (lax.erf, "f"),
    "erf_inv": (lax.erf_inv, "f"),
    "erfc": (lax.erfc, "f"),
    "is_inf": (lambda x: lax.eq(lax.abs(x), np.asarray(np.inf, x.dtype)), "f"),
    "lgamma": (lax.lgamma, "f"),
    "mulhi": (lax.mulhi, "iu"),
    "next_after": (lax.nextafter, "f"),
    "polygamma": (lax.polygamma, "f"),
    "sinh": (lax.sinh, "fc"),
    "square": (lax.square, "iufc"),
    "tan": (lax.tan, "fc"),
    "zeta": (lax.zeta, "f"),
}


def check_kinds(operation: Operation, kinds: str) -> None:
    """Refuses operands of other kinds."""
    for type_ in operation.operands:
        if type_.kind not in kinds:
            operation.refuse(f"of {type_.dtype}")


def _plain(function: Callable[..., Any], kinds: str) -> Read:
    def read(operation: Operation) -> Callable[..., Any]:
        check_kinds(operation, kinds)
        return function

    return read


def _with_accuracy(function: Callable[..., Any], kinds: str) -> Read:
    def read(operation: Operation) -> Callable[..., Any]:
        check_kinds(operation, kinds)
        if not operation.has("result_accuracy"):
            return function
        wanted = operation.structure("result_accuracy", _accuracy)
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
    **{f"stablehlo.{name}": _with_accuracy(*entry) for name, entry in _WITH_ACCURACY.items()},
    **{f"chlo.{name}": _plain(*entry) for name, entry in CHLO.items()},
    "stablehlo.bitcast_convert": _bitcast_convert,
    "stablehlo.compare": _compare,
    "stablehlo.convert": _convert,
    "stablehlo.reduce_precision": _reduce_precision,
}
