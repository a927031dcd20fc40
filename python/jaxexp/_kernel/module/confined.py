"""What a module that a policy allowed runs with, so that it reads and writes no memory but its own: other code for what
is safe only in the way in which JAX uses it.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxexp import _jax
from jaxexp._kernel.artifact.operations import COLLECTIVES

from . import call_arrays, mlir

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
            old = _jax.hlo.ChannelHandle(operation.attributes["channel_handle"])
            new = _jax.hlo.ChannelHandle.get(next(channels), old.channel_type, module.context)
            operation.attributes["channel_handle"] = new
        if operation.name == "stablehlo.sort":
            # XLA sorts with the C++ library, which writes outside of the array if a comparator is no order, unless the
            # sort is stable. Each stable sort is one of those that an unstable one may be.
            operation.attributes["is_stable"] = _jax.ir.BoolAttr.get(True, module.context)
        elif operation.name == "stablehlo.custom_call":
            _confine_call(operation, mlir.target_of(operation))
        elif operation.name in ("stablehlo.divide", "stablehlo.remainder"):
            _divide_by_no_zero(operation)
        elif operation.name in CONVOLUTIONS:
            _assert_open_sizes(operation)
            _take_away_first(operation)


def _confine_call(call: Any, target: str) -> None:
    call_arrays.give_layouts(call, target)
    if (results := call_arrays.without_computing(call, target)) is not None:
        with call.location, _jax.ir.InsertionPoint(call):
            made = [_zeros(old) if new is None else new for old, new in zip(call.results, results, strict=True)]
        mlir.replace(call, made)
        return
    call_arrays.assert_not_empty(call, target)
    # What is not written is cleared.
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
    if not isinstance(mlir.type_of(operation.result).element_type, _jax.ir.IntegerType):
        return
    hlo, (number, divisor) = _jax.hlo, operation.operands
    with operation.location, _jax.ir.InsertionPoint(operation):
        is_zero = _equal(divisor, zeros := _full(divisor, 0))
        operation.operands[1] = hlo.select(is_zero, _full(divisor, 1), divisor)
        of_zero = number if operation.name == "stablehlo.remainder" else hlo.subtract(zeros, _full(divisor, 1))
    _replace(operation, operation.result, lambda result: hlo.select(is_zero, of_zero, result))


def _full(like: Any, number: int, element: Any = None) -> Any:
    """An array of one integer, of the shape of a value; by default of its element type."""
    element = mlir.type_of(like).element_type if element is None else element
    scalar = _jax.ir.RankedTensorType.get([], element)
    splat = _jax.ir.DenseElementsAttr.get_splat(scalar, _jax.ir.IntegerAttr.get(element, number))
    return _broadcast(_jax.hlo.constant(splat), like, [])


def _zeros(value: Any) -> Any:
    return _jax.hlo.convert(mlir.type_of(value), _full(value, 0, _jax.ir.IntegerType.get_signless(1)))


def _broadcast(value: Any, like: Any, dimensions: Sequence[int]) -> Any:
    """A value in the shape of another one, whose sizes may be open; its dimensions are these."""
    hlo, ir, type_ = _jax.hlo, _jax.ir, mlir.type_of(like)
    made = ir.RankedTensorType.get(type_.shape, mlir.type_of(value).element_type)
    if type_.has_static_shape:
        return hlo.broadcast_in_dim(made, value, dimensions)
    one = ir.RankedTensorType.get([1], ir.IntegerType.get_signless(32))
    sizes: Sequence[Any] = [hlo.reshape(one, hlo.get_dimension_size(like, axis)) for axis in range(type_.rank)]
    return hlo.dynamic_broadcast_in_dim(made, value, hlo.concatenate(sizes, 0), dimensions)


def _where_computed(value: Any, info: Any) -> Any:
    """A result of a batch, and zeros for the elements of which `info` says that they were not computed."""
    is_computed = _equal(info, _jax.hlo.subtract(info, info))
    chosen = _broadcast(is_computed, value, list(range(mlir.type_of(info).rank)))
    return _jax.hlo.select(chosen, value, _zeros(value))


def _equal(left: Any, right: Any) -> Any:
    return _jax.hlo.compare(left, right, _jax.hlo.ComparisonDirectionAttr.get("EQ"))


# --- convolutions for which XLA reads outside of its arrays on a CPU --------------------------------------------------
# Its code for CPUs counts places in 32-bit floats, which have no odd numbers above 2^24, and a distance of 2^32 ends
# the process. Before JAX 0.12 (https://github.com/openxla/xla/issues/48713), it does not know where it is if a padding
# takes away in front and adds behind, and it adds paddings by other operations, too.


CONVOLUTIONS = ("stablehlo.convolution", "stablehlo.dynamic_conv")
MOST_PLACES = 2**24


class _Places(NamedTuple):
    """The places along one dimension of the input or of the kernel, with the distance of its elements, and the padding
    in front and behind; None where a value of the operation says that.
    """

    array: Any
    axis: int
    dilation: int
    padding: Sequence[int] | None

    def is_open(self) -> bool:
        return self.padding is None or mlir.type_of(self.array).is_dynamic_dim(self.axis)

    def total(self) -> int:
        """How many there are, if that is known, with the padding or without it."""
        return max(self._dilated(), self._dilated() + sum(self.padding or ()))

    def left(self) -> int:
        """How many of the array are left of what a negative padding in front takes away, if that is known."""
        return self._dilated() + min(0, self.padding[0] if self.padding else 0)

    def _dilated(self) -> int:
        size = mlir.type_of(self.array).get_dim_size(self.axis)
        return (size - 1) * self.dilation + 1 if size else 0


def why_convolution_is_wrong(operation: Any) -> str | None:
    """What of a convolution XLA cannot compute, in words; None if nothing is known."""
    said = {
        "strides": _array(operation, "window_strides"),
        "dilations": _array(operation, "lhs_dilation") + _array(operation, "rhs_dilation"),
        "padding": [number for pair in _pairs(operation) or () for number in pair],
    }
    for what, numbers in said.items():
        if any(abs(number) >= MOST_PLACES for number in numbers):
            return f"{what} of {max(numbers, key=abs):,}"
    known = [places for places in _places(operation) if not places.is_open()]
    if taken := [tuple(places.padding or ()) for places in known if places.left() < 0]:
        return f"padding of {taken[0]}"
    counts = [places.total() for places in known]
    return f"{max(counts):,} places in a dimension" if counts and max(counts) >= MOST_PLACES else None


def _take_away_first(operation: Any) -> None:
    """Takes away what a negative padding in front does, by an operation of its own, which XLA does not add."""
    pairs = _pairs(operation) or []
    if all(low >= 0 for low, _ in pairs):
        return
    ir, hlo, array = _jax.ir, _jax.hlo, operation.operands[0]
    type_ = mlir.type_of(array)
    sizes, front, between = list(type_.shape), [0] * type_.rank, [0] * type_.rank
    dilations = _dilations(operation, "lhs_dilation", len(pairs))
    axes = hlo.ConvDimensionNumbers(operation.attributes["dimension_numbers"]).input_spatial_dimensions
    for number, axis in enumerate(axes):
        if pairs[number][0] < 0:
            front[axis], between[axis] = pairs[number][0], dilations[number] - 1
            if not type_.is_dynamic_dim(axis):
                sizes[axis] = (sizes[axis] - 1) * dilations[number] + 1 + front[axis]
            pairs[number], dilations[number] = [0, pairs[number][1]], 1
    if any(not type_.is_dynamic_dim(axis) and sizes[axis] < 0 for axis in axes):
        return  # more than there is is taken away, which `why_wrong` says
    with operation.location, ir.InsertionPoint(operation):
        scalar = ir.RankedTensorType.get([], type_.element_type)
        none = hlo.convert(scalar, _jax.ir_constant(np.bool_(False)))
        taken = ir.RankedTensorType.get(sizes, type_.element_type)
        operation.operands[0] = hlo.pad(array, none, front, [0] * type_.rank, between, results=[taken])
    operation.attributes["padding"] = ir.DenseElementsAttr.get(np.array(pairs, np.int64))
    operation.attributes["lhs_dilation"] = ir.DenseI64ArrayAttr.get(dilations)


def _assert_open_sizes(operation: Any) -> None:
    """Adds an assertion that a convolution is not too large, where its sizes are open."""
    still_open = [(number, places) for number, places in enumerate(_places(operation)) if places.is_open()]
    if not still_open:
        return
    hlo = _jax.hlo
    with operation.location, _jax.ir.InsertionPoint(operation):
        holds: list[Any] = []
        for number, places in still_open:
            size = hlo.get_dimension_size(places.array, places.axis)
            count = hlo.multiply(_wide(size), _wide_constant(places.dilation))  # not less than there are
            holds.append(_is_less(count, _wide_constant(MOST_PLACES)))
            if places.padding is not None and places.padding[0] < 0:
                taken = _wide_constant(-places.padding[0] + places.dilation - 2)
                holds.append(_is_less(taken, count))
            for padding in _padding(operation, number, places):
                least = -MOST_PLACES if places.padding is not None else -1  # JAX leaves no other padding open
                holds += [_is_less(_wide_constant(least), padding), _is_less(padding, _wide_constant(MOST_PLACES))]
                count = hlo.add(count, padding)
            holds.append(_is_less(count, _wide_constant(MOST_PLACES)))
        mlir.assert_all(holds, "A convolution has 2^24 places or more in a dimension, or takes away more than it has")


def _places(operation: Any) -> Iterator[_Places]:
    """Those of the input in each dimension, then those of the kernel."""
    dimensions = _jax.hlo.ConvDimensionNumbers(operation.attributes["dimension_numbers"])
    array, kernel, *_ = operation.operands
    axes = dimensions.input_spatial_dimensions
    paddings: list[Any] = _pairs(operation) or [None] * len(axes)
    for axis, dilation, padding in zip(axes, _dilations(operation, "lhs_dilation", len(axes)), paddings, strict=True):
        yield _Places(array, axis, dilation, padding)
    axes = dimensions.kernel_spatial_dimensions
    for axis, dilation in zip(axes, _dilations(operation, "rhs_dilation", len(axes)), strict=True):
        yield _Places(kernel, axis, dilation, (0, 0))


def _padding(operation: Any, number: int, places: _Places) -> list[Any]:
    hlo = _jax.hlo
    if places.padding is not None:
        return [_wide_constant(size) for size in places.padding]
    scalar = _jax.ir.RankedTensorType.get([], mlir.type_of(operation.operands[2]).element_type)
    pair = [hlo.slice(operation.operands[2], [number, side], [number + 1, side + 1], [1, 1]) for side in range(2)]
    return [_wide(hlo.reshape(scalar, size)) for size in pair]


def _pairs(operation: Any) -> list[list[int]] | None:
    """The padding of each dimension; None where a value says it."""
    if operation.name == "stablehlo.dynamic_conv":
        return None
    attributes = operation.attributes
    if "padding" not in attributes:
        dimensions = _jax.hlo.ConvDimensionNumbers(attributes["dimension_numbers"])
        return [[0, 0]] * len(dimensions.input_spatial_dimensions)
    found: list[list[int]] = np.array(_jax.ir.DenseIntElementsAttr(attributes["padding"])).tolist()
    return found


def _dilations(operation: Any, name: str, count: int) -> list[int]:
    return _array(operation, name) or [1] * count


def _array(operation: Any, name: str) -> list[int]:
    attributes = operation.attributes
    return list(_jax.ir.DenseI64ArrayAttr(attributes[name])) if name in attributes else []


def _wide(value: Any) -> Any:
    return _jax.hlo.convert(_jax.ir.RankedTensorType.get([], _jax.ir.IntegerType.get_signless(64)), value)


def _wide_constant(number: int) -> Any:
    ir = _jax.ir
    wide = ir.IntegerType.get_signless(64)
    scalar = ir.RankedTensorType.get([], wide)
    return _jax.hlo.constant(ir.DenseElementsAttr.get_splat(scalar, ir.IntegerAttr.get(wide, number)))


def _is_less(left: Any, right: Any) -> Any:
    hlo = _jax.hlo
    return hlo.compare(
        left, right, hlo.ComparisonDirectionAttr.get("LT"), compare_type=hlo.ComparisonTypeAttr.get("SIGNED")
    )
