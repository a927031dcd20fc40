"""What a module that a policy allowed runs with, so that it reads and writes no memory but its own: other code for what
is safe only in the way in which JAX uses it.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from jaxexp import _jax
from jaxexp._kernel.artifact.operations import COLLECTIVES

from . import call_arrays, convolutions, mlir

# Routines of LAPACK that leave results as they were if they fail, which the last result says.
_FAILING = {"gesdd", "gesvd", "syevd", "heevd", "geev", "gees"}
# Attributes that tell a routine not to compute some results, and which.
_NOT_COMPUTED: dict[str, dict[str, tuple[int, ...]]] = {
    "gesdd": {"mode": (-3, -2)},
    "gesvd": {"mode": (-3, -2)},
    "geev": {"compute_left": (-3,), "compute_right": (-2,)},
    "gees": {"mode": (1,)},
}
_TARGET = re.compile(r"lapack_[sdcz](\w+)_ffi")
_ON_GPUS = re.compile(r"(cu|hip)solver_ges(vdj?|dd)_ffi")


def confine(module: Any, serialized: bytes) -> None:
    """Changes a module, in place; `serialized` is what it was parsed from."""
    # Devices meet where channels are equal, and XLA takes their arrays for equally large. With JAX's one channel for
    # all operations, devices in different branches would meet in other ones, of this module or of its caller.
    channels = itertools.count(int.from_bytes(hashlib.sha256(serialized).digest()[:6], "little") + 2)
    for operation in list(mlir.iter_operations(module)):
        if operation.name in COLLECTIVES and "channel_handle" in operation.attributes:
            _give_channel(operation, next(channels))
        if operation.name == "stablehlo.sort":
            # XLA sorts with the C++ library, which writes outside of the array if a comparator is no order, unless the
            # sort is stable. Each stable sort is one of those that an unstable one may be.
            operation.attributes["is_stable"] = _jax.ir.BoolAttr.get(True, module.context)
        elif operation.name == "stablehlo.custom_call":
            _confine_call(operation, mlir.target_of(operation))
        elif operation.name in ("stablehlo.divide", "stablehlo.remainder"):
            _divide_by_no_zero(operation)
        elif operation.name in convolutions.NAMES:
            convolutions.confine(operation)


def _give_channel(operation: Any, channel: int) -> None:
    old = _jax.hlo.ChannelHandle(operation.attributes["channel_handle"])
    operation.attributes["channel_handle"] = _jax.hlo.ChannelHandle.get(channel, old.channel_type, operation.context)


def _confine_call(call: Any, target: str) -> None:
    call_arrays.give_layouts(call, target)
    if (results := call_arrays.without_computing(call, target)) is not None:
        with call.location, _jax.ir.InsertionPoint(call):
            made = [_zeros(old) if new is None else new for old, new in zip(call.results, results, strict=True)]
        mlir.replace(call, made)
        return
    call_arrays.assert_not_empty(call, target)
    _clear_what_is_not_written(call, target)


def _clear_what_is_not_written(call: Any, target: str) -> None:
    results, choices = list(call.results), call_arrays.choices(call.attributes) or {}
    if target == "AllocateBuffer":
        for result in results:
            _replace(call, result, _zeros)
    if _ON_GPUS.fullmatch(target) and not choices.get("compute_uv", 1):
        for result in results[2:4]:
            _replace(call, result, _zeros)
    named = _TARGET.fullmatch(target)
    if named is None or named[1] not in _FAILING or len(results) < 3:
        return
    told = ((numbers, choices.get(name)) for name, numbers in _NOT_COMPUTED.get(named[1], {}).items())
    unwritten = {number % len(results) for numbers, choice in told if choice == ord("N") for number in numbers}
    for number, result in enumerate(results[:-1]):
        make = _zeros if number in unwritten else functools.partial(_where_computed, info=results[-1])
        _replace(call, result, make)


def _replace(call: Any, result: Any, make: Callable[[Any], Any]) -> None:
    """Gives all users of a result what is made of it."""
    uses = [(use.owner, use.operand_number) for use in result.uses]
    if not uses:
        return
    with call.location, _jax.ir.InsertionPoint.after(call):
        made = make(result)
    for owner, number in uses:
        owner.operands[number] = made


def _divide_by_no_zero(operation: Any) -> None:
    """JAX computes what is constant when sizes are known, also in functions that a symbolic one calls. The processor's
    division ends the process where XLA has a number for it.
    """
    element = _jax.ir.RankedTensorType(operation.result.type).element_type
    if not isinstance(element, _jax.ir.IntegerType):
        return
    hlo, (number, divisor) = _jax.hlo, operation.operands
    with operation.location, _jax.ir.InsertionPoint(operation):
        is_zero = _equal(divisor, zeros := _full(divisor, 0))
        operation.operands[1] = hlo.select(is_zero, _full(divisor, 1), divisor)
        of_zero = number if operation.name == "stablehlo.remainder" else hlo.subtract(zeros, _full(divisor, 1))
    _replace(operation, operation.result, lambda result: hlo.select(is_zero, of_zero, result))


def _full(like: Any, number: int) -> Any:
    """An array of one number, of the integer type of a value, whose sizes may be open."""
    ir, type_ = _jax.ir, _jax.ir.RankedTensorType(like.type)
    scalar = ir.RankedTensorType.get([], type_.element_type)
    splat = ir.IntegerAttr.get(type_.element_type, number)
    if type_.has_static_shape:
        return _jax.hlo.constant(ir.DenseElementsAttr.get_splat(type_, splat))
    one = _jax.hlo.constant(ir.DenseElementsAttr.get_splat(scalar, splat))
    return _jax.hlo.dynamic_broadcast_in_dim(type_, one, _sizes(like, type_.rank), [])


def _zeros(value: Any) -> Any:
    """Zeros of the type of a value, whose sizes may be open."""
    ir, type_ = _jax.ir, _jax.ir.RankedTensorType(value.type)
    truth = ir.IntegerType.get_signless(1)
    if type_.has_static_shape:
        none = ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get(type_.shape, truth), ir.BoolAttr.get(False))
        never = _jax.hlo.constant(none)
    else:
        never = _jax.hlo.and_(same := _equal(value, value), _jax.hlo.not_(same))
    return _jax.hlo.convert(type_, never)


def _where_computed(value: Any, info: Any) -> Any:
    """A result of a batch, and zeros for the elements of which `info` says that they were not computed."""
    hlo, ir = _jax.hlo, _jax.ir
    is_computed = _equal(info, hlo.subtract(info, info))
    type_ = ir.RankedTensorType(value.type)
    batch = ir.RankedTensorType(info.type).rank
    of_truth = ir.RankedTensorType.get(type_.shape, ir.IntegerType.get_signless(1))
    dimensions = list(range(batch))
    if type_.has_static_shape:
        chosen = hlo.broadcast_in_dim(of_truth, is_computed, dimensions)
    else:
        chosen = hlo.dynamic_broadcast_in_dim(of_truth, is_computed, _sizes(value, type_.rank), dimensions)
    return hlo.select(chosen, value, _zeros(value))


def _sizes(value: Any, rank: int) -> Any:
    one = _jax.ir.RankedTensorType.get([1], _jax.ir.IntegerType.get_signless(32))
    sizes: Sequence[Any] = [_jax.hlo.reshape(one, _jax.hlo.get_dimension_size(value, axis)) for axis in range(rank)]
    return _jax.hlo.concatenate(sizes, 0)


def _equal(left: Any, right: Any) -> Any:
    return _jax.hlo.compare(left, right, _jax.hlo.ComparisonDirectionAttr.get("EQ"))
