"""Each operation by itself: what is raised computes the bits that XLA computes from the module, also for a batch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxexp._readback.function import raised
from kit.raising import assert_same_bits, said_of_loops
from kit.snippets import SNIPPETS

pytestmark = pytest.mark.sampled(one_in=6, reason="many cases go the same way")

# JAX maps no reduction that starts from a batch: with the start mapped, these are loops.
STARTS = {"reduce from an argument": (1,), "reduce of pairs": (2, 3)}

every_snippet = pytest.mark.parametrize("name", SNIPPETS)


@every_snippet
def test_values(name: str) -> None:
    snippet = SNIPPETS[name]
    exported, args = snippet.exported(), snippet.placed(*snippet.arguments())
    function = raised(exported, exported.in_avals, "cpu")
    with jax.enable_x64(True):
        expected = exported.call(*args)
        for run in (function, function.inline):  # as one operation, and as those that it has
            found = jax.jit(lambda *xs, run=run: run(*xs))(*args)
            if name.startswith("triangular_solve"):  # LAPACK's zeros have other signs
                found, expected = ([x + 0 for x in results] for results in (found, expected))
            assert_same_bits(found, expected)


@every_snippet
def test_batches(name: str) -> None:
    """Mapped as a whole, over all arguments and over each one."""
    snippet = SNIPPETS[name]
    exported, args = snippet.exported(), snippet.arguments()
    batches = [np.stack([_other(x, i) for i in range(3)]) for x in args]
    every = tuple(range(len(args)))
    with jax.enable_x64(True):
        for mapped in dict.fromkeys([every, *((i,) for i in every)]):
            rows = [[batches[i][k] if i in mapped else x for i, x in enumerate(args)] for k in range(3)]
            expected = [
                np.stack(column) for column in zip(*(exported.call(*snippet.placed(*row)) for row in rows), strict=True)
            ]
            in_axes = [0 if i in mapped else None for i in every]
            given = [batches[i] if i in mapped else x for i, x in enumerate(args)]
            with said_of_loops() as said:
                results = jax.vmap(exported.call, in_axes)(*snippet.placed(*given))
            assert not said or {*mapped} & {*STARTS.get(name, ())}, said
            for found, wanted in zip(results, expected, strict=True):
                np.testing.assert_allclose(
                    np.asarray(found).astype(_wide(wanted)), wanted.astype(_wide(wanted)), rtol=2e-5, atol=1e-5
                )


def _wide(array: Any) -> type:
    return complex if array.dtype.kind == "c" else float


def _other(array: np.ndarray, i: int) -> np.ndarray:
    """Another array of the same kind, which the snippet takes too."""
    if array.ndim:
        return np.roll(array, i, -1)
    if array.dtype == bool:
        return np.asarray(bool(array) ^ bool(i % 2))
    return np.asarray(array + i).astype(array.dtype)
