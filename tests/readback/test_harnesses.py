"""JAX's own examples of its primitives, thousands of small functions that its tests share.

Raised, each gives the bits of a call. Mapped, it gives the bits of the live function mapped.
"""

from __future__ import annotations

import collections
import functools
import importlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._readback.function import Raised, raised
from kit.raising import assert_same_bits

pytestmark = pytest.mark.slow(reason="thousands of functions, each compiled four times")

PARTS = 40
MOST_OF_A_GROUP = 55

# JAX gives a batch of states other bits than each state by itself; what is raised gives each element those of its call.
OTHER_BATCHES = "rng_bit_generator"
# In its loop, the compiler adds and multiplies in one step or in two.
ROUNDED_OTHERWISE = "random_gamma"


@functools.cache
def harnesses() -> Sequence[Any]:
    """Of each group of examples so many that run on CPU, always the same ones."""
    module = importlib.import_module("jax._src.internal_test_util.test_harnesses")
    groups: dict[str, list[Any]] = collections.defaultdict(list)
    for harness in module.all_harnesses:
        if harness.filter("cpu"):
            groups[harness.group_name].append(harness)
    chosen = [random.Random(0).sample(group, min(len(group), MOST_OF_A_GROUP)) for group in groups.values()]
    return [harness for group in chosen for harness in group]


def test_there_are_enough() -> None:
    assert len(harnesses()) > 2000


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Compiled code would fill the memory."""
    yield
    jax.clear_caches()


@pytest.mark.parametrize("part", range(PARTS))
def test_primitives(part: int) -> None:
    wrong = {}
    for harness in harnesses()[part::PARTS]:
        try:
            compare(harness)
        except Exception as error:
            wrong[harness.fullname] = f"{type(error).__name__}: {error}"[:500]
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


def compare(harness: Any) -> None:
    args = harness.dyn_args_maker(np.random.RandomState(0))
    leaves, tree = jax.tree.flatten(args)
    exported = jaxexp.export(jax.jit(harness.dyn_fun))(*args)
    function = raised_for(exported, leaves)
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


def raised_for(exported: jaxexp.Exported, leaves: Sequence[Any]) -> Raised:
    in_avals = [jax.typeof(leaf).strip_weak_type() for leaf in leaves]
    return raised(exported, in_avals, "cpu")


def is_key(array: Any) -> bool:
    return bool(jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key))


def numbers(results: Any) -> list[Any]:
    """Keys as the integers that they are made of."""
    return [jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(results)]


def other_rows(leaf: Any) -> Any:
    """A batch of two: the argument, and its elements in another order where it is of numbers that may be mixed."""
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    if is_key(array):
        return jnp.stack([array, array])
    array = np.asarray(array)
    other = np.roll(array, 1, -1) if array.ndim == 1 and jax.dtypes.issubdtype(array.dtype, np.inexact) else array
    return np.stack([array, other])
