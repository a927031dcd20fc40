"""Arguments and results as arrays of NumPy, in the form that modules have them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from .runtime import numpy_dtype


def physical(value: Any, aval: Any) -> np.ndarray:
    """The data of a PRNG key, false for float0, other numbers as they are."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(value))
    if aval.dtype == jax.dtypes.float0:
        return np.zeros(aval.shape, bool)
    return np.asarray(jax.device_get(value)).astype(numpy_dtype(str(np.dtype(aval.dtype))))


def flat_arguments(exported: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[np.ndarray]:
    leaves = exported.in_tree.flatten_up_to((args, kwargs))
    return [physical(leaf, aval) for leaf, aval in zip(leaves, exported.in_avals, strict=True)]


def flat_results(exported: Any, results: Any) -> list[np.ndarray]:
    leaves = exported.out_tree.flatten_up_to(results)
    return [physical(leaf, aval) for leaf, aval in zip(leaves, exported.out_avals, strict=True)]
