"""Types of values in a module, as shapes and dtypes; and batches of such values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import lax

from jaxexp import _jax
from jaxexp._kernel.artifact.words import dtype_and_shape

from .refused import RefusedError

DTYPES: dict[str, Any] = {
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"ui{bits}": np.dtype(f"uint{bits}") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    **{f"complex<f{bits}>": np.dtype(f"complex{2 * bits}") for bits in (32, 64)},
    "i1": np.dtype(bool),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f4E2M1FN": np.dtype(ml_dtypes.float4_e2m1fn),
    **{
        f"f8{kind.upper()}": np.dtype(f"float8_{kind}")
        for kind in "e3m4 e4m3 e4m3b11fnuz e4m3fn e4m3fnuz e5m2 e5m2fnuz e8m0fnu".split()
    },
}
_KINDS = {"f": np.floating, "i": np.signedinteger, "b": np.bool_, "u": np.unsignedinteger, "c": np.complexfloating}
_OF_64_BITS = tuple(np.dtype(name) for name in ("int64", "uint64", "float64", "complex128"))


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayType:
    """The type of a value: an array of a known shape."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return dtype_and_shape(self.dtype.name, self.shape)

    @property
    def kind(self) -> str:
        """One letter: b for bool, i for integers, u for unsigned ones, f for floats, c for complex numbers."""
        # NumPy's own kinds do not help: there, all dtypes of ml_dtypes have kind V.
        for letter, kind in _KINDS.items():
            if _jax.issubdtype(self.dtype, kind):
                return letter
        raise AssertionError(self.dtype)

    def as_spec(self) -> Any:
        return jax.ShapeDtypeStruct(self.shape, self.dtype)


def is_wide(array: Any) -> bool:
    """Whether JAX has arrays of this dtype only if 64-bit types are enabled."""
    return array.dtype in _OF_64_BITS


def plain(aval: Any) -> Any:
    """An abstract value without its facts about devices."""
    return _jax.ShapedArray(aval.shape, aval.dtype, memory_space=aval.memory_space)


def read(type_: Any) -> ArrayType:
    """An MLIR type.

    Raises:
        RefusedError: it is not an array type of a known shape, or it says more than shape and dtype.
    """
    if not isinstance(type_, _jax.ir.RankedTensorType):
        raise RefusedError(f"a value of type {type_}", "which is not an array")
    if not type_.has_static_shape:
        raise RefusedError(f"a value of type {type_}", "whose shape is not known")
    if type_.encoding is not None:
        raise RefusedError(f"a value of type {type_}", "which has an encoding")
    dtype = DTYPES.get(str(type_.element_type))
    if dtype is None:
        raise RefusedError(f"a value of type {type_}", "which JAX does not have")
    return ArrayType(tuple(type_.shape), dtype)


def with_axis_in_front(arrays: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """Operands of a batching rule, all of them with the mapped axis in front, which is added where there is none."""
    size = next(array.shape[dim] for array, dim in zip(arrays, dims, strict=True) if dim is not None)
    return [
        lax.broadcast(array, (size,)) if dim is None else jax.numpy.moveaxis(array, dim, 0)
        for array, dim in zip(arrays, dims, strict=True)
    ]
