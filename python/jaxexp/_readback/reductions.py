"""Operations with a function in a region: reductions, over dimensions and over windows, and sorting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxexp import _jax

from .array_type import with_axis_in_front
from .program import Block
from .reader import Many, Operation, Read

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


def _is_monoid(operation: Operation, name: str) -> bool:
    """Whether JAX has a reduction of its own of one array by the operation of this name."""
    return name in _MONOIDS and len(operation.results) == 1 and operation.operands[0].kind in _MONOIDS[name][2]


def _monoid(operation: Operation, block: Block) -> str:
    """The name of a reduction's operation, if it starts from the same value as JAX's own; otherwise ""."""
    name, start = block.only_operation(), operation.constant(len(operation.results))
    if start is None or not _is_monoid(operation, name):
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


def _reduce(operation: Operation, differentiable: bool = False) -> Callable[..., Any] | Many:
    dimensions, block = operation.integers("dimensions"), operation.closed_region(0)
    if name := _monoid(operation, block):
        function = _MONOIDS[name][0]
        return lambda array, start: function(array, dimensions)
    # JAX's derivative takes any start for the neutral element of the region.
    if differentiable and any(type_.kind in "fc" for type_ in operation.results):
        if _is_monoid(operation, name := block.only_operation()):
            whole, of_two, _ = _MONOIDS[name]
            return lambda array, start: _with_start(whole(array, dimensions), start, of_two)
        if not _is_neutral(operation, block):
            operation.refuse(
                "from a start that is not known to be the neutral element of its region, of which there is no "
                "derivative"
            )
    combine = _combine(block)
    return _with_starts(operation, lambda arrays, starts: lax.reduce(arrays, starts, combine, dimensions))


def _with_start(reduced: Any, start: Any, of_two: Callable[..., Any]) -> Any:
    return of_two(lax.broadcast(start, reduced.shape), reduced)


def _is_neutral(operation: Operation, block: Block) -> bool:
    """Whether a region returns numbers as they are if it gets them with the starts, as far as some numbers tell."""
    n = len(operation.results)
    starts = [operation.constant(n + i) for i in range(n)]
    if any(start is None for start in starts):
        return False
    with jax.ensure_compile_time_eval():
        for number in (0, 1, -1, 0.5, -30, 3, 100, -0.001):
            samples = [np.asarray(number).astype(type_.dtype) for type_ in operation.operands[:n]]
            found = block((*starts, *samples))
            if not all(np.array_equal(one, sample) for one, sample in zip(found, samples, strict=True)):
                return False
    return True


def _reduce_window(operation: Operation) -> Many:
    sizes = operation.integers("window_dimensions")
    ones = (1,) * len(sizes)
    strides = operation.integers("window_strides", ones)
    base_dilation = operation.integers("base_dilations", ones)
    window_dilation = operation.integers("window_dilations", ones)
    padding = operation.padding(len(sizes))
    block = operation.closed_region(0)
    name = _monoid(operation, block)
    combine = _MONOIDS[name][1] if name else _combine(block)
    start = operation.constant(1) if name else None

    def reduce(arrays: Any, starts: Any) -> Any:
        # JAX recognizes its own functions and their starts, if these are values and not traced.
        starts = starts if start is None else start
        return lax.reduce_window(arrays, starts, combine, sizes, strides, padding, base_dilation, window_dilation)

    return _with_starts(operation, reduce)


# --- sorting, and `select_and_scatter`, which compares in windows


def _sort(operation: Operation) -> Many:
    rank = len(operation.operands[0].shape)
    dimension, is_stable = operation.integer("dimension", -1) % max(rank, 1), operation.boolean("is_stable", False)
    comparator = operation.closed_region(0)
    keys = _number_of_keys(operation, comparator)
    if keys is None:
        params = {"comparator": comparator, "dimension": dimension, "is_stable": is_stable}
        return Many(lambda *arrays: sort_p.bind(*arrays, **params))
    return Many(lambda *arrays: lax.sort(arrays, dimension=dimension, is_stable=is_stable, num_keys=keys))


def _number_of_keys(operation: Operation, comparator: Block) -> int | None:
    """The number of keys for which JAX's own sort compares in this way; None if it never does."""
    scalars = [jax.ShapeDtypeStruct((), type_.dtype) for type_ in operation.operands for _ in range(2)]
    with jax.enable_x64(True):
        found = _form(jax.make_jaxpr(lambda *xs: comparator(xs))(*scalars))
        for keys in range(1, len(operation.operands) + 1):
            compare = lambda *xs, keys=keys: [_jax.compare_for_sort(*xs, num_keys=keys)]  # noqa: E731
            if _form(jax.make_jaxpr(compare)(*scalars)) == found:
                return keys
    return None


def _form(closed: Any) -> list[Any]:
    """A jaxpr of scalars as a list that is equal for equal jaxprs."""
    names: dict[Any, Any] = {}
    constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def name(atom: Any) -> Any:
        value = atom.val if hasattr(atom, "val") else constants.get(atom)
        if value is None:
            return names.setdefault(atom, len(names))
        array = np.asarray(value)
        return array.dtype.name, array.tobytes()

    lines: list[Any] = [[name(v) for v in closed.jaxpr.invars]]
    for equation in closed.jaxpr.eqns:
        primitive = equation.primitive.name
        if primitive in ("lt_to", "eq_to") and not _jax.issubdtype(equation.invars[0].aval.dtype, np.inexact):
            primitive = primitive.removesuffix("_to")  # integers have one order
        params = sorted((key, str(value)) for key, value in equation.params.items())
        lines.append((primitive, params, [name(v) for v in equation.invars], [name(v) for v in equation.outvars]))
    return [*lines, [name(v) for v in closed.jaxpr.outvars]]


def _select_and_scatter(operation: Operation) -> Many:
    sizes = operation.integers("window_dimensions")
    params: dict[str, Any] = {
        "sizes": sizes,
        "strides": operation.integers("window_strides", (1,) * len(sizes)),
        "padding": operation.padding(len(sizes)),
        "select": operation.closed_region(0),
        "scatter": operation.closed_region(1),
    }
    return Many(lambda *operands: select_and_scatter_p.bind(*operands, **params))


differentiable_reduce = functools.partial(_reduce, differentiable=True)
OPERATIONS: dict[str, Read] = {
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.sort": _sort,
}


# --- primitives that carry an operation of the module with its regions, if JAX's own have no place for these

# They have a batching rule and a lowering, and no derivatives: raised code is never differentiated.


def _fill(ctx: Any, region: Any, block: Block, arrays: Sequence[Any]) -> None:
    """Lowers a block into the region of an operation, with two scalars of the type of each array as parameters."""
    avals = [_jax.ShapedArray((), array.dtype) for array in arrays for _ in range(2)]
    entry = region.blocks.append(*(_jax.aval_to_ir_type(ctx.module_context, aval) for aval in avals))
    with _jax.ir.InsertionPoint(entry):
        inner = ctx.replace(primitive=None, avals_in=avals, avals_out=None)
        lowered = _jax.lower_as_function(lambda *scalars: block(scalars))(inner, *entry.arguments)
        _jax.hlo.return_(_jax.flatten_ir(lowered)[0])


def _lower_sort(ctx: Any, *operands: Any, comparator: Block, dimension: int, is_stable: bool) -> Sequence[Any]:
    types = [operand.type for operand in operands]
    sort = _jax.hlo.SortOp(types, operands, dimension=dimension, is_stable=is_stable)
    _fill(ctx, sort.comparator, comparator, ctx.avals_in)
    return sort.results


def _batch_sort(
    operands: Sequence[Any], dims: Sequence[int | None], *, dimension: int, **params: Any
) -> tuple[Sequence[Any], Sequence[int]]:
    results = sort_p.bind(*with_axis_in_front(operands, dims), dimension=dimension + 1, **params)
    return results, [0] * len(results)


def _lower_select_and_scatter(
    ctx: Any,
    operand: Any,
    source: Any,
    start: Any,
    *,
    select: Block,
    scatter: Block,
    sizes: Any,
    strides: Any,
    padding: Any,
) -> Sequence[Any]:
    operation = _jax.hlo.SelectAndScatterOp(
        operand.type,
        operand,
        source,
        start,
        window_dimensions=_jax.ir.DenseI64ArrayAttr.get(sizes),
        window_strides=_jax.ir.DenseI64ArrayAttr.get(strides),
        padding=_jax.ir.DenseIntElementsAttr.get(np.array(padding, np.int64).reshape(-1, 2)),
    )
    _fill(ctx, operation.select, select, ctx.avals_in[:1])
    _fill(ctx, operation.scatter, scatter, ctx.avals_in[:1])
    return operation.results


def _batch_select_and_scatter(
    operands: Sequence[Any], dims: Sequence[int | None], *, sizes: Any, strides: Any, padding: Any, **blocks: Block
) -> tuple[Sequence[Any], Sequence[int]]:
    if dims[2] is not None:
        raise NotImplementedError("a batch of start values")
    arrays = with_axis_in_front(operands[:2], dims[:2])
    windows = {"sizes": (1, *sizes), "strides": (1, *strides), "padding": ((0, 0), *padding)}
    return select_and_scatter_p.bind(*arrays, operands[2], **windows, **blocks), [0]


def _primitive(name: str, results: int | None, lower: Callable[..., Any], batch: Callable[..., Any]) -> Any:
    """A primitive whose results have the types of its first operands, so many of them."""
    primitive = _jax.Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *avals, **_: [_jax.ShapedArray(a.shape, a.dtype) for a in avals[:results]])
    primitive.def_impl(lambda *operands, **params: _jax.apply_primitive(primitive, *operands, **params))
    _jax.register_lowering(primitive, lower)
    _jax.primitive_batchers[primitive] = batch
    return primitive


sort_p = _primitive("raised_sort", None, _lower_sort, _batch_sort)
select_and_scatter_p = _primitive("raised_select_and_scatter", 1, _lower_select_and_scatter, _batch_select_and_scatter)
