"""Reductions, over dimensions and over windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxexp import _jax

from .operation import Many, Operation
from .program import Block

# JAX's reductions, and their starts: as bits, because 0.0 and -0.0 are different starts of a sum.
_MONOIDS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "stablehlo.add": (lax.reduce_sum, lax.add, "iufc"),
    "stablehlo.multiply": (lax.reduce_prod, lax.mul, "iufc"),
    "stablehlo.maximum": (lax.reduce_max, lax.max, "iuf"),
    "stablehlo.minimum": (lax.reduce_min, lax.min, "iuf"),
    "stablehlo.and": (lax.reduce_and, lax.bitwise_and, "biu"),
    "stablehlo.or": (lax.reduce_or, lax.bitwise_or, "biu"),
    "stablehlo.xor": (lax.reduce_xor, lax.bitwise_xor, "biu"),
}


def _start(name: str, dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """The value from which JAX's own reduction starts; None if the dtype has no such value."""
    is_bool = dtype == np.dtype(bool)
    if _jax.issubdtype(dtype, np.inexact):
        lowest, highest = (np.array(value).astype(dtype) for value in (-np.inf, np.inf))
        if not np.isinf(lowest):
            return None
    elif is_bool:
        lowest, highest = np.array(False), np.array(True)
    else:
        limits = jnp.iinfo(dtype)
        lowest, highest = np.array(limits.min).astype(dtype), np.array(limits.max).astype(dtype)
    starts = {
        "stablehlo.add": np.array(0),
        "stablehlo.multiply": np.array(1),
        "stablehlo.maximum": lowest,
        "stablehlo.minimum": highest,
        "stablehlo.and": highest if is_bool else np.array(-1),
        "stablehlo.or": np.array(0),
        "stablehlo.xor": np.array(0),
    }
    return starts[name].astype(dtype)


def _monoid(operation: Operation, block: Block) -> str:
    """The name of a reduction's operation, if it starts from the same value as JAX's own; otherwise ""."""
    name = block.only_operation()
    start, (array, *_) = operation.constant(len(operation.results)), operation.operands
    if name not in _MONOIDS or start is None or len(operation.results) != 1 or array.kind not in _MONOIDS[name][2]:
        return ""
    usual = _start(name, start.dtype)
    return name if usual is not None and usual.tobytes() == start.tobytes() else ""


def _combine(block: Block) -> Callable[..., Any]:
    """A region as a function for JAX, of scalars or of tuples of scalars."""
    if len(block.parameters) == 2:
        return lambda x, y: block((x, y))[0]
    return lambda xs, ys: tuple(block((*xs, *ys)))


def _with_starts(operation: Operation, reduce: Callable[..., Any]) -> Many:
    """Calls `reduce` with one array and its start, or with tuples of them."""
    n = len(operation.results)

    def run(*operands: Any) -> Sequence[Any]:
        arrays, starts = operands[:n], operands[n:]
        return (reduce(arrays[0], starts[0]),) if n == 1 else tuple(reduce(arrays, starts))

    return Many(run)


def reduce(operation: Operation) -> Callable[..., Any] | Many:
    dimensions, block = operation.integers("dimensions"), operation.closed_region(0)
    if name := _monoid(operation, block):
        function = _MONOIDS[name][0]
        return lambda array, start: function(array, dimensions)
    combine = _combine(block)
    return _with_starts(operation, lambda arrays, starts: lax.reduce(arrays, starts, combine, dimensions))


def reduce_window(operation: Operation) -> Many:
    sizes = operation.integers("window_dimensions")
    ones = (1,) * len(sizes)
    strides = operation.integers("window_strides", ones)
    base_dilation = operation.integers("base_dilations", ones)
    window_dilation = operation.integers("window_dilations", ones)
    padding = operation.pairs("padding", ((0, 0),) * len(sizes))
    block = operation.closed_region(0)
    name = _monoid(operation, block)
    combine = _MONOIDS[name][1] if name else _combine(block)
    start = operation.constant(1) if name else None

    def reduce(arrays: Any, starts: Any) -> Any:
        # JAX recognizes its own functions and their starts, if these are values and not traced.
        starts = starts if start is None else start
        return lax.reduce_window(arrays, starts, combine, sizes, strides, padding, base_dilation, window_dilation)

    return _with_starts(operation, reduce)
