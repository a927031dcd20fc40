"""The dtypes of the format by their numbers, and dtypes that were registered at run time."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxexp import _jax


def _dtypes(*names: str) -> list[np.dtype[Any]]:
    return [np.dtype(getattr(jnp, name)) for name in names]


# Indexed by the format's number for a dtype (the DType enum of schema/exported.fbs).
DTYPES: tuple[Any, ...] = (
    *_dtypes("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *_dtypes("float16", "float32", "float64", "complex64", "complex128", "bfloat16", "int4", "uint4"),
    *_dtypes("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    _jax.float0,
    *_dtypes("float8_e4m3", "float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn"),
    *map(_jax.key_dtype, ("threefry2x32", "rbg", "unsafe_rbg")),
)


def has_number(dtype: Any) -> bool:
    """Whether an artifact can have arguments of a dtype."""
    return dtype in DTYPES or dtype in _jax.jax_dtype_kinds()


def kind_of_dtype(dtype: Any) -> int:
    """The number of a dtype that was registered with JAX's serializer at run time; LookupError if there is none."""
    return _jax.jax_dtype_kinds()[dtype]


def dtype_of_kind(kind: int) -> Any:
    for dtype, registered in _jax.jax_dtype_kinds().items():
        if registered == kind:
            return dtype
    raise LookupError(kind)
