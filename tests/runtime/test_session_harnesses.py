"""JAX's own examples of its primitives compute in a Session what they compute live, of special values, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp.runtime import Session
from kit import runtime, without_jax
from kit.harnesses import assert_each, harnesses, is_key, numbers

without_jax.skip_without_plugin()
pytestmark = pytest.mark.jax

PARTS = 10
MOST_OF_A_GROUP = 12
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1, -1, 0.5, 2, -3.5, 1e30, -1e30, 1e-30, 7])
# By the size of a float in bytes.
TOLERANCE = {1: 0.1, 2: 0.02, 4: 1e-4, 8: 1e-9}

# Of NaN and large numbers, these loop for minutes in JAX, or choose among what is no order.
FOR_PLAIN_VALUES = ("igamma", "random_gamma", "approx_top_k")
# Which of equal keys comes first is the compiler's to choose.
UNSTABLE = "isstable_False"


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Compiled code would fill the memory."""
    yield
    jax.clear_caches()


@pytest.mark.long(
    promise="a session computes JAX's own examples of each primitive as JAX does",
    sibling="test_session_harnesses.py::test_some_primitives",
)
@pytest.mark.parametrize("part", range(PARTS))
def test_primitives(part: int) -> None:
    chosen = harnesses(MOST_OF_A_GROUP)[part::PARTS]
    assert_each([harness for harness in chosen if UNSTABLE not in harness.fullname], compare)


def test_some_primitives() -> None:
    chosen = [harness for harness in harnesses(1) if UNSTABLE not in harness.fullname]
    assert_each(chosen[::12], compare)


def compare(harness: Any) -> None:
    rng = np.random.default_rng(0)
    args = jax.tree.map(as_jax_has_it, harness.dyn_args_maker(np.random.RandomState(0)))
    if not harness.group_name.startswith(FOR_PLAIN_VALUES):
        args = jax.tree.map(lambda x: with_special_values(x, rng), args)
    function = jax.jit(harness.dyn_fun)
    expected = numbers(function(*args))
    blob = jaxexp.export(function)(*args).serialize(compatibility=runtime.READER)
    results = [np.asarray(found) for found in numbers(Session(blob, plugin="cpu")(*args))]
    assert len(results) == len(expected)
    if harness.group_name.startswith("approx_top_k") and np.unique(expected[0]).size < np.size(expected[0]):
        expected = expected[:1]  # as of keys in a sort that is not stable: the others are places of equal keys
    for found, wanted in zip(results, expected, strict=False):
        assert_close(found, np.asarray(wanted))


def as_jax_has_it(array: Any) -> Any:
    """A Session converts no array, and JAX makes 32 bits of 64."""
    if is_key(array) or not hasattr(array, "dtype"):
        return array
    return np.asarray(array).astype(jax.dtypes.canonicalize_dtype(array.dtype))


def with_special_values(array: Any, rng: np.random.Generator) -> Any:
    """Only special values, of all floats and complex numbers."""
    if is_key(array) or not hasattr(array, "dtype") or not jax.dtypes.issubdtype(array.dtype, np.inexact):
        return array
    with np.errstate(over="ignore"):
        if array.dtype.kind != "c":
            return rng.choice(SPECIAL, array.shape).astype(array.dtype)
        # Whether the difference of two products that overflow is NaN depends on the instructions for it.
        small = SPECIAL[~(np.isfinite(SPECIAL) & (np.abs(SPECIAL) > 1e9))]
        changed = np.empty_like(array)
        changed.real, changed.imag = rng.choice(small, array.shape), rng.choice(small, array.shape)
        return changed


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    """Up to what another version of XLA makes of the same module; NaN is equal to itself."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if found.dtype.kind == "c":
        assert_close(found.real, expected.real)
        assert_close(found.imag, expected.imag)
    elif jax.dtypes.issubdtype(found.dtype, np.floating):
        tolerance = TOLERANCE[found.dtype.itemsize]
        wide = (array.astype(np.float64) for array in (found, expected))
        np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(found, expected)
