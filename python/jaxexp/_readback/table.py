"""The table of operations: how each one is read, and which ones are refused and why."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from . import arrays, control, custom_calls, devices, elementwise, linear_algebra, reductions
from .reader import Operation, Read

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


OPERATIONS: dict[str, Read] = {
    **{name: functools.partial(Operation.refuse, why=why) for name, why in REFUSED.items()},
    **arrays.OPERATIONS,
    **control.OPERATIONS,
    **custom_calls.OPERATIONS,
    **devices.OPERATIONS,
    **elementwise.OPERATIONS,
    **linear_algebra.OPERATIONS,
    **reductions.OPERATIONS,
}

# How a module is read that is differentiated.
DIFFERENTIABLE: Mapping[str, Read] = {
    **OPERATIONS,
    **{
        name: elementwise.keeping_zeros(OPERATIONS[name])
        for name in (*elementwise.CURVED, "stablehlo.composite", "stablehlo.custom_call")
    },
    "stablehlo.abs": elementwise.keeping_zeros(elementwise.absolute),
    "stablehlo.bitcast_convert": elementwise.bits,
    "stablehlo.reduce": reductions.differentiable_reduce,
    "stablehlo.sign": elementwise.sign,
}
