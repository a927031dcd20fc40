"""Modules with one operation changed, as a faulty compiler or a careless hand would change it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
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
ACCUMULATE = ("dot_general", "convolution", "reduce")
_ROUNDED, _DELETED = "accumulates in bfloat16", "left out"


Place = tuple[str, int]  # a function, and the number of an operation there, as `jaxexp.CheckReport.Culprit.at` has it


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A changed module.

    Attributes:
        operation: which operation was changed.
        how: into what.
        at: where that is in the changed module. If an operation is left out, it is what took its result, or follows
            it: to take another operand instead makes the same module.
        around: where the operations around it are.
        calls: the function that the operation calls, if it is a call.
        is_in_place: whether the module has the same operations otherwise, in the same places.
        module: its bytes.
    """

    operation: str
    how: str
    at: tuple[Place, ...]
    around: tuple[Place, ...]
    calls: str
    is_in_place: bool
    module: bytes

    def names(self, at: Place) -> str:
        """What a place is of this change: ``"exact"``, ``"around"`` or in what is called, or ``"wrong"``."""
        return "exact" if at in self.at else "around" if at in self.around or at[0] == self.calls else "wrong"


def mutations(module: bytes, one_in: int = 1) -> Iterator[Mutation]:
    """The changes of the operations that can be changed: all of them, or one in so many, in some order."""
    with _parsed(module) as parsed:
        found = [(number, kind) for number, (one, *_) in enumerate(_placed(parsed)) for kind, _ in _changes(one)]
    order = np.random.default_rng(len(found)).permutation(len(found))
    for number, kind in [found[i] for i in order[: -(-len(found) // one_in)]]:
        with _parsed(module) as parsed:
            placed = _placed(parsed)
            changed = placed[number][0]
            name, at = changed.name, []
            if kind == _DELETED:
                at = [*(use.owner.operation for use in changed.results[0].uses), placed[number + 1][0]]
            change = dict(_changes(changed))[kind](changed)
            at = at or [change if change is not None else changed]
            without = _erase_unused(parsed)
            try:
                made = mlir.serialize(parsed)
            except jax.errors.JaxRuntimeError:  # of other types, such as the negative of an absolute complex number
                continue
            found_at = [(where, around) for one, where, around in _placed(parsed) if one in at]
            callee = one.attributes["callee"].value if (one := at[0]).name == "func.call" else ""
        is_in_place = not without and kind not in (_ROUNDED, _DELETED)
        places = tuple(where for where, _ in found_at)
        around = tuple(place for _, around in found_at for place in around)
        yield Mutation(name, kind, places, around, callee, is_in_place, made)


@contextlib.contextmanager
def _parsed(module: bytes) -> Iterator[Any]:
    with _jax.make_ir_context() as context, _jax.ir.Location.unknown(context):
        yield mlir.parse(module, context)


def _placed(module: Any) -> list[tuple[Any, Place, tuple[Place, ...]]]:
    """The operations of a module, each with its place, and those of the operations around it. What ends a function is
    behind its operations, and what ends a block is in the place of the operation around it.
    """
    found: list[tuple[Any, Place, tuple[Place, ...]]] = []

    def add(block: Any, function: str, number: int, around: tuple[Place, ...]) -> int:
        for one in block.operations:
            operation, at = one.operation, (function, number)
            is_end = operation.name.endswith(".return")
            found.append((operation, around[0] if is_end and around else at, around))
            number += not is_end
            for region in operation.regions:
                for inner in region.blocks:
                    number = add(inner, function, number, (at, *around))
        return number

    for function in module.body.operations:
        if function.operation.name == "func.func":
            add(function.regions[0].blocks[0], _jax.ir.StringAttr(function.attributes["sym_name"]).value, 0, ())
    return found


def _erase_unused(module: Any) -> bool:
    """Erases operations that nobody uses, as jaxlib does when it writes a module; whether there were some."""
    was_erased = False
    for operation, *_ in reversed(_placed(module)):
        is_used = any(mlir.is_used(value) for value in operation.results)
        if len(operation.results) and not is_used and operation.name not in ("func.call", "stablehlo.custom_call"):
            operation.erase()
            was_erased = True
    return was_erased


def _may_count(operation: Any) -> bool:
    """Whether it may count the trips of a loop, which may never end if it is changed."""
    is_number = operation.name in ("stablehlo.add", "stablehlo.subtract", "stablehlo.constant")
    return is_number and _counts_in(operation, operation.results[0])


def _counts_in(operation: Any, value: Any) -> bool:
    parent = operation.parent
    is_top = parent.name == "func.func" and str(parent.attributes["sym_name"]) == '"main"'
    return not is_top and _is_counter(value)


def _changes(operation: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """How it may be changed: each change returns the operation that is named for it, if that is a new one."""
    name = operation.name.removeprefix("stablehlo.")
    attributes = operation.attributes
    if operation.name.endswith(".return"):
        if (order := _another_order(operation)) is not None:
            yield "another order", lambda op: _operands(op, order)
        return
    if _may_count(operation):
        return
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
    if len(operation.results) == 1 and operation.results[0].type in types:
        yield _DELETED, lambda op: mlir.replace(op, [op.operands[types.index(op.results[0].type)]])
    for i, other in enumerate(_others(operation)):
        if other is not None:
            yield f"another operand {i}", lambda op, i=i: op.operands.__setitem__(i, _others(op)[i])
            break
    if name in ACCUMULATE and str(_element(operation.results[0])) == "f32" and len(operation.results) == 1:
        yield _ROUNDED, _rounded


def _another_order(operation: Any) -> list[int] | None:
    """Two operands exchanged that are of one type, but other values."""
    values = list(operation.operands)
    for (i, one), (j, other) in itertools.combinations(enumerate(values), 2):
        if one.type == other.type and one != other and not _is_counter(one):
            return [*range(i), j, *range(i + 1, j), i, *range(j + 1, len(values))]
    return None


def _is_counter(value: Any) -> bool:
    type_ = _jax.ir.RankedTensorType(value.type)
    return not type_.rank and str(type_.element_type) in ("i32", "i64", "ui32")


def _others(operation: Any) -> list[Any]:
    """For each operand, the last value of the same type in front of the operation that is another one."""
    block = operation.block
    known = list(block.arguments)
    for one in block.operations:
        if one.operation == operation:
            break
        known += one.results
    return [
        None
        if _counts_in(operation, value)
        else next((one for one in reversed(known) if one.type == value.type and one != value), None)
        for value in operation.operands
    ]


def _element(value: Any) -> Any:
    return _jax.ir.RankedTensorType(value.type).element_type


def _renamed(operation: Any, name: str) -> Any:
    ir, types = _jax.ir, [result.type for result in operation.results]
    with ir.InsertionPoint(operation), operation.location:
        new = ir.Operation.create(f"stablehlo.{name}", results=types, operands=list(operation.operands))
    mlir.replace(operation, new.results)
    return new.operation


def _operands(operation: Any, order: list[int]) -> None:
    for i, value in enumerate([operation.operands[i] for i in order]):
        operation.operands[i] = value


def _other_constant(operation: Any) -> None:
    text = str(operation.attributes["value"])
    changed = re.sub(r"dense<(.*)> ?: ", lambda match: f"dense<{_changed_number(match[1])}> : ", text, count=1)
    operation.attributes["value"] = _jax.ir.Attribute.parse(changed)


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
        for i, size in enumerate(operand):
            step = 1 if limits[i] < size else -1 if starts[i] > 0 else 0
            if step:
                starts[i] += step
                limits[i] += step
                return setting(start_indices=starts, limit_indices=limits)
    return None


def _rounded(operation: Any) -> Any:
    """Rounds the result to bfloat16, as if it had been accumulated so."""
    ir = _jax.ir
    type_ = ir.RankedTensorType(operation.results[0].type)
    uses = [(use.owner, use.operand_number) for use in operation.results[0].uses]
    everything = [other.operation for other in operation.operation.block.operations]
    with ir.InsertionPoint(everything[everything.index(operation.operation) + 1]), operation.location:
        narrow = ir.RankedTensorType.get(list(type_.shape), ir.BF16Type.get())
        down = _jax.hlo.convert(narrow, operation.results[0])
        up = _jax.hlo.convert(type_, down)
    for owner, number in uses:
        owner.operands[number] = up
    return down.owner


def different(before: Any, after: Any) -> bool:
    """Whether a result differs by more than rounding."""
    return any(_differs(np.asarray(a), np.asarray(b)) for a, b in zip(before, after, strict=True))


def _differs(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind in "biu" and (a != b).any():
        return True
    x, y, finite = a.astype(np.complex128), b.astype(np.complex128), np.isfinite(a.astype(np.complex128))
    scale = max(float(np.abs(x[finite]).max(initial=0)), 1e-30)
    return bool((finite != np.isfinite(y)).any() or np.abs(x - y)[finite].max(initial=0) > 1e-3 * scale)
