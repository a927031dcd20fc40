"""Modules with one operation changed, as a faulty compiler or a careless hand would change it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._kernel.module import mlir

ANOTHER = {
    "add": "subtract", "subtract": "add", "multiply": "add", "divide": "multiply", "maximum": "minimum",
    "minimum": "maximum", "sine": "cosine", "cosine": "sine", "exponential": "tanh", "tanh": "logistic",
    "logistic": "tanh", "rsqrt": "sqrt", "sqrt": "rsqrt", "log": "exponential", "power": "multiply", "and": "or",
    "or": "xor", "xor": "or", "negate": "abs", "abs": "negate", "floor": "ceil", "round_nearest_even": "floor",
    "shift_left": "shift_right_logical", "shift_right_logical": "shift_left", "log_plus_one": "exponential_minus_one",
}  # fmt: skip
DIRECTIONS = {"LT": "GE", "LE": "LT", "GT": "LE", "GE": "GT", "EQ": "NE", "NE": "EQ"}
EXCHANGED = ("subtract", "divide", "concatenate", "dot_general", "dynamic_update_slice")
ROUNDED = ("dot_general", "convolution", "reduce")  # what accumulates


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A changed module: which operation, what it becomes, how, and its bytes. `around` are the operations around it."""

    operation: str
    becomes: str
    how: str
    around: tuple[str, ...]
    module: bytes


def mutations(module: bytes, one_in: int = 1) -> Iterator[Mutation]:
    """The changes of the operations that can be changed: all of them, or one in so many."""
    count = 0
    number = 0
    while True:
        with _jax.make_ir_context() as context, _jax.ir.Location.unknown(context):
            parsed = mlir.parse(module, context)
            operations = list(mlir.iter_operations(parsed))
            if number >= len(operations):
                return
            kinds = [] if _may_count(operations[number]) else [kind for kind, _ in _changes(operations[number])]
        for kind in kinds:
            count += 1
            if count % one_in:
                continue
            with _jax.make_ir_context() as context, _jax.ir.Location.unknown(context):
                parsed = mlir.parse(module, context)
                operation = list(mlir.iter_operations(parsed))[number]
                name = operation.name
                around = []
                parent = operation.parent
                while parent is not None and parent.name != "builtin.module":
                    around.append(parent.name)
                    parent = parent.operation.parent
                dict(_changes(operation))[kind](operation)
                becomes = f"stablehlo.{kind.partition(' ')[0]}" if kind.endswith(" instead") else name
                try:
                    changed = mlir.serialize(parsed)
                except jax.errors.JaxRuntimeError:  # of other types, such as the negative of an absolute complex number
                    continue
                yield Mutation(name, becomes, kind, tuple(around), changed)
        number += 1


def _may_count(operation: Any) -> bool:
    """Whether it may count the trips of a loop, which may never end if it is changed."""
    if operation.name not in ("stablehlo.add", "stablehlo.subtract", "stablehlo.constant"):
        return False
    type_ = _jax.ir.RankedTensorType(operation.results[0].type)
    parent = operation.parent
    is_top = parent.name == "func.func" and str(parent.attributes["sym_name"]) == '"main"'
    return not is_top and not type_.rank and str(type_.element_type) in ("i32", "i64", "ui32")


def _changes(operation: Any) -> Iterator[tuple[str, Callable[[Any], None]]]:
    name = operation.name.removeprefix("stablehlo.")
    attributes = operation.attributes
    if name in ANOTHER:
        yield f"{ANOTHER[name]} instead", lambda op: _renamed(op, ANOTHER[name])
    if name == "constant" and "dense_resource" not in str(attributes["value"]):
        yield "another constant", _other_constant
    if name == "compare":
        yield "another comparison", _other_direction
    if name == "select":
        yield "the other choice", lambda op: _operands(op, [0, 2, 1])
    types = [operand.type for operand in operation.operands]
    if name in EXCHANGED and len(types) > 1 and types[0] == types[1]:
        yield "operands exchanged", lambda op: _operands(op, [1, 0, *range(2, len(types))])
    if name in ("transpose", "broadcast_in_dim", "iota", "reverse", "slice", "sort", "reduce"):
        change = _other_numbers(operation, name)
        if change is not None:
            yield "other numbers", change
    if name in ROUNDED and str(_element(operation.results[0])) == "f32" and len(operation.results) == 1:
        yield "accumulates in bfloat16", _rounded


def _element(value: Any) -> Any:
    return _jax.ir.RankedTensorType(value.type).element_type


def _renamed(operation: Any, name: str) -> None:
    ir, types = _jax.ir, [result.type for result in operation.results]
    with ir.InsertionPoint(operation), operation.location:
        new = ir.Operation.create(f"stablehlo.{name}", results=types, operands=list(operation.operands))
    mlir.replace(operation, new.results)


def _operands(operation: Any, order: list[int]) -> None:
    for i, value in enumerate([operation.operands[i] for i in order]):
        operation.operands[i] = value


def _other_constant(operation: Any) -> None:
    ir = _jax.ir
    text = str(operation.attributes["value"])
    changed = re.sub(r"dense<(.*)> ?: ", lambda match: f"dense<{_changed_number(match[1])}> : ", text, count=1)
    operation.attributes["value"] = ir.Attribute.parse(changed)


def _changed_number(text: str) -> str:
    def other(match: re.Match[str]) -> str:
        word = match[0]
        if word in ("true", "false"):
            return "false" if word == "true" else "true"
        if word.startswith(("0x", '"')):
            return word
        if re.fullmatch(r"-?\d+", word):
            return str(int(word) + 1 if int(word) < 100 else int(word) - 1)
        return repr(float(word) * 1.25 + 0.125)

    return re.sub(r'"[^"]*"|0x[0-9A-F]+|true|false|-?\d+(\.\d+)?([eE][-+]?\d+)?', other, text, count=1)


def _other_direction(operation: Any) -> None:
    text = str(operation.attributes["comparison_direction"])
    word = re.search(r"[A-Z]{2}", text)[0]
    operation.attributes["comparison_direction"] = _jax.ir.Attribute.parse(text.replace(word, DIRECTIONS[word]))


def _other_numbers(operation: Any, name: str) -> Callable[[Any], None] | None:
    """Another axis, start or direction that leaves the types as they are, if there is one."""
    ir = _jax.ir

    def dims(key: str) -> list[int]:
        return list(ir.DenseI64ArrayAttr(operation.attributes[key]))

    def setting(**changed: list[int] | int) -> Callable[[Any], None]:
        def change(op: Any) -> None:
            for key, value in changed.items():
                number = ir.IntegerType.get_signless(64)
                is_one = isinstance(value, int)
                op.attributes[key] = ir.IntegerAttr.get(number, value) if is_one else ir.DenseI64ArrayAttr.get(value)

        return change

    result = list(ir.RankedTensorType(operation.results[0].type).shape)
    operand = list(ir.RankedTensorType(operation.operands[0].type).shape) if len(operation.operands) else result
    if name == "transpose":
        order = dims("permutation")
        for i in range(len(order) - 1):
            other = [*order[:i], order[i + 1], order[i], *order[i + 2 :]]
            if [operand[d] for d in other] == result and result[i] > 1:
                return setting(permutation=other)
    if name in ("broadcast_in_dim", "reduce", "reverse"):
        key, shape = ("broadcast_dimensions", result) if name == "broadcast_in_dim" else ("dimensions", operand)
        axes = dims(key)
        for i, axis in enumerate(axes):
            for other in range(len(shape)):
                if other not in axes and shape[other] == shape[axis] > 1:
                    return setting(**{key: sorted([*axes[:i], other, *axes[i + 1 :]])})
    if name in ("iota", "sort"):
        key = "iota_dimension" if name == "iota" else "dimension"
        axis = operation.attributes[key].value
        for other in range(len(operand)):
            if other != axis and operand[other] > 1:
                return setting(**{key: other})
    if name == "slice":
        starts, limits = dims("start_indices"), dims("limit_indices")
        for i, (start, limit) in enumerate(zip(starts, limits, strict=True)):
            step = 1 if limit < operand[i] else -1
            if limit < operand[i] or start > 0:
                starts[i] += step
                limits[i] += step
                return setting(start_indices=starts, limit_indices=limits)
    return None


def _rounded(operation: Any) -> None:
    """Rounds the result to bfloat16, as if it had been accumulated so."""
    ir = _jax.ir
    type_ = ir.RankedTensorType(operation.results[0].type)
    uses = [(use.owner, use.operand_number) for use in operation.results[0].uses]
    everything = list(operation.operation.block.operations)
    places = [other.operation for other in everything]
    with ir.InsertionPoint(everything[places.index(operation.operation) + 1]), operation.location:
        narrow = ir.RankedTensorType.get(list(type_.shape), ir.BF16Type.get())
        up = _jax.hlo.convert(type_, _jax.hlo.convert(narrow, operation.results[0]))
    for owner, number in uses:
        owner.operands[number] = up


def different(before: Any, after: Any, tolerance: float = 1e-3) -> bool:
    """Whether a result differs by more than rounding."""
    for a, b in zip(before, after, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype.kind in "biu" and (a != b).any():
            return True
        x, y = a.astype(np.complex128), b.astype(np.complex128)
        if (np.isfinite(x) != np.isfinite(y)).any():
            return True
        scale = max(float(np.abs(x[np.isfinite(x)]).max(initial=0)), 1e-30)
        if float(np.abs(x - y)[np.isfinite(x)].max(initial=0)) > tolerance * scale:
            return True
    return False
