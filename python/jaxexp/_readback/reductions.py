"""Operations with a function in a region: reductions, over dimensions and over windows, and sorting."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxexp import _jax

from .array_type import with_axis_in_front
from .program import Block
from .reader import Many, Operation, Read


class _Monoid(NamedTuple):
    """A reduction of JAX's own: its start, infinite for the least or the largest number, and the kinds of numbers."""

    reduce: Callable[..., Any]
    combine: Callable[..., Any]
    start: float
    kinds: str


_MONOIDS = {
    "stablehlo.add": _Monoid(lax.reduce_sum, lax.add, 0, "iufc"),
    "stablehlo.multiply": _Monoid(lax.reduce_prod, lax.mul, 1, "iufc"),
    "stablehlo.maximum": _Monoid(lax.reduce_max, lax.max, -np.inf, "iuf"),
    "stablehlo.minimum": _Monoid(lax.reduce_min, lax.min, np.inf, "iuf"),
    "stablehlo.and": _Monoid(lax.reduce_and, lax.bitwise_and, -1, "biu"),
    "stablehlo.or": _Monoid(lax.reduce_or, lax.bitwise_or, 0, "biu"),
    "stablehlo.xor": _Monoid(lax.reduce_xor, lax.bitwise_xor, 0, "biu"),
}


def _monoid(operation: Operation, block: Block) -> _Monoid | None:
    """JAX's reduction of one array by a region, if it has one; perhaps from another start."""
    found = _MONOIDS.get(block.only_operation())
    return found if found and len(operation.results) == 1 and operation.operands[0].kind in found.kinds else None


def _starts_from(operation: Operation, monoid: _Monoid) -> bool:
    """Whether an operation starts from the same value as JAX's reduction."""
    start, usual = operation.constant(1), monoid.start
    if start is None:
        return False
    if np.isinf(usual) and not _jax.issubdtype(start.dtype, np.inexact):
        limits = jnp.iinfo(start.dtype)
        usual = limits.min if usual < 0 else limits.max
    wanted = np.array(usual).astype(start.dtype)
    return bool(start == wanted) and start.tobytes() == wanted.tobytes()  # 0.0 and -0.0 are different starts of a sum


def _reducing(operation: Operation, block: Block, reduce: Callable[..., Any]) -> Many:
    """Calls `reduce` with one array, its start, and the region as a function of two scalars; or with tuples of them."""
    n = len(operation.results)
    if n == 1:
        return Many(lambda array, start: [reduce(array, start, lambda x, y: block((x, y))[0])])
    return Many(lambda *xs: reduce(xs[:n], xs[n:], lambda x, y: tuple(block((*x, *y)))))


def _reduce(operation: Operation, differentiable: bool = False) -> Callable[..., Any] | Many:
    dimensions, block = operation.integers("dimensions"), operation.closed_region(0)
    monoid = _monoid(operation, block)
    if monoid and _starts_from(operation, monoid):
        return lambda array, start: monoid.reduce(array, dimensions)
    # JAX's derivative takes any start for the neutral element of the region.
    if differentiable and any(type_.kind in "fc" for type_ in operation.results):
        if monoid:
            shape = operation.results[0].shape
            return lambda array, start: monoid.combine(lax.broadcast(start, shape), monoid.reduce(array, dimensions))
        if not _is_neutral(operation, block):
            operation.refuse(
                "from a start that is not known to be the neutral element of its region, of which there is no "
                "derivative"
            )
    return _reducing(operation, block, lambda x, start, combine: lax.reduce(x, start, combine, dimensions))


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


def _reduce_window(operation: Operation) -> Callable[..., Any] | Many:
    sizes = operation.integers("window_dimensions")
    ones = (1,) * len(sizes)
    window = (
        sizes,
        operation.integers("window_strides", ones),
        operation.padding(len(sizes)),
        operation.integers("base_dilations", ones),
        operation.integers("window_dilations", ones),
    )
    block = operation.closed_region(0)
    monoid = _monoid(operation, block)
    if monoid and _starts_from(operation, monoid):
        # JAX recognizes its own functions and their starts, if these are values and not traced.
        known = operation.constant(1)
        return lambda array, start: lax.reduce_window(array, known, monoid.combine, *window)
    return _reducing(operation, block, lambda x, start, combine: lax.reduce_window(x, start, combine, *window))


# --- sorting, and `select_and_scatter`, which compares in windows


def _sort(operation: Operation) -> Many:
    rank = len(operation.operands[0].shape)
    dimension, is_stable = operation.integer("dimension", -1) % max(rank, 1), operation.boolean("is_stable", False)
    comparator = operation.closed_region(0)
    keys = _number_of_keys(operation, comparator)
    if keys is None:
        params = {"blocks": (comparator,), "dimension": dimension, "is_stable": is_stable}
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


def _form(closed: Any) -> Any:
    """What is equal for equal jaxprs of scalars. For integers, JAX's total order is the usual one."""
    jaxpr = closed.jaxpr
    of_floats = [e.primitive.name for e in jaxpr.eqns if _jax.issubdtype(e.invars[0].aval.dtype, np.inexact)]
    values = [*closed.consts, *(v.val for e in jaxpr.eqns for v in e.invars if isinstance(v, _jax.Literal))]
    text = re.sub(r"\b(lt|eq)_to\b", r"\1", str(jaxpr))
    return text, of_floats, [np.asarray(value).tobytes() for value in values]


def _select_and_scatter(operation: Operation) -> Many:
    sizes = operation.integers("window_dimensions")
    strides, padding = operation.integers("window_strides", (1,) * len(sizes)), operation.padding(len(sizes))
    blocks = operation.closed_region(0), operation.closed_region(1)
    params = {"blocks": blocks, "sizes": sizes, "strides": strides, "padding": padding}
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


def _primitive(name: str, starts: int, build: Callable[..., Any], batched: Callable[..., dict[str, Any]]) -> Any:
    """A primitive whose results have the types of its first operands.

    Args:
        name: its name.
        starts: how many of its last operands are start values, of which JAX maps none.
        build: makes the operation, without the blocks in its regions.
        batched: its other parameters, for operands with one more axis in front.
    """
    primitive = _jax.Primitive(name)
    primitive.multiple_results = True

    def types(*avals: Any, **_: Any) -> list[Any]:
        return [_jax.ShapedArray(aval.shape, aval.dtype) for aval in avals[: 1 if starts else None]]

    def lower(ctx: Any, *operands: Any, blocks: Sequence[Block], **params: Any) -> Sequence[Any]:
        operation = build(*operands, **params)
        scalars = [_jax.ShapedArray((), aval.dtype) for aval in ctx.avals_out for _ in range(2)]
        for region, block in zip(operation.regions, blocks, strict=True):
            entry = region.blocks.append(*(_jax.aval_to_ir_type(ctx.module_context, aval) for aval in scalars))
            with _jax.ir.InsertionPoint(entry):
                inner = ctx.replace(primitive=None, avals_in=scalars, avals_out=None)
                lowered = _jax.lower_as_function(lambda *xs, block=block: block(xs))(inner, *entry.arguments)
                _jax.hlo.return_(_jax.flatten_ir(lowered)[0])
        return operation.results

    def batch(
        operands: Sequence[Any], dims: Sequence[int | None], *, blocks: Sequence[Block], **params: Any
    ) -> tuple[Sequence[Any], Sequence[int]]:
        n = len(operands) - starts
        if any(dim is not None for dim in dims[n:]):
            raise NotImplementedError("a batch of start values")
        arrays = with_axis_in_front(operands[:n], dims[:n])
        results = primitive.bind(*arrays, *operands[n:], blocks=blocks, **batched(**params))
        return results, [0] * len(results)

    primitive.def_abstract_eval(types)
    primitive.def_impl(lambda *operands, **params: _jax.apply_primitive(primitive, *operands, **params))
    _jax.register_lowering(primitive, lower)
    _jax.primitive_batchers[primitive] = batch
    return primitive


def _build_select_and_scatter(operand: Any, *others: Any, sizes: Any, strides: Any, padding: Any) -> Any:
    return _jax.hlo.SelectAndScatterOp(
        operand.type,
        operand,
        *others,
        window_dimensions=_jax.ir.DenseI64ArrayAttr.get(sizes),
        window_strides=_jax.ir.DenseI64ArrayAttr.get(strides),
        padding=_jax.ir.DenseIntElementsAttr.get(np.array(padding, np.int64).reshape(-1, 2)),
    )


sort_p = _primitive(
    "raised_sort",
    0,
    lambda *operands, **params: _jax.hlo.SortOp([operand.type for operand in operands], operands, **params),
    lambda dimension, is_stable: {"dimension": dimension + 1, "is_stable": is_stable},
)
select_and_scatter_p = _primitive(
    "raised_select_and_scatter",
    1,
    _build_select_and_scatter,
    lambda sizes, strides, padding: {"sizes": (1, *sizes), "strides": (1, *strides), "padding": ((0, 0), *padding)},
)
