"""Files of tensors, written and read as jaxexp writes and reads them, without a program beside them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from jaxexp._weights.files import dtypes, saving
from jaxexp._weights.files.header import Source, Table


def write(path: str | os.PathLike[str], sources: Sequence[Source], *, max_file_size: int | None = None) -> Table:
    table, temporary = saving.write_apart(path, sources, max_file_size=max_file_size)
    for file, now in zip(table.files, temporary, strict=True):
        os.replace(now, os.path.join(os.path.dirname(path), file.second_name))
    saving.publish(path, table)
    return table


def array_of(tensor: Source) -> np.ndarray:
    """A tensor as a NumPy array over the mapped file."""
    return np.frombuffer(tensor.data(), in_numpy(tensor.dtype)).reshape(tensor.shape)


def in_numpy(dtype: str) -> Any:
    """The NumPy dtype for the elements of a tensor; None if the format holds no dtype of JAX under this name."""
    for jax_name, name in dtypes._NAMES.items():
        if name == dtype:
            return np.dtype(getattr(ml_dtypes, jax_name, jax_name))
    return None
