"""The operations that jaxexp understands completely: what they do, and where they hide other operations.

A policy refuses every other operation, and so does the safety check of `export`: an operation outside of these tables
may run code of its author.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_UNDERSTOOD = {
    "builtin": "module unrealized_conversion_cast",  # portable artifacts have casts between dialects
    "func": "call func return",
    "stablehlo": """
        abs add after_all all_gather all_reduce all_to_all and atan2 batch_norm_grad batch_norm_inference
        batch_norm_training bitcast_convert broadcast broadcast_in_dim case cbrt ceil cholesky clamp
        collective_broadcast collective_permute collective_reduce compare complex composite concatenate constant
        convert convolution cosine count_leading_zeros create_token custom_call divide dot dot_general
        dynamic_broadcast_in_dim dynamic_conv dynamic_gather dynamic_iota dynamic_pad dynamic_reshape
        dynamic_slice dynamic_update_slice einsum exponential exponential_minus_one fft floor gather
        get_dimension_size get_tuple_element if imag infeed iota is_finite log log_plus_one logistic map maximum
        minimum multiply negate not optimization_barrier or outfeed pad partition_id popcnt power real
        real_dynamic_slice recv reduce reduce_precision reduce_scatter reduce_window remainder replica_id
        reshape return reverse rng rng_bit_generator round_nearest_afz round_nearest_even rsqrt scatter select
        select_and_scatter send shift_left shift_right_arithmetic shift_right_logical sign
        sine slice sort sqrt subtract tan tanh torch_index_select transpose triangular_solve tuple unary_einsum
        uniform_dequantize uniform_quantize while xor
    """,
    "chlo": """
        _asin_acos_kernel acos acosh asin asinh atan atanh bessel_i1e broadcast_add broadcast_and
        broadcast_atan2 broadcast_compare broadcast_complex broadcast_divide broadcast_maximum broadcast_minimum
        broadcast_multiply broadcast_next_after broadcast_or broadcast_polygamma broadcast_power
        broadcast_remainder broadcast_select broadcast_shift_left broadcast_shift_right_arithmetic
        broadcast_shift_right_logical broadcast_subtract broadcast_xor broadcast_zeta conj constant
        constant_like cosh digamma erf erf_inv erfc is_inf is_neg_inf is_pos_inf lgamma mulhi next_after
        polygamma ragged_dot scan sinh square tan top_k zeta
    """,
    "sdy": """
        all_gather all_reduce all_slice all_to_all collective_permute constant data_flow_edge
        func_data_flow_edge manual_computation mesh named_computation propagation_barrier reduce_scatter
        replicated_to_unreduced reshard return sharded_to_unreduced sharding_constraint sharding_group
    """,
}
OPERATIONS = frozenset(f"{dialect}.{name}" for dialect, names in _UNDERSTOOD.items() for name in names.split())

# The attributes of these operations, of `builtin.module` and of the arguments of functions. A custom call may have any
# attributes: they are up to its target.
ATTRIBUTES = frozenset(
    """
        algorithm all_gather_dim allowed_direction api_version arg_attrs axes base_dilations batch_dims
        batch_group_count broadcast_dimensions broadcast_sizes call_target_name called_computations callee
        channel_handle compare_type comparison_direction composite_attributes concat_dimension decomposition dim
        dimension dimension_numbers dimensions dot_dimension_numbers edge_padding_high edge_padding_low
        einsum_config epsilon exponent_bits feature_group_count feature_index fft_length fft_type function_type
        gathering_axes group_id has_dynamic_root has_side_effect in_shardings index indices_are_sorted
        infeed_config interior_padding iota_dimension is_associative is_host_transfer is_reverse is_stable k
        known_expanding_dimensions known_nonexpanding_dimensions layout left_side lhs_dilation limit_indices
        lower mantissa_bits manual_axes mesh name no_inline operandSegmentSizes operand_layouts out_sharding
        out_shardings outfeed_config output_operand_aliases padding params permutation precision_config
        ragged_dot_dimension_numbers reduce_scatter_axes reduction_axes reduction_op replica_groups res_attrs
        resultSegmentSizes result_accuracy result_layouts result_tilings rhs_dilation rng_algorithm
        rng_distribution scan_dim_size scatter_dimension scatter_dimension_numbers sharding slice_sizes
        slicing_axes source_target_pairs split_count split_dimension start_indices strides sym_name
        sym_visibility transpose_a unique_indices unit_diagonal use_global_device_ids value version
        window_dilations window_dimensions window_reversal window_strides
        mhlo.frontend_attributes mhlo.is_dynamic mhlo.layout_mode mhlo.memory_kind mhlo.num_partitions mhlo.num_replicas
        mhlo.sharding tf.aliasing_output
    """.split()
)
# JAX's and jaxexp's own notes, and attributes that say where arrays are.
ATTRIBUTE_PREFIXES = ("jax.", "jaxexp.", "sdy.", "stablehlo.", "xla.sdy.")

_VERSIONED = re.compile(r"vhlo\.(\w+)_v\d+")


# Operations that exchange data with the host, or with another program.
TRANSFERS = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv"))
# Operations in which devices meet.
COLLECTIVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather all_reduce all_to_all collective_broadcast collective_permute collective_reduce reduce_scatter"
    ).split()
)
# Those that change a size, and the attribute with its dimension. For groups of one device, XLA believes any size.
RESIZING = {"stablehlo.all_gather": "all_gather_dim", "stablehlo.reduce_scatter": "scatter_dimension"}
# Operations by which devices may go different ways.
BRANCHES = frozenset(("stablehlo.case", "stablehlo.if", "stablehlo.while"))
# Operations whose results XLA computes without a look at the types that the module says. JAX writes none of them.
UNTYPED = frozenset(("stablehlo.einsum", "stablehlo.torch_index_select", "stablehlo.unary_einsum"))
# Those whose types are compared where the sizes of a module are made constant for a call. JAX writes them there only.
UNTYPED_IF_CONSTANT = frozenset(
    f"stablehlo.{name}"
    for name in (
        "dynamic_broadcast_in_dim dynamic_conv dynamic_gather dynamic_iota dynamic_pad dynamic_reshape "
        "real_dynamic_slice"
    ).split()
)


# Those that combine elements in a region. StableHLO lets it compute with wider elements, which XLA does not.
REDUCTIONS = frozenset(
    f"stablehlo.{name}"
    for name in ("all_reduce collective_reduce reduce reduce_scatter reduce_window scatter select_and_scatter").split()
)

# What may combine or compare single elements, in the regions of reductions, windows, scatters, maps, sorts and
# collective operations, and in functions that these call. XLA ends the process at many others there.
OF_ELEMENTS = frozenset(
    """
        abs add and atan2 bitcast_convert broadcast_in_dim call case cbrt ceil clamp compare complex composite constant
        convert cosine count_leading_zeros divide exponential exponential_minus_one floor if imag is_finite log
        log_plus_one logistic maximum minimum multiply negate not optimization_barrier or popcnt power real
        reduce_precision remainder reshape return round_nearest_afz round_nearest_even rsqrt select shift_left
        shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor
    """.split()
)


def as_parsed(operation: str) -> str:
    """The name in a module of an operation in a portable artifact, if it is one of VHLO; others stay as they are."""
    return _VERSIONED.sub(r"stablehlo.\1", operation)


def is_understood(operation: str) -> bool:
    """Whether a kind of operation is in the tables, by its name in a module or in a portable artifact."""
    if operation in OPERATIONS:
        return True
    versioned = _VERSIONED.fullmatch(operation)
    return versioned is not None and any(f"{dialect}.{versioned[1]}" in OPERATIONS for dialect in ("stablehlo", "func"))


def may_be_of_elements(operation: str) -> bool:
    """Whether a kind of operation may combine or compare single elements, by its name in a portable artifact."""
    versioned = _VERSIONED.fullmatch(operation)
    return versioned is not None and versioned[1] in OF_ELEMENTS


def not_understood(operations: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in set(operations) if not is_understood(name)))


def is_attribute_understood(name: str) -> bool:
    """Whether an operation's attribute of this name cannot carry code."""
    return name in ATTRIBUTES or name.startswith(ATTRIBUTE_PREFIXES)


# --- the targets of custom calls that have a meaning for JAX: stable ones, and callbacks to Python --------------------


# LAPACK routines that lower to a custom call on CPU, and the names of some in complex arithmetic.
_LAPACK = "potrf geqrf orgqr syevd geev gesdd getrf sytrd gehrd gees trsm gtsv".split()
_COMPLEX_LAPACK = {"orgqr": "ungqr", "syevd": "heevd", "sytrd": "hetrd"}
_SOLVER = "getrf geqrf orgqr potrf syevd gesvd gesvdj sytrd".split()


# Custom calls that JAX promises to keep stable ("Compatibility guarantees for custom calls" in
# https://docs.jax.dev/en/latest/export/export.html).
STABLE_CUSTOM_CALLS = frozenset(
    {f"lapack_{precision}{routine}_ffi" for precision in "sd" for routine in _LAPACK}
    | {f"lapack_{precision}{_COMPLEX_LAPACK.get(name, name)}_ffi" for precision in "cz" for name in _LAPACK}
    | {f"{vendor}solver_{routine}_ffi" for vendor in ("cu", "hip") for routine in _SOLVER}
    | {f"{vendor}_{name}" for vendor in ("cu", "hip") for name in ("lu_pivots_to_permutation", "threefry2x32_ffi")}
    | {"hipsolver_gesdd_ffi", "cusparse_gtsv2_ffi"}
    | {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"}
    | {"Eigh", "Qr", "ProductOfElementaryHouseholderReflectors", "LuDecomposition", "ApproxTopK"}  # TPU
    | {"tpu_custom_call", "mosaic_gpu_v2"}  # Pallas
    | {f"stablehlo.dynamic_{name}" for name in ("approx_top_k", "reduce_window", "rng_bit_generator", "top_k")}
    | {"tf.call_tf_function", "AllocateBuffer", "shape_assertion"}
)

# Those of them that a policy allows without being told. The others are kernels, code of their authors, which JAX parses
# with nothing but MLIR's own checks, also on a CPU.
KNOWN_CUSTOM_CALLS = STABLE_CUSTOM_CALLS - {"tpu_custom_call", "mosaic_gpu_v2"}

# Targets whose code trusts the arrays that it gets, beside LAPACK's, which `call_arrays.py` compares. XLA takes some of
# them apart, and reads operands that may be missing.
TRUSTING = frozenset(
    "Qr Eigh LuDecomposition ProductOfElementaryHouseholderReflectors cusparse_gtsv2_ffi "
    "cu_threefry2x32_ffi hip_threefry2x32_ffi".split()
)

# The targets of host callbacks in all releases. Their operands or attributes are addresses in the exporting process.
_PYTHON_CALLBACK = re.compile(r"xla_(ffi_|buffer_|partitioned_)*python_\w*callback")


def is_callback(target: str) -> bool:
    return _PYTHON_CALLBACK.fullmatch(target) is not None


# The stable ones that compute nothing. They say where arrays are, or assert what shapes promise; such assertions are
# decided before the function is compiled.
HINTS = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement", "shape_assertion"}
)
