"""Transforms, decompositions and random bits that StableHLO has as operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from .operation import Many, Operation


def fft(operation: Operation) -> Callable[..., Any]:
    kind = operation.keyword("fft_type", {kind.name: kind for kind in lax.FftType})
    lengths = operation.integers("fft_length")
    return lambda x: lax.fft(x, kind, lengths)


def cholesky(operation: Operation) -> Callable[..., Any]:
    if not operation.boolean("lower", False):
        operation.refuse("of the upper triangle")
    return lambda x: lax.linalg.cholesky(x, symmetrize_input=False)


_TRANSPOSED = {"NO_TRANSPOSE": (False, False), "TRANSPOSE": (True, False), "ADJOINT": (True, True)}


def triangular_solve(operation: Operation) -> Callable[..., Any]:
    transpose, conjugate = operation.keyword("transpose_a", _TRANSPOSED)
    options: dict[str, Any] = {
        "left_side": operation.boolean("left_side"),
        "lower": operation.boolean("lower"),
        "unit_diagonal": operation.boolean("unit_diagonal"),
        "transpose_a": transpose,
        "conjugate_a": conjugate,
    }
    return lambda a, b: lax.linalg.triangular_solve(a, b, **options)


_ALGORITHMS = {
    "DEFAULT": lax.RandomAlgorithm.RNG_DEFAULT,
    "THREE_FRY": lax.RandomAlgorithm.RNG_THREE_FRY,
    "PHILOX": lax.RandomAlgorithm.RNG_PHILOX,
}


def rng_bit_generator(operation: Operation) -> Many:
    algorithm = operation.keyword("rng_algorithm", _ALGORITHMS)
    bits: Any = operation.results[1]
    before = operation.operands[0]
    if (tuple(before.shape), str(before.dtype)) not in (((4,), "uint32"), ((2,), "uint64")):
        operation.refuse("of a state that JAX has none of")

    def generate(state: Any) -> Sequence[Any]:
        return lax.rng_bit_generator(state, bits.shape, bits.dtype, algorithm)

    # JAX's own batching would give a batch of states other bits than the states give one by one.
    return Many(jax.custom_batching.sequential_vmap(generate))
