"""Composites, which come with a function that defines them, such as CHLO's; custom calls that stand for operations; and
custom calls of typed foreign functions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxexp import _jax
from jaxexp._kernel.artifact.operations import is_callback

from .elementwise import CHLO
from .reader import Many, ModuleFunction, Operation, Read


def _composite(operation: Operation) -> Callable[..., Any] | Many | ModuleFunction:
    name = operation.text("name")
    operation.integer("version", 0)  # of the name's meaning; the function below is the meaning
    function = operation.function("decomposition")
    if not name.startswith("chlo."):
        operation.ignore("composite_attributes")  # the function has them in it
        return function
    attributes = operation.values("composite_attributes")
    return _by_name(operation, name.removeprefix("chlo."), attributes) or function


def _by_name(operation: Operation, name: str, attributes: dict[str, Any]) -> Callable[..., Any] | Many | None:
    """JAX's function for an operation of CHLO; None if it has none."""
    if name == "top_k" and attributes.keys() <= {"k", "is_stable"}:
        return _top_k(int(attributes["k"]), bool(attributes.get("is_stable", True)))
    if name in CHLO and not attributes:
        function, kinds = CHLO[name]
        operation.check_kinds(kinds)
        return function
    return None


# Before JAX 0.11, its function is always stable.
_IS_STABLE_IS_SAID = "is_stable" in inspect.signature(lax.top_k).parameters


def _top_k(k: int, is_stable: bool) -> Many:
    options: dict[str, Any] = {"is_stable": is_stable} if _IS_STABLE_IS_SAID else {}
    return Many(lambda x: lax.top_k(x, k, **options))


# --- custom calls


# jaxlib's LAPACK functions take leading axes as a batch.
_TAKES_BATCHES = re.compile(r"(lapack|blas)_\w+_ffi")
# Where typed calls have their attributes: in today's modules, and in artifacts.
_CONFIGURATIONS = "backend_config", "mhlo.backend_config"
_TYPED = 4
_DISTRIBUTED = re.compile(r"SPMD\w+ToFullShape|SPMD\w+ToShardShape|xla\.sdy\..*|CustomSPMDPartitioning|InspectSharding")


def _custom_call(operation: Operation) -> Callable[..., Any] | Many | ModuleFunction:
    target = operation.text("call_target_name")
    if target.startswith("mhlo."):
        return _operation_of_mhlo(operation, target.removeprefix("mhlo."))
    if _DISTRIBUTED.fullmatch(target):
        operation.refuse(f"of {target}, which distributes data")
    if is_callback(target):
        operation.refuse(f"of {target}, which calls back to Python")
    if operation.boolean("has_side_effect", False):
        operation.refuse(f"of {target}, which has side effects")
    if target == "ApproxTopK":
        return _approximate_top_k(operation)
    return _foreign_function(operation, target)


def _operation_of_mhlo(operation: Operation, name: str) -> Callable[..., Any] | Many:
    """An operation of CHLO, as JAX wrote it for readers that do not know it."""
    attributes = operation.values("mhlo.attributes")
    operation.integer("mhlo.version", 1)
    operation.integer("api_version", 1)
    if operation.boolean("has_side_effect", False) or operation.values("backend_config"):
        operation.refuse(f"of mhlo.{name} with more than its attributes")
    if name == "topk":
        name = "top_k"
        if not attributes.pop("largest", True):
            operation.refuse("of mhlo.topk for the smallest")
    made = _by_name(operation, name, attributes)
    if made is None:
        operation.refuse(f"of mhlo.{name}")
    return made


_APPROXIMATE = frozenset(
    ("aggregate_to_topk", "is_fallback", "recall_target", "reduction_dim", "reduction_input_size_override", "top_k")
)


def _approximate_top_k(operation: Operation) -> Many:
    """The top numbers with their places; JAX's function counts the places itself."""
    config = operation.values("mhlo.backend_config")
    if missing := _APPROXIMATE - config.keys():
        operation.refuse(f"of ApproxTopK without {min(missing)}")
    axis = int(config.pop("reduction_dim"))
    config.pop("is_fallback")  # whether a platform may compute it exactly, which JAX decides
    numbers, places = operation.operands[:2] if len(operation.operands) == 4 else operation.refuse()
    operation.integer("api_version", 1)
    order = _order(operation)
    if not operation.is_iota(1, axis) or places.shape != numbers.shape or order is None:
        operation.refuse("of ApproxTopK with other places or another order")
    last, place = operation.constant(2), operation.constant(3)
    if last is None or float(last) != _LAST[order] or place is None or int(place) != -1:
        operation.refuse("of ApproxTopK with other initial values")
    options: dict[str, Any] = {
        "k": int(config.pop("top_k")),
        "reduction_dimension": axis,
        "recall_target": float(config.pop("recall_target")),
        "reduction_input_size_override": int(config.pop("reduction_input_size_override")),
        "aggregate_to_topk": bool(config.pop("aggregate_to_topk")),
    }
    if config:
        operation.refuse(f"of ApproxTopK with {min(config)}")
    return Many(lambda x, *_: order(x, **options))


_LAST = {lax.approx_max_k: -np.inf, lax.approx_min_k: np.inf}  # what comes after all numbers


def _order(operation: Operation) -> Callable[..., Any] | None:
    """JAX's function for the order of a call's comparator; None if JAX has none."""
    (name,) = operation.structure("called_computations", lambda a: [_jax.ir.FlatSymbolRefAttr(e).value for e in a])
    block = operation.reader.function(name).block
    if len(block.steps) != 1 or block.steps[0].outputs != block.results:
        return None
    (step,) = block.steps
    if step.name != "stablehlo.compare" or step.inputs != block.parameters[:2]:
        return None
    if step.attributes.get("compare_type") == "TOTALORDER":
        return None
    return {"GT": lax.approx_max_k, "LT": lax.approx_min_k}.get(step.attributes["comparison_direction"])


def _foreign_function(operation: Operation, target: str) -> Many:
    config = next(filter(operation.has, _CONFIGURATIONS), None)
    version = operation.integer("api_version", _TYPED if config == "mhlo.backend_config" else 1)
    is_known = target.endswith("_ffi") or target in _jax.registered_custom_calls("cpu")
    if version != _TYPED or config is None or not is_known:
        operation.refuse(f"of {target}, which has no typed interface")
    operation.reader.foreign.add(target)
    attributes = operation.values(config)
    # These say how a call may be distributed over devices, not what it computes.
    if operation.values("mhlo.frontend_attributes").keys() - {"num_batch_dims"}:
        operation.refuse(f"of {target} with attributes for the compiler")
    operation.ignore("sdy.sharding_rule")
    if operation.has("called_computations") and len(operation.attribute("called_computations")):
        operation.refuse(f"of {target}, which calls functions of the module")
    call = jax.ffi.ffi_call(
        target,
        [type_.as_spec() for type_ in operation.results],
        vmap_method="broadcast_all" if _TAKES_BATCHES.fullmatch(target) else "sequential",
        input_layouts=_layouts(operation, "operand_layouts"),
        output_layouts=_layouts(operation, "result_layouts"),
        input_output_aliases=_aliases(operation),
    )
    return Many(lambda *operands: call(*operands, **attributes))


def _layouts(operation: Operation, name: str) -> list[tuple[int, ...]] | None:
    """Each array's axes from the slowest to the fastest; the module has them in reverse."""
    if not operation.has(name):
        return None
    layouts = [np.array(_jax.ir.DenseIntElementsAttr(entry)).reshape(-1) for entry in operation.attribute(name)]
    return [tuple(int(axis) for axis in layout[::-1]) for layout in layouts]


def _aliases(operation: Operation) -> dict[int, int] | None:
    """Which result takes each operand's memory."""
    if not operation.has("output_operand_aliases"):
        return None
    aliases = {}
    for entry in operation.attribute("output_operand_aliases"):
        alias = _jax.hlo.OutputOperandAlias(entry)
        if len(alias.operand_tuple_indices) or len(alias.output_tuple_indices) > 1:
            operation.refuse("with tuples")
        aliases[alias.operand_index] = next(iter(alias.output_tuple_indices), 0)
    return aliases or None


# --- linear algebra ---------------------------------------------------------------------------------------------------
# Products and convolutions; and transforms, decompositions and random bits that StableHLO has as operations.


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


def _rng_bit_generator(operation: Operation) -> Many:
    algorithm = operation.keyword("rng_algorithm", {one.name.removeprefix("RNG_"): one for one in lax.RandomAlgorithm})
    bits: Any = operation.results[1]
    before = operation.operands[0]
    if (tuple(before.shape), str(before.dtype)) not in (((4,), "uint32"), ((2,), "uint64")):
        operation.refuse("with a state of a type that JAX does not use")

    def generate(state: Any) -> Sequence[Any]:
        return lax.rng_bit_generator(state, bits.shape, bits.dtype, algorithm)

    # JAX's own batching would give a batch of states other bits than the states give one by one.
    return Many(jax.custom_batching.sequential_vmap(generate))


OPERATIONS: dict[str, Read] = {
    "chlo.top_k": lambda operation: _top_k(operation.integer("k"), operation.boolean("is_stable", True)),
    "stablehlo.cholesky": _cholesky,
    "stablehlo.composite": _composite,
    "stablehlo.convolution": _convolution,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.fft": _fft,
    "stablehlo.rng_bit_generator": _rng_bit_generator,
    "stablehlo.triangular_solve": _triangular_solve,
}
