"""`gather` and `scatter`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxexp import _jax

from .operation import Operation


def _with_vectors_last(indices: Any, dimension: int) -> Any:
    """The indices with their vectors along the last dimension, where JAX expects them."""
    if dimension == indices.ndim:
        return lax.expand_dims(indices, (dimension,))
    others = [axis for axis in range(indices.ndim) if axis != dimension]
    return indices if dimension == indices.ndim - 1 else lax.transpose(indices, (*others, dimension))


def gather(operation: Operation) -> Callable[..., Any]:
    said = operation.structure("dimension_numbers", _jax.hlo.GatherDimensionNumbers)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(said.offset_dims),
        collapsed_slice_dims=tuple(said.collapsed_slice_dims),
        start_index_map=tuple(said.start_index_map),
        operand_batching_dims=tuple(said.operand_batching_dims),
        start_indices_batching_dims=tuple(said.start_indices_batching_dims),
    )
    sizes, vectors = operation.integers("slice_sizes"), said.index_vector_dim
    # This mode clamps indices, as the operation does, and adds nothing.
    options: dict[str, Any] = {
        "mode": lax.GatherScatterMode.CLIP,
        "indices_are_sorted": operation.boolean("indices_are_sorted", False),
    }
    return lambda x, indices: lax.gather(x, _with_vectors_last(indices, vectors), numbers, sizes, **options)


_SCATTERS: dict[str, Callable[..., Any]] = {
    "stablehlo.add": lax.scatter_add,
    "stablehlo.maximum": lax.scatter_max,
    "stablehlo.minimum": lax.scatter_min,
    "stablehlo.multiply": lax.scatter_mul,
    "stablehlo.subtract": lax.scatter_sub,
}


def scatter(operation: Operation) -> Callable[..., Any]:
    if len(operation.results) != 1:
        operation.refuse(f"into {len(operation.results)} arrays at once")
    said = operation.structure("scatter_dimension_numbers", _jax.hlo.ScatterDimensionNumbers)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(said.update_window_dims),
        inserted_window_dims=tuple(said.inserted_window_dims),
        scatter_dims_to_operand_dims=tuple(said.scattered_dims_to_operand_dims),
        operand_batching_dims=tuple(said.input_batching_dims),
        scatter_indices_batching_dims=tuple(said.scatter_indices_batching_dims),
    )
    vectors = said.index_vector_dim
    # This mode drops updates that lie outside, as the operation does, and adds nothing.
    options: dict[str, Any] = {
        "mode": lax.GatherScatterMode.FILL_OR_DROP,
        "indices_are_sorted": operation.boolean("indices_are_sorted", False),
        "unique_indices": operation.boolean("unique_indices", False),
    }
    block = operation.closed_region(0)
    known = block.only_operation(in_order=True)
    if known in _SCATTERS or (block.results == block.parameters[1:] and not block.steps):
        scatter = _SCATTERS.get(known, lax.scatter)
        return lambda x, indices, updates: scatter(x, _with_vectors_last(indices, vectors), updates, numbers, **options)
    scalar = jax.ShapeDtypeStruct((), operation.results[0].dtype)

    def combining(x: Any, indices: Any, updates: Any) -> Any:
        combine = jax.make_jaxpr(lambda old, update: block((old, update))[0])(scalar, scalar)
        return lax.scatter_p.bind(
            x,
            _with_vectors_last(indices, vectors),
            updates,
            dimension_numbers=numbers,
            update_jaxpr=combine.jaxpr,
            update_consts=tuple(map(np.asarray, combine.consts)),
            **options,
        )

    return combining
