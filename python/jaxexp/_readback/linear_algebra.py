"""Products and convolutions; and transforms, decompositions and random bits that StableHLO has as operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from jaxexp import _jax

from .reader import Many, Operation, Read

_PRECISIONS = {precision.name: precision for precision in lax.Precision}


def _precision(operation: Operation) -> tuple[lax.Precision, ...]:
    """The precisions, named even if they are the default: for None, JAX takes the caller's setting."""
    default = (lax.Precision.DEFAULT, lax.Precision.DEFAULT)
    precision = operation.keywords("precision_config", _PRECISIONS, default) or default
    if len(precision) != 2:
        operation.refuse(f"with {len(precision)} precisions")
    return precision


def _algorithm(attribute: Any) -> lax.DotAlgorithmPreset:
    """The preset that stands for an algorithm; JAX takes others only on some platforms.

    A preset's name has two precisions, the precision of the accumulation, and how many products make one.
    """
    said = _jax.hlo.DotAlgorithm(attribute)
    if said.allow_imprecise_accumulation or (said.lhs_component_count, said.rhs_component_count) != (1, 1):
        raise ValueError(str(attribute))
    types = (said.lhs_precision_type, said.rhs_precision_type, said.accumulation_type)
    name = "_".join(str(type_).upper() for type_ in types)
    products = said.num_primitive_operations
    return lax.DotAlgorithmPreset[name if products == 1 else f"{name}_X{products}"]


def _dot_general(operation: Operation) -> Callable[..., Any]:
    said = operation.structure("dot_dimension_numbers", _jax.hlo.DotDimensionNumbers)
    numbers = (
        (tuple(said.lhs_contracting_dimensions), tuple(said.rhs_contracting_dimensions)),
        (tuple(said.lhs_batching_dimensions), tuple(said.rhs_batching_dimensions)),
    )
    precision = _precision(operation)
    algorithm = operation.structure("algorithm", _algorithm) if operation.has("algorithm") else None
    if algorithm is not None and precision != (lax.Precision.DEFAULT, lax.Precision.DEFAULT):
        operation.refuse("with an algorithm and a precision")
    operation.said.update(dimension_numbers=numbers, precision=precision, algorithm=algorithm)
    chosen: Any = precision if algorithm is None else algorithm
    dtype = operation.results[0].dtype
    return lambda x, y: lax.dot_general(x, y, numbers, chosen, preferred_element_type=dtype)


def _convolution(operation: Operation) -> Callable[..., Any]:
    said = operation.structure("dimension_numbers", _jax.hlo.ConvDimensionNumbers)
    numbers = lax.ConvDimensionNumbers(
        (said.input_batch_dimension, said.input_feature_dimension, *said.input_spatial_dimensions),
        (said.kernel_output_feature_dimension, said.kernel_input_feature_dimension, *said.kernel_spatial_dimensions),
        (said.output_batch_dimension, said.output_feature_dimension, *said.output_spatial_dimensions),
    )
    spatial = len(said.input_spatial_dimensions)
    ones = (1,) * spatial
    reversal = operation.booleans("window_reversal", (False,) * spatial)
    reversed_ = [dim for dim, is_reversed in zip(said.kernel_spatial_dimensions, reversal, strict=True) if is_reversed]
    options: dict[str, Any] = {
        "window_strides": operation.integers("window_strides", ones),
        "padding": operation.padding(spatial),
        "lhs_dilation": operation.integers("lhs_dilation", ones),
        "rhs_dilation": operation.integers("rhs_dilation", ones),
        "dimension_numbers": numbers,
        "feature_group_count": operation.integer("feature_group_count"),
        "batch_group_count": operation.integer("batch_group_count"),
        "precision": _precision(operation),
        "preferred_element_type": operation.results[0].dtype,
    }

    def convolve(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, lax.rev(kernel, reversed_) if reversed_ else kernel, **options)

    return convolve


# --- transforms, decompositions, random bits


def _fft(operation: Operation) -> Callable[..., Any]:
    kind = operation.keyword("fft_type", {kind.name: kind for kind in lax.FftType})
    lengths = operation.integers("fft_length")
    return lambda x: lax.fft(x, kind, lengths)


def _cholesky(operation: Operation) -> Callable[..., Any]:
    if not operation.boolean("lower", False):
        operation.refuse("of the upper triangle")
    return lambda x: lax.linalg.cholesky(x, symmetrize_input=False)


_TRANSPOSED = {"NO_TRANSPOSE": (False, False), "TRANSPOSE": (True, False), "ADJOINT": (True, True)}


def _triangular_solve(operation: Operation) -> Callable[..., Any]:
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


def _rng_bit_generator(operation: Operation) -> Many:
    algorithm = operation.keyword("rng_algorithm", _ALGORITHMS)
    bits: Any = operation.results[1]
    before = operation.operands[0]
    if (tuple(before.shape), str(before.dtype)) not in (((4,), "uint32"), ((2,), "uint64")):
        operation.refuse("of a state that JAX has none of")

    def generate(state: Any) -> Sequence[Any]:
        return lax.rng_bit_generator(state, bits.shape, bits.dtype, algorithm)

    # JAX's own batching would give a batch of states other bits than the states give one by one.
    return Many(jax.custom_batching.sequential_vmap(generate))


OPERATIONS: dict[str, Read] = {
    "stablehlo.cholesky": _cholesky,
    "stablehlo.convolution": _convolution,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.fft": _fft,
    "stablehlo.rng_bit_generator": _rng_bit_generator,
    "stablehlo.triangular_solve": _triangular_solve,
}
