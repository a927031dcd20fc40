"""Operations that move elements, and those that make arrays: constants and counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax

from . import literals
from .operation import Operation


def constant(operation: Operation) -> Callable[..., Any]:
    (type_,) = operation.results
    value = literals.read(operation)
    if value.shape != type_.shape:  # one element for all
        return lambda: lax.broadcast(value, type_.shape)
    if type_.shape == ():
        operation.value = value
    return lambda: value


def broadcast_in_dim(operation: Operation) -> Callable[..., Any] | None:
    shape, dimensions = operation.results[0].shape, operation.integers("broadcast_dimensions")
    if not shape:
        return None  # the start of a reduction has to be known as a constant, and JAX may lower it to this
    order = sorted(range(len(dimensions)), key=dimensions.__getitem__)  # JAX takes increasing dimensions
    if order == list(range(len(order))):
        return lambda x: lax.broadcast_in_dim(x, shape, dimensions)
    return lambda x: lax.broadcast_in_dim(lax.transpose(x, order), shape, sorted(dimensions))


def reshape(operation: Operation) -> Callable[..., Any]:
    shape = operation.results[0].shape
    return lambda x: lax.reshape(x, shape)


def transpose(operation: Operation) -> Callable[..., Any]:
    permutation = operation.integers("permutation")
    return lambda x: lax.transpose(x, permutation)


def slice_(operation: Operation) -> Callable[..., Any]:
    start, limit = operation.integers("start_indices"), operation.integers("limit_indices")
    strides = operation.integers("strides")
    return lambda x: lax.slice(x, start, limit, strides)


# The functions of the next two would add arithmetic for negative indices. The primitives, like the operations, clamp.


def dynamic_slice(operation: Operation) -> Callable[..., Any]:
    sizes = operation.integers("slice_sizes")
    return lambda x, *starts: lax.dynamic_slice_p.bind(x, *starts, slice_sizes=sizes)


def dynamic_update_slice(operation: Operation) -> Callable[..., Any]:
    return lambda x, update, *starts: lax.dynamic_update_slice_p.bind(x, update, *starts)


def concatenate(operation: Operation) -> Callable[..., Any]:
    dimension = operation.integer("dimension")
    return lambda *xs: lax.concatenate(xs, dimension)


def pad(operation: Operation) -> Callable[..., Any]:
    low, high = operation.integers("edge_padding_low"), operation.integers("edge_padding_high")
    config = tuple(zip(low, high, operation.integers("interior_padding"), strict=True))
    return lambda x, value: lax.pad(x, value, config)


def reverse(operation: Operation) -> Callable[..., Any]:
    dimensions = operation.integers("dimensions")
    return lambda x: lax.rev(x, dimensions)


def iota(operation: Operation) -> Callable[..., Any]:
    (type_,), dimension = operation.results, operation.integer("iota_dimension")
    return lambda: lax.broadcasted_iota(type_.dtype, type_.shape, dimension)
