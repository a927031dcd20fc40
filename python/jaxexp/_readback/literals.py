"""The values of constants."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from jaxexp import _jax
from jaxexp._kernel.artifact.words import dtype_and_shape

from .array_type import Type
from .operation import Operation

# The dtypes whose elements MLIR's bindings give as they are.
_AS_BUFFERS = tuple(
    np.dtype(kind) for kind in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
)
_PARTS: dict[str, Any] = {"complex64": "float32", "complex128": "float64"}
_ELEMENT = re.compile(r"true|false|0x[0-9A-Fa-f]+|[-+]?[0-9][0-9.]*(?:[eE][-+]?[0-9]+)?")


def read(operation: Operation) -> np.ndarray[Any, Any]:
    """The value of a `stablehlo.constant`; of rank 0 if all its elements are the same."""
    (type_,) = operation.results
    value = _from_buffer(operation, type_) if type_.dtype in _AS_BUFFERS else _from_text(operation, type_)
    value.setflags(write=False)
    return value


def _from_buffer(operation: Operation, type_: Type) -> np.ndarray[Any, Any]:
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


def _from_text(operation: Operation, type_: Type) -> np.ndarray[Any, Any]:
    """The value for other dtypes, such as complex ones, whose attributes MLIR's bindings cannot even return."""
    operation.ignore("value")
    _, found, rest = operation.print().partition("stablehlo.constant dense<")
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
