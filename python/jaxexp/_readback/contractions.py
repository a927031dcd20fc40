"""Products: `dot_general` and convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax

from jaxexp import _jax

from .operation import Operation

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


def dot_general(operation: Operation) -> Callable[..., Any]:
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


def convolution(operation: Operation) -> Callable[..., Any]:
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
        "padding": operation.pairs("padding", ((0, 0),) * spatial),
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
