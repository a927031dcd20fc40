"""Files of tensors, written and read as jaxexp writes and reads them, without a program beside them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from jaxexp._weights.files import dtypes, writing
from jaxexp._weights.files.header import Tensor
from jaxexp._weights.files.reading import TensorFile, Tensors


def write(
    path: str | os.PathLike[str], sources: Sequence[writing.Source], *, max_file_size: int | None = None
) -> list[writing.WrittenFile]:
    written = writing.write_apart(path, sources, max_file_size=max_file_size)
    for file in written:
        writing.name_apart(os.path.dirname(path), file)
    writing.publish(path, written)
    return written


def array_in(file: TensorFile, tensor: Tensor) -> np.ndarray:
    """A tensor as a NumPy array over the mapped file."""
    return np.frombuffer(file.bytes_of(tensor), in_numpy(tensor.dtype)).reshape(tensor.shape)


def array_of(tensors: Tensors, name: str) -> np.ndarray:
    return array_in(tensors.file_of(name), tensors[name])


def in_numpy(dtype: str) -> Any:
    """The NumPy dtype for the elements of a tensor; None if the format holds no dtype of JAX under this name."""
    for jax_name, name in dtypes._NAMES.items():
        if name == dtype:
            return np.dtype(getattr(ml_dtypes, jax_name, jax_name))
    return None
