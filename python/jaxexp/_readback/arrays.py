"""Operations that make arrays: constants and counting; and those that move elements: by shapes, `gather`, `scatter`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxexp import _jax
from jaxexp._kernel.artifact.words import dtype_and_shape

from .array_type import ArrayType
from .reader import Operation, Read

# The dtypes whose elements MLIR's bindings give as they are.
_AS_BUFFERS = tuple(
    np.dtype(kind) for kind in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
)
_PARTS: dict[str, Any] = {"complex64": "float32", "complex128": "float64"}
_ELEMENT = re.compile(r"true|false|0x[0-9A-Fa-f]+|[-+]?[0-9][0-9.]*(?:[eE][-+]?[0-9]+)?")


def _from_buffer(operation: Operation, type_: ArrayType) -> np.ndarray[Any, Any]:
    attribute = operation.attribute("value")
    if not isinstance(attribute, (_jax.ir.DenseIntElementsAttr, _jax.ir.DenseFPElementsAttr)):
        operation.refuse("whose value is not in the module")
    view = np.asarray(attribute)
    if attribute.is_splat and view.size > 1:
        view = view[(0,) * view.ndim]
    value = np.array(view)  # a copy, because the module may be freed
    if value.dtype != type_.dtype or value.shape not in ((), type_.shape):
        operation.refuse(f"of {type_}, which reads as {dtype_and_shape(value.dtype, value.shape)}")
    return value


def _from_text(operation: Operation, type_: ArrayType) -> np.ndarray[Any, Any]:
    """The value for other dtypes, such as complex ones, whose attributes MLIR's bindings cannot even return."""
    operation.ignore("value")
    _, found, rest = str(operation.mlir).partition("stablehlo.constant dense<")
    body, ends, _ = rest.rpartition("> : ")
    if not found or not ends:
        operation.refuse("whose value is not in the module")
    if body.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(body[3:-1]), type_.dtype).reshape(type_.shape)
    words = _ELEMENT.findall(body)
    part = np.dtype(_PARTS.get(type_.dtype.name, type_.dtype))
    values: np.ndarray[Any, Any] = np.array([_element(word, part) for word in words], part).view(type_.dtype)
    is_one = len(values) == 1 and "[" not in body
    return values.reshape(() if is_one else type_.shape)


def _element(word: str, dtype: np.dtype[Any]) -> Any:
    """An element as MLIR prints it: exactly, and as the bits of a float if decimals cannot express it."""
    if word.startswith("0x"):
        return np.array(int(word, 16), f"u{dtype.itemsize}").view(dtype)[()]
    number = int(word) if word.lstrip("+-").isdigit() else float(word)
    return np.array(number).astype(dtype)[()]


def _constant(operation: Operation) -> Callable[..., Any]:
    (type_,) = operation.results
    value = _from_buffer(operation, type_) if type_.dtype in _AS_BUFFERS else _from_text(operation, type_)
    value.setflags(write=False)
    if value.shape != type_.shape:  # one element for all
        return lambda: lax.broadcast(value, type_.shape)
    if type_.shape == ():
        operation.value = value
    return lambda: value


def _iota(operation: Operation) -> Callable[..., Any]:
    (type_,), dimension = operation.results, operation.integer("iota_dimension")
    return lambda: lax.broadcasted_iota(type_.dtype, type_.shape, dimension)


# --- shapes


def _broadcast_in_dim(operation: Operation) -> Callable[..., Any] | None:
    shape, dimensions = operation.results[0].shape, operation.integers("broadcast_dimensions")
    if not shape:
        return None  # the start of a reduction has to be known as a constant, and JAX may lower it to this
    order = sorted(range(len(dimensions)), key=dimensions.__getitem__)  # JAX takes increasing dimensions
    if order == list(range(len(order))):
        return lambda x: lax.broadcast_in_dim(x, shape, dimensions)
    return lambda x: lax.broadcast_in_dim(lax.transpose(x, order), shape, sorted(dimensions))


def _reshape(operation: Operation) -> Callable[..., Any]:
    shape = operation.results[0].shape
    return lambda x: lax.reshape(x, shape)


def _pad(operation: Operation) -> Callable[..., Any]:
    names = "edge_padding_low", "edge_padding_high", "interior_padding"
    config = tuple(zip(*map(operation.integers, names), strict=True))
    return lambda x, value: lax.pad(x, value, config)


def _moving(function: Callable[..., Any], *names: str) -> Read:
    """Reads an operation whose attributes, lists of integers, are what a function of JAX takes behind the array."""

    def read(operation: Operation) -> Callable[..., Any]:
        integers = [operation.integers(name) for name in names]
        return lambda x: function(x, *integers)

    return read


def _concatenate(operation: Operation) -> Callable[..., Any]:
    dimension = operation.integer("dimension")
    return lambda *xs: lax.concatenate(xs, dimension)


# JAX's functions for slices would add arithmetic for negative indices. The primitives, like the operations, clamp.


def _dynamic_slice(operation: Operation) -> Callable[..., Any]:
    return functools.partial(lax.dynamic_slice_p.bind, slice_sizes=operation.integers("slice_sizes"))


# --- gather and scatter


def _with_vectors_last(indices: Any, dimension: int) -> Any:
    """The indices with their vectors along the last dimension, where JAX expects them."""
    if dimension == indices.ndim:
        return lax.expand_dims(indices, (dimension,))
    others = [axis for axis in range(indices.ndim) if axis != dimension]
    return indices if dimension == indices.ndim - 1 else lax.transpose(indices, (*others, dimension))


# Names that JAX has for parts of MLIR's attributes.
_OTHER_NAMES = {
    "scatter_dims_to_operand_dims": "scattered_dims_to_operand_dims",
    "operand_batching_dims": "input_batching_dims",
}


def _dimensions(operation: Operation, name: str, mlir: Any, jax_class: Any) -> tuple[Any, int]:
    """What an attribute of a class of MLIR's bindings says, as JAX has it, and the dimension of the index vectors."""
    said = operation.structure(name, mlir)
    names = {part: part if hasattr(said, part) else _OTHER_NAMES[part] for part in jax_class._fields}
    return jax_class(**{part: tuple(getattr(said, names[part])) for part in names}), said.index_vector_dim


def _gather(operation: Operation) -> Callable[..., Any]:
    numbers, vectors = _dimensions(
        operation, "dimension_numbers", _jax.hlo.GatherDimensionNumbers, lax.GatherDimensionNumbers
    )
    sizes, is_sorted = operation.integers("slice_sizes"), operation.boolean("indices_are_sorted", False)

    def gather(x: Any, indices: Any) -> Any:
        indices = _with_vectors_last(indices, vectors)
        # This mode clamps indices, as the operation does, and adds nothing.
        return lax.gather(x, indices, numbers, sizes, indices_are_sorted=is_sorted, mode=lax.GatherScatterMode.CLIP)

    return gather


_SCATTERS: dict[str, Callable[..., Any]] = {
    "stablehlo.add": lax.scatter_add,
    "stablehlo.maximum": lax.scatter_max,
    "stablehlo.minimum": lax.scatter_min,
    "stablehlo.multiply": lax.scatter_mul,
    "stablehlo.subtract": lax.scatter_sub,
}


def _scatter(operation: Operation) -> Callable[..., Any]:
    if len(operation.results) != 1:
        operation.refuse(f"into {len(operation.results)} arrays at once")
    numbers, vectors = _dimensions(
        operation, "scatter_dimension_numbers", _jax.hlo.ScatterDimensionNumbers, lax.ScatterDimensionNumbers
    )
    # This mode drops updates that lie outside, as the operation does, and adds nothing.
    options: dict[str, Any] = {
        "dimension_numbers": numbers,
        "mode": lax.GatherScatterMode.FILL_OR_DROP,
        "indices_are_sorted": operation.boolean("indices_are_sorted", False),
        "unique_indices": operation.boolean("unique_indices", False),
    }
    block = operation.closed_region(0)
    known = block.only_operation(in_order=True)
    if known in _SCATTERS or (block.results == block.parameters[1:] and not block.steps):
        scatter = _SCATTERS.get(known, lax.scatter)
        return lambda x, indices, updates: scatter(x, _with_vectors_last(indices, vectors), updates, **options)
    scalar = jax.ShapeDtypeStruct((), operation.results[0].dtype)

    def combining(x: Any, indices: Any, updates: Any) -> Any:
        combine = jax.make_jaxpr(lambda old, update: block((old, update))[0])(scalar, scalar)
        consts = tuple(map(np.asarray, combine.consts))
        indices = _with_vectors_last(indices, vectors)
        return lax.scatter_p.bind(x, indices, updates, update_jaxpr=combine.jaxpr, update_consts=consts, **options)

    return combining


OPERATIONS: dict[str, Read] = {
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.constant": _constant,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": lambda _: lax.dynamic_update_slice_p.bind,
    "stablehlo.gather": _gather,
    "stablehlo.iota": _iota,
    "stablehlo.pad": _pad,
    "stablehlo.reshape": _reshape,
    "stablehlo.reverse": _moving(lax.rev, "dimensions"),
    "stablehlo.scatter": _scatter,
    "stablehlo.slice": _moving(lax.slice, "start_indices", "limit_indices", "strides"),
    "stablehlo.transpose": _moving(lax.transpose, "permutation"),
}
