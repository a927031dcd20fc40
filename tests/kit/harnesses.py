"""JAX's own examples of its primitives, thousands of small functions that its tests share."""

from __future__ import annotations

import collections
import functools
import importlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax


@functools.cache
def harnesses(most_of_a_group: int) -> Sequence[Any]:
    """Of each group of examples so many that run on CPU, always the same ones."""
    module = importlib.import_module("jax._src.internal_test_util.test_harnesses")
    groups: dict[str, list[Any]] = collections.defaultdict(list)
    for harness in module.all_harnesses:
        if harness.filter("cpu"):
            groups[harness.group_name].append(harness)
    chosen = [random.Random(0).sample(group, min(len(group), most_of_a_group)) for group in groups.values()]
    return [harness for group in chosen for harness in group]


def assert_each(chosen: Sequence[Any], compare: Callable[[Any], None]) -> None:
    """Compares all of them, and names each that differs."""
    wrong = {}
    for harness in chosen:
        try:
            compare(harness)
        except Exception as error:
            wrong[harness.fullname] = f"{type(error).__name__}: {error}"[:500]
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


def is_key(array: Any) -> bool:
    return bool(hasattr(array, "dtype") and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key))


def numbers(results: Any) -> list[Any]:
    """Keys as the integers that they are made of."""
    return [jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(results)]
