"""Arguments and results as arrays of NumPy, in the form that modules have them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from .runtime import numpy_dtype


def assert_alike(found: dict[str, np.ndarray], expected: list[np.ndarray]) -> None:
    """Up to what another version of XLA makes of the same module."""
    assert len(found) == len(expected)
    for (path, array), wanted in zip(found.items(), expected, strict=True):
        assert array.dtype == wanted.dtype, path
        assert array.shape == wanted.shape, path
        is_wide = array.dtype in (np.float64, np.complex128)
        tolerance = {"rtol": 1e-10, "atol": 1e-10} if is_wide else {"rtol": 3e-5, "atol": 1e-5}
        wide = np.complex128 if array.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(array.astype(wide), wanted.astype(wide), **tolerance, err_msg=path)


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
