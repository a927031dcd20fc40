"""Rounding errors, drawn at random: what an operation of a narrow float may return, for an evaluation in float64.

An operation that rounds gets a relative error of half a unit in the last place, up or down. A sum of n terms gets
a quarter of the square root of n times as much, which it has from left to right: a rounding is 0.4 of its limit in the
root mean square, and partial sums are 0.6 of the last one. Algorithms of linear algebra get operands nearby. Results
that need no rounding get no error. Both parts of a complex number get one: relative to the number, as products round
them, or to the part, where an operation rounds each part by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxexp import _jax

# Operations that only move or choose numbers, or whose results need no rounding.
_EXACT = frozenset(
    """
    abs broadcast_in_dim ceil clamp complex concatenate conj copy copy_p cummax cummin dynamic_slice
    dynamic_update_slice expand_dims floor gather imag iota max min neg optimization_barrier pad real reduce_max
    reduce_min rem reshape rev round scatter scatter-max scatter-min select_n sign slice sort split squeeze
    stop_gradient top_k transpose
    """.split()
)
# What every backend adds up in float32 at least.
_IN_FLOAT32 = frozenset(("dot_general", "conv_general_dilated"))
# Operations of which many results need no rounding, such as sums of small integers.
_MAY_FIT = frozenset(
    "add add_any convert_element_type div integer_pow mul pow reduce scatter-add scatter-mul sqrt square sub".split()
)
# Operations that round each part of a complex number by itself.
_BY_PARTS = frozenset("add add_any convert_element_type sub".split())
_PRODUCTS = frozenset(("reduce_prod", "cumprod"))
# Algorithms that are exact for operands nearby.
_BACKWARD_STABLE = frozenset(("ffi_call", "triangular_solve", "cholesky", "lu", "qr", "eigh", "eig", "svd"))


def _terms(name: str, params: dict[str, Any], operands: Sequence[Any]) -> int:
    """How many numbers a sum has; 0 for other operations."""
    shape = np.shape(operands[0])
    if name == "reduce_sum":
        return math.prod(shape[axis] for axis in params["axes"])
    if name == "cumsum":
        return int(shape[params["axis"]])
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return math.prod(shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = np.shape(operands[1])
        return math.prod(kernel) // kernel[params["dimension_numbers"].rhs_spec[0]]
    if name in ("reduce_window", "reduce_window_sum"):
        return math.prod(params["window_dimensions"])
    return 0


# From how many places in a table errors are taken.
_PLACES = 1 << 16


def table_of(jaxpr: Any, signs: Callable[[int], np.ndarray[Any, Any]], size: float) -> np.ndarray[Any, Any]:
    """The errors of an evaluation of a jaxpr: factors for float32.

    Args:
        jaxpr: what is evaluated.
        signs: so many bools at random.
        size: how large the errors are, in parts of what rounding makes.
    """
    unit = float(np.finfo(np.float32).eps) / 2 * size
    return np.where(signs(_PLACES + _largest(jaxpr)), 1 + unit, 1 - unit)


def _largest(jaxpr: Any) -> int:
    """The most numbers that an operation in a jaxpr takes or returns in one array."""
    sizes = (math.prod(v.aval.shape) for e in jaxpr.eqns for v in (*e.invars, *e.outvars) if hasattr(v.aval, "shape"))
    inner = (_largest(one) for equation in jaxpr.eqns for one in _jax.jaxprs_in_params(equation.params))
    return max((*sizes, *inner), default=0)


class Noise:
    """The errors of one evaluation.

    Attributes:
        turn: what tells a turn of a loop from the others: a uint32, traced; None outside of loops.
    """

    def __init__(self, table: Any) -> None:
        self._table = table
        self.turn: Any = None
        self._count = 0

    def start(self) -> Any:
        """The first turn of a loop."""
        self._count += 1
        return np.uint32(self._count) if self.turn is None else self.turn + np.uint32(self._count)

    def before(self, name: str, operands: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
        """Operands of an operation; of these dtypes, None for those that are not rounded."""
        if name not in _BACKWARD_STABLE:
            return list(operands)
        return [
            x if dtype is None else self._moved(x, dtype, by_parts=False)
            for x, dtype in zip(operands, dtypes, strict=True)
        ]

    def after(
        self,
        equation: Any,
        params: dict[str, Any],
        operands: Sequence[Any],
        results: Sequence[Any],
        dtypes: Sequence[Any],
    ) -> list[Any]:
        """Results of an operation; of these dtypes, None for those that are not rounded."""
        name = equation.primitive.name
        if (
            name in _EXACT
            or all(dtype is None for dtype in dtypes)
            or (name == "convert_element_type" and _is_exact(equation))
        ):
            return list(results)
        moved = [
            x if dtype is None else self._moved(x, dtype, by_parts=name in _BY_PARTS)
            for x, dtype in zip(results, dtypes, strict=True)
        ]
        (x, *_), (dtype, *_) = results, dtypes
        if terms := _terms(name, params, operands):
            partial = _of_magnitudes(equation.primitive, params, operands)
            unit = float(jnp.finfo(np.float32).eps / jnp.finfo(dtype).eps) if name in _IN_FLOAT32 else 1.0
            of_sum = jnp.maximum(math.sqrt(terms) * jnp.abs(x), partial) * (unit / 4)
            error = self._error(x, dtype) * jnp.maximum(jnp.abs(x), of_sum)
            moved[0] = jnp.where(_fits(x, dtype) & _fits(partial, jnp.finfo(dtype).dtype), x, x + error)
        elif name == "fft":
            size = math.log2(max(2, math.prod(params["fft_lengths"]))) * jnp.sqrt(jnp.mean(jnp.abs(x) ** 2))
            moved[0] = x + self._error(x, dtype) * size
        elif name in _PRODUCTS:
            axes = params["axes"] if "axes" in params else (params["axis"],)
            terms = math.prod(np.shape(operands[0])[axis] for axis in axes)
            moved[0] = x + (moved[0] - x) * max(1.0, math.sqrt(terms) / 4)
        elif name in _MAY_FIT:
            moved[0] = jnp.where(_fits(x, dtype), x, moved[0])
        return moved

    def _moved(self, x: Any, dtype: Any, *, by_parts: bool) -> Any:
        """Numbers of a dtype with errors."""
        shape = np.shape(x)
        if x.dtype.kind != "c":
            return x * self._factor(shape, dtype)
        if by_parts:
            return lax.complex(*(part * self._factor(shape, dtype) for part in (lax.real(x), lax.imag(x))))
        return x + x * self._error(x, dtype)

    def _error(self, x: Any, dtype: Any) -> Any:
        """Errors for numbers of a dtype, as parts of them."""
        error = self._factor(np.shape(x), dtype) - 1
        return lax.complex(error, self._factor(np.shape(x), dtype) - 1) if x.dtype.kind == "c" else error

    def _factor(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Factors for numbers of a dtype."""
        self._count += 1
        count, place = math.prod(shape), self._count * 40503 % _PLACES
        if self.turn is None:
            found = lax.slice(self._table, (place,), (place + count,))
        else:
            start = (self.turn + np.uint32(place)) % np.uint32(_PLACES)
            found = lax.dynamic_slice(self._table, (start,), (count,))
        unit = float(jnp.finfo(dtype).eps / jnp.finfo(np.float32).eps)
        return lax.reshape(found if unit == 1 else 1 + (found - 1) * unit, shape)


def next_turn(turn: Any) -> Any:
    """The next turn of a loop."""
    return turn * np.uint32(5) + np.uint32(12345)


def _of_magnitudes(primitive: Any, params: dict[str, Any], operands: Sequence[Any]) -> Any:
    """The sums of magnitudes in place of numbers: about as large as partial sums can be."""
    found = primitive.bind(*(jnp.abs(x).astype(x.dtype) if x.dtype.kind in "fc" else x for x in operands), **params)
    return jnp.abs(found[0] if primitive.multiple_results else found)


def _fits(x: Any, dtype: Any) -> Any:
    """Whether numbers need no rounding."""
    return lax.convert_element_type(lax.convert_element_type(x, dtype), x.dtype) == x


def _is_exact(equation: Any) -> bool:
    """Whether each number of one dtype is one of the other."""
    before, after = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    return bool(jnp.promote_types(before, after) == after) and before.kind == after.kind
