"""The table of operations: how each one is read, and which ones are refused and why."""

from __future__ import annotations

from collections.abc import Mapping

from . import (
    collectives,
    composites,
    contractions,
    control,
    custom_calls,
    elementwise,
    indexing,
    linear_algebra,
    manual,
    placement,
    reductions,
    shapes,
    sorting,
    zeros,
)
from .operation import Read

_READ: Mapping[str, Read] = {
    **elementwise.OPERATIONS,
    **collectives.OPERATIONS,
    "chlo.top_k": composites.chlo_top_k,
    "func.call": control.call,
    "sdy.manual_computation": manual.manual_computation,
    "sdy.sharding_constraint": placement.sharding_constraint,
    "stablehlo.broadcast_in_dim": shapes.broadcast_in_dim,
    "stablehlo.case": control.case,
    "stablehlo.cholesky": linear_algebra.cholesky,
    "stablehlo.composite": composites.composite,
    "stablehlo.concatenate": shapes.concatenate,
    "stablehlo.constant": shapes.constant,
    "stablehlo.convolution": contractions.convolution,
    "stablehlo.custom_call": custom_calls.custom_call,
    "stablehlo.dot_general": contractions.dot_general,
    "stablehlo.dynamic_slice": shapes.dynamic_slice,
    "stablehlo.dynamic_update_slice": shapes.dynamic_update_slice,
    "stablehlo.fft": linear_algebra.fft,
    "stablehlo.gather": indexing.gather,
    "stablehlo.if": control.if_,
    "stablehlo.iota": shapes.iota,
    "stablehlo.optimization_barrier": control.barrier,
    "stablehlo.pad": shapes.pad,
    "stablehlo.reduce": reductions.reduce,
    "stablehlo.reduce_window": reductions.reduce_window,
    "stablehlo.reshape": shapes.reshape,
    "stablehlo.reverse": shapes.reverse,
    "stablehlo.rng_bit_generator": linear_algebra.rng_bit_generator,
    "stablehlo.scatter": indexing.scatter,
    "stablehlo.select_and_scatter": sorting.select_and_scatter,
    "stablehlo.slice": shapes.slice_,
    "stablehlo.sort": sorting.sort,
    "stablehlo.transpose": shapes.transpose,
    "stablehlo.triangular_solve": linear_algebra.triangular_solve,
    "stablehlo.while": control.while_,
}

_REFUSED_BECAUSE: Mapping[str, str] = {
    "devices exchange data in it": """
        stablehlo.collective_broadcast stablehlo.collective_reduce stablehlo.cross-replica-sum sdy.all_gather
        sdy.all_reduce sdy.all_slice sdy.all_to_all sdy.collective_permute sdy.reduce_scatter
        sdy.replicated_to_unreduced sdy.reshard sdy.sharded_to_unreduced
    """,
    "JAX does not lower anything to it": """
        stablehlo.batch_norm_grad stablehlo.batch_norm_inference stablehlo.batch_norm_training stablehlo.broadcast
        stablehlo.dot stablehlo.einsum stablehlo.map stablehlo.rng stablehlo.torch_index_select stablehlo.unary_einsum
        chlo.broadcast_add chlo.broadcast_and chlo.broadcast_atan2 chlo.broadcast_compare chlo.broadcast_complex
        chlo.broadcast_divide chlo.broadcast_maximum chlo.broadcast_minimum chlo.broadcast_multiply
        chlo.broadcast_next_after chlo.broadcast_or chlo.broadcast_polygamma chlo.broadcast_power
        chlo.broadcast_remainder chlo.broadcast_select chlo.broadcast_shift_left chlo.broadcast_shift_right_arithmetic
        chlo.broadcast_shift_right_logical chlo.broadcast_subtract chlo.broadcast_xor chlo.broadcast_zeta chlo.constant
        chlo.constant_like chlo.is_neg_inf chlo.is_pos_inf sdy.constant sdy.data_flow_edge sdy.func_data_flow_edge
        sdy.named_computation sdy.propagation_barrier sdy.sharding_group
    """,
    "its shapes are known only when it runs": """
        stablehlo.dynamic_broadcast_in_dim stablehlo.dynamic_conv stablehlo.dynamic_gather stablehlo.dynamic_iota
        stablehlo.dynamic_pad stablehlo.dynamic_reshape stablehlo.get_dimension_size stablehlo.real_dynamic_slice
        stablehlo.set_dimension_size
    """,
    "it exchanges data with the outside": """
        stablehlo.after_all stablehlo.async_done stablehlo.async_start stablehlo.create_token stablehlo.infeed
        stablehlo.outfeed stablehlo.recv stablehlo.send
    """,
    "JAX has no quantized types": "stablehlo.uniform_dequantize stablehlo.uniform_quantize",
    "JAX has no tuples": "stablehlo.get_tuple_element stablehlo.tuple",
    "artifacts have it as operations of StableHLO": "chlo._asin_acos_kernel chlo.ragged_dot chlo.scan",
}
REFUSED = {name: why for why, names in _REFUSED_BECAUSE.items() for name in names.split()}


def _refusing(why: str) -> Read:
    return lambda operation: operation.refuse(why)


OPERATIONS: Mapping[str, Read] = {**{name: _refusing(why) for name, why in REFUSED.items()}, **_READ}

# How a module is read that is differentiated.
DIFFERENTIABLE: Mapping[str, Read] = {
    **OPERATIONS,
    **{
        name: zeros.keeping(OPERATIONS[name])
        for name in (*elementwise.CURVED, "stablehlo.composite", "stablehlo.custom_call")
    },
    "stablehlo.abs": zeros.keeping(zeros.absolute),
    "stablehlo.bitcast_convert": zeros.bits,
}
