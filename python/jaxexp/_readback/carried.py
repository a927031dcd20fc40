"""Primitives that carry an operation of the module with its regions, if JAX's own have no place for these.

They have a batching rule and a lowering, and no derivatives: raised code is never differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from jaxexp import _jax

from .program import Block


def _primitive(
    name: str,
    types: Callable[..., Sequence[Any]],
    lower: Callable[..., Sequence[Any]],
    batch: Callable[..., tuple[Sequence[Any], Sequence[int]]],
) -> Any:
    primitive = _jax.Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(types)
    primitive.def_impl(lambda *operands, **params: _jax.apply_primitive(primitive, *operands, **params))
    _jax.register_lowering(primitive, lower)
    _jax.primitive_batchers[primitive] = batch
    return primitive


def _fill(ctx: Any, region: Any, block: Block, avals: Sequence[Any]) -> None:
    """Lowers a block into the region of an operation, with parameters of these types."""
    entry = region.blocks.append(*(_jax.aval_to_ir_type(ctx.module_context, aval) for aval in avals))
    with _jax.ir.InsertionPoint(entry):
        inner = ctx.replace(primitive=None, avals_in=list(avals), avals_out=None)
        lowered = _jax.lower_as_function(lambda *scalars: block(scalars))(inner, *entry.arguments)
        _jax.hlo.return_(_jax.flatten_ir(lowered)[0])


def _scalars(avals: Sequence[Any], each: int) -> list[Any]:
    """The types of a region's parameters: `each` scalars for each array."""
    return [_jax.ShapedArray((), aval.dtype) for aval in avals for _ in range(each)]


def at_front(array: Any, dim: int | None, size: Any) -> Any:
    """An array with the mapped axis in front, added if it has none."""
    if dim is None:
        return lax.broadcast(array, (size,))
    return lax.transpose(array, (dim, *[axis for axis in range(array.ndim) if axis != dim]))


def size_of(operands: Sequence[Any], dims: Sequence[int | None]) -> Any:
    return next(operand.shape[dim] for operand, dim in zip(operands, dims, strict=True) if dim is not None)


# --- sort


def _lower_sort(ctx: Any, *operands: Any, comparator: Block, dimension: int, is_stable: bool) -> Sequence[Any]:
    types = [operand.type for operand in operands]
    sort = _jax.hlo.SortOp(types, operands, dimension=dimension, is_stable=is_stable)
    _fill(ctx, sort.comparator, comparator, _scalars(ctx.avals_in, 2))
    return sort.results


def _batch_sort(
    operands: Sequence[Any], dims: Sequence[int | None], *, comparator: Block, dimension: int, is_stable: bool
) -> tuple[Sequence[Any], Sequence[int]]:
    size = size_of(operands, dims)
    moved = [at_front(operand, dim, size) for operand, dim in zip(operands, dims, strict=True)]
    results = sort_p.bind(*moved, comparator=comparator, dimension=dimension + 1, is_stable=is_stable)
    return results, [0] * len(results)


sort_p = _primitive(
    "raised_sort",
    lambda *avals, **_: [_jax.ShapedArray(aval.shape, aval.dtype) for aval in avals],
    _lower_sort,
    _batch_sort,
)


# --- select_and_scatter


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
    scalars = _scalars(ctx.avals_in[:1], 2)
    _fill(ctx, operation.select, select, scalars)
    _fill(ctx, operation.scatter, scatter, scalars)
    return operation.results


def _batch_select_and_scatter(
    operands: Sequence[Any], dims: Sequence[int | None], *, sizes: Any, strides: Any, padding: Any, **blocks: Block
) -> tuple[Sequence[Any], Sequence[int]]:
    if dims[2] is not None:
        raise NotImplementedError("a batch of start values")
    size = size_of(operands, dims)
    operand, source = (at_front(array, dim, size) for array, dim in zip(operands[:2], dims[:2], strict=True))
    results = select_and_scatter_p.bind(
        operand, source, operands[2], sizes=(1, *sizes), strides=(1, *strides), padding=((0, 0), *padding), **blocks
    )
    return results, [0]


select_and_scatter_p = _primitive(
    "raised_select_and_scatter",
    lambda operand, source, start, **_: [_jax.ShapedArray(operand.shape, operand.dtype)],
    _lower_select_and_scatter,
    _batch_select_and_scatter,
)
