"""Calls, branches and loops. One that counts becomes `lax.scan` again, with the rows that each trip takes and makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from .program import ALIAS, Block, Step, live
from .reader import Many, Operation, Read


def _captures(*blocks: Block) -> tuple[int, ...]:
    """The values that blocks capture together."""
    return tuple(dict.fromkeys(number for block in blocks for number in block.captures))


def _while(operation: Operation) -> Many:
    condition, body = operation.region(0), operation.region(1)
    loop = _Loop(operation, condition, body)
    if loop.counts():
        return _scan(loop)
    captures, n = _captures(condition, body), len(operation.results)

    def run(*arguments: Any) -> Sequence[Any]:
        around = dict(zip(captures, arguments[n:], strict=True))
        return lax.while_loop(
            lambda carry: condition(carry, around)[0], lambda carry: tuple(body(carry, around)), arguments[:n]
        )

    return Many(run, captures)


def _case(operation: Operation) -> Many | Block:
    last = len(operation.mlir.regions) - 1
    known = operation.constant(0)
    if known is not None:
        return operation.only_region(int(known) if 0 <= known <= last else last)

    def inside(index: Any) -> Any:
        """The index for JAX. Outside the range, the operation takes its last branch, and JAX the nearest one."""
        is_inside = lax.bitwise_and(lax.ge(index, np.int32(0)), lax.le(index, np.int32(last)))
        return lax.select(is_inside, index, lax.full_like(index, last))

    return _branches(operation, [operation.region(i) for i in range(last + 1)], inside)


def _if(operation: Operation) -> Many:
    on_true, on_false = operation.region(0), operation.region(1)
    return _branches(operation, [on_false, on_true], lambda which: lax.convert_element_type(which, np.int32))


def _branches(operation: Operation, blocks: Sequence[Block], index: Callable[[Any], Any]) -> Many:
    captures = _captures(*blocks)

    def run(which: Any, *around: Any) -> Sequence[Any]:
        branches = [
            lambda *values, block=block: tuple(block((), dict(zip(captures, values, strict=True)))) for block in blocks
        ]
        return lax.switch(index(which), branches, *around)

    return Many(run, captures)


OPERATIONS: dict[str, Read] = {
    "func.call": lambda operation: operation.function("callee"),
    "stablehlo.case": _case,
    "stablehlo.if": _if,
    "stablehlo.optimization_barrier": lambda _: Many(lambda *values: tuple(lax.optimization_barrier(values))),
    "stablehlo.while": _while,
}


# --- loops that count


class _Row(NamedTuple):
    """A row of an array that each trip takes, or makes.

    Attributes:
        array: the parameter that is the array.
        number: the value that is the row.
        has_axis: whether that value has the row's axis, of length 1, in front.
        is_backward: whether the trips begin with the last row.
        replaced: the steps that the row replaces.
    """

    array: int
    number: int
    has_axis: bool
    is_backward: bool
    replaced: tuple[Step, ...]


class _Loop:
    """Finds patterns in the steps of a loop.

    Attributes:
        counter: the parameter that counts, if the loop `counts`: from `first` to before `stop`, in steps of one.
    """

    def __init__(self, operation: Operation, condition: Block, body: Block) -> None:
        self.condition, self.body = condition, body
        self.type_of, self.constants = operation.reader.types, operation.reader.constants
        self.start = dict(zip(body.parameters, operation.inputs, strict=True))
        self.types = dict(zip(body.parameters, operation.results, strict=True))
        self.result_of = dict(zip(body.parameters, body.results, strict=True))
        self.maker = {number: step for step in (*condition.steps, *body.steps) for number in step.outputs}
        self.unchanged = {p for p, result in self.result_of.items() if self.source(result) == p}
        self.users: dict[int, list[Step | None]] = {}
        uses = [(step, number) for step in body.steps if step.name != ALIAS for number in step.inputs]
        for user, number in (*uses, *((None, number) for number in body.results)):
            self.users.setdefault(self.source(number), []).append(user)
        self.counter = self.first = self.stop = 0

    def source(self, number: int) -> int:
        """A value under its first number."""
        step = self.maker.get(number)
        while step is not None and step.name == ALIAS:
            number = step.inputs[step.outputs.index(number)]
            step = self.maker.get(number)
        return number

    def made_by(self, number: int, name: str) -> Step | None:
        step = self.maker.get(self.source(number))
        return step if step is not None and step.name == name else None

    def integer(self, number: int) -> int | None:
        """The value of an integer constant."""
        number = self.source(number)
        if number in self.unchanged:
            number = self.start[number]
        value = self.constants.get(number)
        return int(value) if value is not None and value.dtype.kind == "i" else None

    def counts(self) -> bool:
        """Looks for the counter."""
        steps = [step for step in self.condition.steps if step.name not in (ALIAS, "stablehlo.constant")]
        if len(steps) != 1 or steps[0].attributes.get("comparison_direction") != "LT":
            return False
        (compare,) = steps
        in_body = dict(zip(self.condition.parameters, self.body.parameters, strict=True))
        left, right = map(self.source, compare.inputs)
        if tuple(map(self.source, self.condition.results)) != compare.outputs or left not in in_body:
            return False
        self.counter = in_body[left]
        first, stop = self.integer(self.start[self.counter]), self.integer(in_body.get(right, right))
        add = self.made_by(self.result_of[self.counter], "stablehlo.add")
        if first is None or stop is None or add is None:
            return False
        self.first, self.stop = first, stop
        return any(self.source(a) == self.counter and self.integer(b) == 1 for a, b in (add.inputs, add.inputs[::-1]))

    @property
    def trips(self) -> int:
        return max(self.stop - self.first, 0)

    def is_backward(self, array: int, starts: Sequence[int]) -> bool | None:
        """Whether the indices `starts` begin with the last row of a parameter; None if they do not go through all."""
        index, *others = starts
        is_row = array in self.types and self.first == 0 and self.types[array].shape[:1] == (self.trips,)
        if not is_row or any(self.integer(other) != 0 for other in others):
            return None
        if self.source(index) == self.counter:
            return False
        before = self.made_by(index, "stablehlo.subtract")  # (stop - counter) - 1
        if before is None or self.integer(before.inputs[1]) != 1:
            return None
        rest = self.made_by(before.inputs[0], "stablehlo.subtract")
        is_rest = rest and self.integer(rest.inputs[0]) == self.stop and self.source(rest.inputs[1]) == self.counter
        return True if is_rest else None

    def rows_taken(self) -> Iterator[_Row]:
        for step in self.body.steps:
            if step.name != "stablehlo.dynamic_slice":
                continue
            array, (slice_,) = self.source(step.inputs[0]), step.outputs
            is_backward, shape = self.is_backward(array, step.inputs[1:]), step.types[0].shape
            if is_backward is None or array not in self.unchanged or shape != (1, *self.types[array].shape[1:]):
                continue
            user, *others = self.users.get(slice_, [None])
            if user and not others and user.name == "stablehlo.reshape" and user.types[0].shape == shape[1:]:
                yield _Row(array, user.outputs[0], False, is_backward, (step, user))
            else:
                yield _Row(array, slice_, True, is_backward, (step,))

    def rows_made(self) -> Iterator[_Row]:
        for array, result in self.result_of.items():
            update = self.made_by(result, "stablehlo.dynamic_update_slice")
            if update is None or self.source(update.inputs[0]) != array:
                continue
            # No other step may use the array while it is filled.
            if self.users[array] != [update] or self.users[update.outputs[0]] != [None]:
                continue
            is_backward, shape = self.is_backward(array, update.inputs[2:]), self.types[array].shape[1:]
            row = self.source(update.inputs[1])
            made = self.maker.get(row)
            if is_backward is None or made is None or self.type_of[row].shape != (1, *shape):
                continue
            adds_axis = (
                made.name == "stablehlo.broadcast_in_dim"
                and made.attributes["broadcast_dimensions"] == tuple(range(1, len(shape) + 1))
                and self.type_of[made.inputs[0]].shape == shape  # an axis of length 1 may be repeated
            )
            yield _Row(array, made.inputs[0] if adds_axis else row, not adds_axis, is_backward, (update,))


def _scan(loop: _Loop) -> Many:
    body, counter = loop.body, loop.counter
    taken, made = list(loop.rows_taken()), list(loop.rows_made())
    replaced = {step for row in (*taken, *made) for step in row.replaced}
    apart = {counter, *loop.unchanged, *(row.array for row in made)}
    carried = [p for p in body.parameters if p not in apart]
    results = [*(loop.result_of[p] for p in carried), *(row.number for row in made)]
    steps, needed = live([step for step in body.steps if step not in replaced], results)
    counts = [counter] if counter in needed else []
    closed = [p for p in body.parameters if p in loop.unchanged and p in needed]
    trip = Block.of([*counts, *carried, *(row.number for row in taken), *closed], steps, results)
    dtype = loop.types[counter].dtype
    reverse = all(row.is_backward for row in (*taken, *made)) and bool(taken or made)

    def in_order(rows: Any, row: _Row) -> Any:
        return lax.rev(rows, (0,)) if row.is_backward and not reverse else rows

    def run(*arguments: Any) -> Sequence[Any]:
        final = dict(zip(body.parameters, arguments, strict=False))  # at first what the loop starts with
        around = dict(zip(trip.captures, arguments[len(final) :], strict=True))
        constants = [final[p] for p in closed]

        def step(carry: tuple[Any, ...], rows: list[Any]) -> tuple[tuple[Any, ...], list[Any]]:
            inputs = [lax.expand_dims(x, (0,)) if row.has_axis else x for row, x in zip(taken, rows, strict=True)]
            out = trip((*carry, *inputs, *constants), around)
            counted = [lax.add(count, np.ones((), dtype)) for count in carry[: len(counts)]]
            rows_out = zip(made, out[len(carried) :], strict=True)
            return (*counted, *out[: len(carried)]), [
                lax.squeeze(x, (0,)) if row.has_axis else x for row, x in rows_out
            ]

        rows_in = [in_order(final[row.array], row) for row in taken]
        carry = (*(np.asarray(loop.first, dtype) for _ in counts), *(final[p] for p in carried))
        carry, rows_out = lax.scan(step, carry, rows_in, length=loop.trips, reverse=reverse)
        final.update(zip(carried, carry[len(counts) :], strict=True))
        final.update((row.array, in_order(rows, row)) for row, rows in zip(made, rows_out, strict=True))
        final[counter] = np.asarray(max(loop.first, loop.stop), dtype)
        return [final[p] for p in body.parameters]

    return Many(run, trip.captures)
