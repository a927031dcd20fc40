"""Operations in the forms that JAX lowers to: other producers also write older ones, and CHLO's as custom calls."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxexp import _jax
from jaxexp._kernel.artifact.operations import OPERATIONS
from jaxexp._kernel.module import mlir
from jaxexp._kernel.module.main import lowered_inline
from jaxexp._readback.array_type import DTYPES


def bring_up_to_date(module: Any) -> None:
    """Replaces what has a newer form, in place; the module's MLIR context is entered."""
    _jax.hlo.register_stablehlo_passes()
    mlir.run_passes(module, "func.func(stablehlo-legalize-deprecated-ops{fail-on-unused=false})")
    for target, call in mlir.custom_calls(module):
        # What a translation from HLO makes of operations that StableHLO does not have.
        if target.startswith("mhlo.") and "mhlo.attributes" in call.attributes:
            said = call.attributes["mhlo.attributes"]
            if isinstance(said, _jax.ir.DictAttr):
                _to_chlo(call, target.removeprefix("mhlo."), said)
    for operation in mlir.iter_operations(module, innermost_first=True):
        if operation.name in _BATCH_NORM:
            _write_out(module, operation)
        elif operation.name in ("stablehlo.reshape", "stablehlo.transpose") and _changes_nothing(operation):
            mlir.replace(operation, operation.operands)


def _to_chlo(call: Any, name: str, said: Any) -> None:
    attributes: dict[str, Any] = {}
    if name == "topk":
        if {name for name, _ in mlir.items(said)} != {"k", "largest"} or str(said["largest"]) != "true":
            return
        name, attributes = "top_k", {"k": said["k"]}
    elif len(said):
        return
    if f"chlo.{name}" not in OPERATIONS:
        return
    with _jax.ir.InsertionPoint(call), call.location:
        types = [result.type for result in call.results]
        made = _jax.ir.Operation.create(
            f"chlo.{name}", results=types, operands=list(call.operands), attributes=attributes
        )
    try:
        made.verify()
    except _jax.ir.MLIRError:  # the call has other operands or results: `check_stable` refuses it
        made.erase()
    else:
        mlir.replace(call, made.results)


def _changes_nothing(operation: Any) -> bool:
    """Whether a reshape or a transposition returns what it gets. HLO marks arguments and results with such."""
    if operation.operands[0].type != operation.results[0].type:
        return False
    if operation.name == "stablehlo.reshape":
        return bool(operation.results[0].type.has_static_shape)
    return [*operation.attributes["permutation"]] == [*range(operation.results[0].type.rank)]


def _batch_norm(feature: int, epsilon: float, x: Any, scale: Any, offset: Any, *given: Any) -> Sequence[Any]:
    """Batch normalization: by a given mean and variance, or by those of the batch, which it returns then."""
    axes = tuple(axis for axis in range(x.ndim) if axis != feature)
    mean, variance = given or (jnp.mean(x, axes), jnp.var(x, axes))
    of_all = [lax.broadcast_in_dim(array, x.shape, (feature,)) for array in (scale, offset, mean, variance)]
    scale, offset, center, spread = of_all
    normalized = scale * (x - center) * lax.rsqrt(spread + np.asarray(epsilon, x.dtype)) + offset
    return [normalized] if given else [normalized, mean, variance]


_BATCH_NORM = "stablehlo.batch_norm_training", "stablehlo.batch_norm_inference"


def _write_out(module: Any, operation: Any) -> None:
    """Replaces a batch normalization, which JAX does not lower anything to. One of unknown shapes stays."""
    types = [operand.type for operand in operation.operands]
    if not all(type_.has_static_shape for type_ in types):
        return
    avals = [_jax.ShapedArray(tuple(type_.shape), DTYPES[str(type_.element_type)]) for type_ in types]
    feature, epsilon = (operation.attributes[name].value for name in ("feature_index", "epsilon"))
    function = functools.partial(_batch_norm, feature, epsilon)
    with jax.enable_x64(True), _jax.ir.InsertionPoint(operation), operation.location:
        mlir.replace(operation, lowered_inline(function, module, avals, list(operation.operands)))
