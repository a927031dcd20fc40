"""The dtypes of the format, and how it holds the JAX dtypes that it has no name for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxexp import _native
from jaxexp._kernel.artifact.words import dtype_and_shape

# How many bits an element takes, by its dtype's name in a header.
BITS = _native.tensor_dtypes()

# JAX's dtypes under the format's names.
_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}

# Other dtypes are held as their bytes in memory, with at least one byte for an element.
_BYTES_OF = {
    "int2": "I8",
    "int4": "I8",
    "uint2": "U8",
    "uint4": "U8",
    "float8_e3m4": "U8",
    "float8_e4m3": "U8",
    "float8_e4m3b11fnuz": "U8",
}


def type_of(array: Any) -> str:
    """As in "float32[3,4]", for messages."""
    return dtype_and_shape(array.dtype, array.shape)


def held_as(dtype: str, shape: Sequence[int]) -> tuple[str, tuple[int, ...]] | None:
    """The dtype and the shape that a file has for an array of a JAX dtype; None if it cannot hold one."""
    name = _NAMES.get(dtype) or _BYTES_OF.get(dtype)
    if name is not None:
        return name, tuple(shape)
    if dtype == "complex128":
        return "F64", (*shape, 2)  # the real part and the imaginary part
    if dtype == "float4_e2m1fn":
        # Two elements in a byte, the first one in the lower bits. In a file, no tensor ends inside a byte.
        return ("F4" if math.prod(shape) % 2 == 0 else "U8"), tuple(shape)
    return None


def unnamed(dtype: str, shape: Sequence[int]) -> str | None:
    """A JAX dtype if a file holds it under the name of another one; None if the name says what it is."""
    held = held_as(dtype, shape)
    return None if held is None or dtype in _NAMES or held[0] == "F4" else dtype


# The JAX dtype that the format has a name for; None if there is none.
dtype_of = {name: dtype for dtype, name in _NAMES.items()}.get


def size_of(dtype: str, shape: Sequence[int]) -> int | None:
    """How many bytes a tensor takes in a file; None if its last element ends inside a byte."""
    bits = BITS[dtype] * math.prod(shape)
    return None if bits % 8 else bits // 8
