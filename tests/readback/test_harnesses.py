"""JAX's own examples of its primitives.

Raised, each gives the bits of a call. Mapped, it gives the bits of the live function mapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._readback.read_back import Raised, raised_for
from kit.harnesses import assert_each, harnesses, is_key, numbers
from kit.raising import assert_same_bits

pytestmark = [
    pytest.mark.jax,
    pytest.mark.long(
        promise="JAX's own examples of its primitives give the bits of a call when raised, and map as they do",
        sibling="test_snippets.py::test_values",
    ),
]

PARTS = 30
MOST_OF_A_GROUP = 20

# JAX gives a batch of states other bits than each state by itself; what is raised gives each element those of its call.
OTHER_BATCHES = "rng_bit_generator"
# In its loop, the compiler adds and multiplies in one step or in two.
ROUNDED_OTHERWISE = "random_gamma"


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Compiled code would fill the memory."""
    yield
    jax.clear_caches()


@pytest.mark.parametrize("part", range(PARTS))
def test_primitives(part: int) -> None:
    assert len(harnesses(MOST_OF_A_GROUP)) > 1200
    assert_each(harnesses(MOST_OF_A_GROUP)[part::PARTS], compare)


def compare(harness: Any) -> None:
    args = harness.dyn_args_maker(np.random.RandomState(0))
    leaves, tree = jax.tree.flatten(args)
    exported = jaxexp.export(jax.jit(harness.dyn_fun))(*args)
    function = raised(exported, leaves)
    assert_same_bits(numbers(jax.jit(lambda *xs: function(*xs))(*leaves)), numbers(exported.call(*args)))
    if leaves:
        batches = [other_rows(leaf) for leaf in leaves]
        if OTHER_BATCHES in harness.fullname:
            rows = [exported.call(*jax.tree.unflatten(tree, [b[i] for b in batches])) for i in range(2)]
            live: Any = jax.tree.map(lambda *xs: jnp.stack(xs), *rows)
        else:
            live = jax.jit(jax.vmap(lambda *xs: harness.dyn_fun(*jax.tree.unflatten(tree, xs))))(*batches)
        found, expected = numbers(jax.jit(jax.vmap(function.inline))(*batches)), numbers(live)
        if ROUNDED_OTHERWISE in harness.fullname:
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        else:
            assert_same_bits(found, expected)


def raised(exported: jaxexp.Exported, leaves: Sequence[Any]) -> Raised:
    in_avals = [jax.typeof(leaf).strip_weak_type() for leaf in leaves]
    return raised_for(exported, in_avals, "cpu")


def other_rows(leaf: Any) -> Any:
    """A batch of two: the argument, and its elements in another order where it is of numbers that may be mixed."""
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    if is_key(array):
        return jnp.stack([array, array])
    array = np.asarray(array)
    other = np.roll(array, 1, -1) if array.ndim == 1 and jax.dtypes.issubdtype(array.dtype, np.inexact) else array
    return np.stack([array, other])
