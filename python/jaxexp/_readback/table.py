"""The table of operations: how each one is read, and which ones are refused and why."""

from __future__ import annotations

from collections.abc import Mapping

from . import (
    composites,
    contractions,
    control,
    custom_calls,
    elementwise,
    indexing,
    linear_algebra,
    placement,
    reductions,
    shapes,
    sorting,
)
from .operation import Read

_READ: Mapping[str, Read] = {
    **composites.OPERATIONS,
    **contractions.OPERATIONS,
    **control.OPERATIONS,
    **custom_calls.OPERATIONS,
    **elementwise.OPERATIONS,
    **indexing.OPERATIONS,
    **linear_algebra.OPERATIONS,
    **placement.OPERATIONS,
    **reductions.OPERATIONS,
    **shapes.OPERATIONS,
    **sorting.OPERATIONS,
}

_COLLECTIVE = "devices exchange data in it"
_DYNAMIC = "its shapes are known only when it runs"
_EFFECT = "it exchanges data with the outside"
_NOT_WRITTEN = "JAX does not lower anything to it"
_QUANTIZED = "JAX has no quantized types"
_TUPLE = "JAX has no tuples"
_REPLACED = "artifacts have it as operations of StableHLO"

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        [
            "stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.all_to_all", "stablehlo.collective_broadcast",
            "stablehlo.collective_permute", "stablehlo.collective_reduce", "stablehlo.cross-replica-sum",
            "stablehlo.partition_id", "stablehlo.reduce_scatter", "stablehlo.replica_id", "sdy.all_gather",
            "sdy.all_reduce", "sdy.all_slice", "sdy.all_to_all", "sdy.collective_permute", "sdy.reduce_scatter",
            "sdy.replicated_to_unreduced", "sdy.reshard", "sdy.sharded_to_unreduced",
        ],
        _COLLECTIVE,
    ),
    "sdy.manual_computation": "jax.shard_map divides its data among devices by hand",
    **dict.fromkeys(
        [
            "sdy.constant", "sdy.data_flow_edge", "sdy.func_data_flow_edge", "sdy.named_computation",
            "sdy.propagation_barrier", "sdy.sharding_group",
        ],
        _NOT_WRITTEN,
    ),
    **dict.fromkeys(
        [
            "stablehlo.dynamic_broadcast_in_dim", "stablehlo.dynamic_conv", "stablehlo.dynamic_gather",
            "stablehlo.dynamic_iota", "stablehlo.dynamic_pad", "stablehlo.dynamic_reshape",
            "stablehlo.get_dimension_size", "stablehlo.real_dynamic_slice", "stablehlo.set_dimension_size",
        ],
        _DYNAMIC,
    ),
    **dict.fromkeys(
        [
            "stablehlo.after_all", "stablehlo.async_done", "stablehlo.async_start", "stablehlo.create_token",
            "stablehlo.infeed", "stablehlo.outfeed", "stablehlo.recv", "stablehlo.send",
        ],
        _EFFECT,
    ),
    **dict.fromkeys(
        [
            "stablehlo.batch_norm_grad", "stablehlo.batch_norm_inference", "stablehlo.batch_norm_training",
            "stablehlo.broadcast", "stablehlo.dot", "stablehlo.einsum", "stablehlo.map", "stablehlo.rng",
            "stablehlo.torch_index_select", "stablehlo.unary_einsum", "chlo.constant", "chlo.constant_like",
            "chlo.is_neg_inf", "chlo.is_pos_inf",
        ],
        _NOT_WRITTEN,
    ),
    **dict.fromkeys(["stablehlo.uniform_dequantize", "stablehlo.uniform_quantize"], _QUANTIZED),
    **dict.fromkeys(["stablehlo.get_tuple_element", "stablehlo.tuple"], _TUPLE),
    **dict.fromkeys(["chlo._asin_acos_kernel", "chlo.ragged_dot", "chlo.scan"], _REPLACED),
    **dict.fromkeys(
        [
            f"chlo.broadcast_{name}"
            for name in (
                "add and atan2 compare complex divide maximum minimum multiply next_after or polygamma power "
                "remainder select shift_left shift_right_arithmetic shift_right_logical subtract xor zeta"
            ).split()
        ],
        _NOT_WRITTEN,
    ),
}  # fmt: skip


def _refusing(why: str) -> Read:
    return lambda operation: operation.refuse(why)


OPERATIONS: Mapping[str, Read] = {**{name: _refusing(why) for name, why in REFUSED.items()}, **_READ}
