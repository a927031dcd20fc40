"""Convolutions for which XLA reads outside of its arrays on a CPU.

Its code for CPUs counts places in 32-bit floats, which have no odd numbers above 2^24, and a distance of 2^32 ends the
process. Before JAX 0.12, it does not know where it is if a padding takes away in front and adds behind, and it adds
paddings by other operations, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxexp import _jax

from . import assertions

NAMES = ("stablehlo.convolution", "stablehlo.dynamic_conv")
LIMIT = 2**24


@dataclasses.dataclass(frozen=True, slots=True)
class _Places:
    """The places along one dimension: of the input with its padding, or of the kernel.

    Attributes:
        array: the input or the kernel.
        axis: the dimension.
        dilation: the distance of its elements.
        padding: what is in front and behind; None where a value of the operation says it.
    """

    array: Any
    axis: int
    dilation: int
    padding: Sequence[int] | None

    def is_open(self) -> bool:
        return self.padding is None or _type_of(self.array).is_dynamic_dim(self.axis)

    def count(self) -> int:
        """How many there are, if that is known, with the padding or without it."""
        return max(self._dilated(), self._dilated() + sum(self.padding or ()))

    def left(self) -> int:
        """How many of the array are left of what a negative padding in front takes away, if that is known."""
        return self._dilated() + min(0, self.padding[0] if self.padding else 0)

    def _dilated(self) -> int:
        size = _type_of(self.array).get_dim_size(self.axis)
        return (size - 1) * self.dilation + 1 if size else 0


def why_wrong(operation: Any) -> str | None:
    """What of a convolution XLA cannot compute, in words; None if nothing is known."""
    for what, numbers in _numbers(operation).items():
        if any(abs(number) >= LIMIT for number in numbers):
            return f"{what} of {max(numbers, key=abs):,}"
    known = [places for places in _places(operation) if not places.is_open()]
    if taken := [tuple(places.padding or ()) for places in known if places.left() < 0]:
        return f"padding of {taken[0]}"
    counts = [places.count() for places in known]
    return f"{max(counts):,} places in a dimension" if counts and max(counts) >= LIMIT else None


def confine(operation: Any) -> None:
    """Changes a convolution, in place, so that XLA reads nothing else than its arrays."""
    _assert_open_sizes(operation)
    _take_away_first(operation)


def _take_away_first(operation: Any) -> None:
    """Takes away what a negative padding in front does, by an operation of its own, which XLA does not add."""
    pairs = _pairs(operation) or []
    if all(low >= 0 for low, _ in pairs):
        return
    ir, hlo, array = _jax.ir, _jax.hlo, operation.operands[0]
    type_ = _type_of(array)
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
            count = hlo.multiply(_wide(size), _constant(places.dilation))  # not less than there are
            holds.append(_is_less(count, _constant(LIMIT)))
            if places.padding is not None and places.padding[0] < 0:
                taken = _constant(-places.padding[0] + places.dilation - 2)
                holds.append(_is_less(taken, count))
            for padding in _padding(operation, number, places):
                least = -LIMIT if places.padding is not None else -1  # JAX leaves no other padding open
                holds += [_is_less(_constant(least), padding), _is_less(padding, _constant(LIMIT))]
                count = hlo.add(count, padding)
            holds.append(_is_less(count, _constant(LIMIT)))
        assertions.insert(holds, "A convolution has 2^24 places or more in a dimension, or takes away more than it has")


def _numbers(operation: Any) -> dict[str, list[int]]:
    return {
        "strides": _array(operation, "window_strides"),
        "dilations": _array(operation, "lhs_dilation") + _array(operation, "rhs_dilation"),
        "padding": [number for pair in _pairs(operation) or () for number in pair],
    }


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
    """What is in front and behind, as values."""
    hlo = _jax.hlo
    if places.padding is not None:
        return [_constant(size) for size in places.padding]
    scalar = _jax.ir.RankedTensorType.get([], _type_of(operation.operands[2]).element_type)
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


def _type_of(value: Any) -> Any:
    return _jax.ir.RankedTensorType(value.type)


def _wide(value: Any) -> Any:
    return _jax.hlo.convert(_jax.ir.RankedTensorType.get([], _jax.ir.IntegerType.get_signless(64)), value)


def _constant(number: int) -> Any:
    ir = _jax.ir
    wide = ir.IntegerType.get_signless(64)
    scalar = ir.RankedTensorType.get([], wide)
    return _jax.hlo.constant(ir.DenseElementsAttr.get_splat(scalar, ir.IntegerAttr.get(wide, number)))


def _is_less(left: Any, right: Any) -> Any:
    hlo = _jax.hlo
    return hlo.compare(
        left, right, hlo.ComparisonDirectionAttr.get("LT"), compare_type=hlo.ComparisonTypeAttr.get("SIGNED")
    )
