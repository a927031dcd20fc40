"""Calls, branches and loops. One that counts becomes `lax.scan` again, with the rows that each trip takes and makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from .program import ALIAS, Block, Step, live
from .reader import Many, Operation, Read


def _captures(*blocks: Block) -> tuple[int, ...]:
    """The values that blocks capture together."""
    return tuple(dict.fromkeys(number for block in blocks for number in block.captures))


def _while(operation: Operation) -> Many:
    condition, body = operation.region(0), operation.region(1)
    pattern = _LoopPattern(operation, condition, body)
    if (counter := pattern.counter()) is not None:
        return _scan(operation, pattern, counter)
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
    "func.call": lambda operation: operation.function(operation.symbol("callee")),
    "stablehlo.case": _case,
    "stablehlo.if": _if,
    "stablehlo.optimization_barrier": lambda _: Many(lambda *values: tuple(lax.optimization_barrier(values))),
    "stablehlo.while": _while,
}


# --- loops that count


_FRONT, _BACK = "front", "back"


@dataclasses.dataclass(frozen=True, slots=True)
class _Counter:
    """The parameter that counts, from `start` to before `stop`, in steps of one."""

    parameter: int
    start: int
    stop: int

    @property
    def trips(self) -> int:
        return max(self.stop - self.start, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class _ScannedRow:
    """A row of an array that each trip takes, or makes.

    Attributes:
        array: the parameter that is the array.
        number: the value that is the row.
        has_axis: whether that value has the row's axis, of length 1, in front.
        side: the side from which the trips go through the rows.
        replaced: the steps that the row replaces.
    """

    array: int
    number: int
    has_axis: bool
    side: str
    replaced: frozenset[Step]


class _LoopPattern:
    """Finds patterns in the steps of a loop."""

    def __init__(self, operation: Operation, condition: Block, body: Block) -> None:
        self.condition, self.body = condition, body
        self.type_of, self.constants = operation.reader.type_of_number, operation.reader.constants
        self.start = dict(zip(body.parameters, operation.inputs, strict=True))
        self.types = dict(zip(body.parameters, operation.results, strict=True))
        self.result_of = dict(zip(body.parameters, body.results, strict=True))
        self.maker = {number: step for step in (*condition.steps, *body.steps) for number in step.outputs}
        self.unchanged = {p for p, result in self.result_of.items() if self.source(result) == p}
        self.users: dict[int, list[Step | None]] = {}
        for step in body.steps:
            if step.name != ALIAS:
                for number in step.inputs:
                    self.users.setdefault(self.source(number), []).append(step)
        for number in body.results:
            self.users.setdefault(self.source(number), []).append(None)

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

    def counter(self) -> _Counter | None:
        steps = [step for step in self.condition.steps if step.name not in (ALIAS, "stablehlo.constant")]
        if len(steps) != 1 or steps[0].attributes.get("comparison_direction") != "LT":
            return None
        (compare,) = steps
        if tuple(map(self.source, self.condition.results)) != compare.outputs:
            return None
        left, right = map(self.source, compare.inputs)
        if left not in self.condition.parameters:
            return None
        place = self.condition.parameters.index(left)
        if right in self.condition.parameters:
            right = self.body.parameters[self.condition.parameters.index(right)]
        parameter = self.body.parameters[place]
        start, stop = self.integer(self.start[parameter]), self.integer(right)
        add = self.made_by(self.body.results[place], "stablehlo.add")
        if start is None or stop is None or add is None:
            return None
        by_one = any(self.source(a) == parameter and self.integer(b) == 1 for a, b in (add.inputs, add.inputs[::-1]))
        return _Counter(parameter, start, stop) if by_one else None

    def side(self, index: int, counter: _Counter) -> str | None:
        """The side from which an index goes through all rows; None if it does not."""
        if self.source(index) == counter.parameter:
            return _FRONT
        before = self.made_by(index, "stablehlo.subtract")
        if before is None or self.integer(before.inputs[1]) != 1:
            return None
        rest = self.made_by(before.inputs[0], "stablehlo.subtract")
        if rest is None or self.integer(rest.inputs[0]) != counter.stop:
            return None
        return _BACK if self.source(rest.inputs[1]) == counter.parameter else None

    def is_row(self, array: int, starts: Sequence[int], counter: _Counter) -> str | None:
        """The side from which the indices `starts` go through all rows of a parameter; None if they do not."""
        if array not in self.types or counter.start != 0 or self.types[array].shape[:1] != (counter.trips,):
            return None
        index, *others = starts
        return self.side(index, counter) if all(self.integer(other) == 0 for other in others) else None

    def rows_taken(self, counter: _Counter) -> list[_ScannedRow]:
        rows = []
        for step in self.body.steps:
            if step.name != "stablehlo.dynamic_slice":
                continue
            array, (slice_,) = self.source(step.inputs[0]), step.outputs
            side = self.is_row(array, step.inputs[1:], counter)
            if side is None or array not in self.unchanged or step.types[0].shape != (1, *self.types[array].shape[1:]):
                continue
            user, *others = self.users.get(slice_, [None])
            if (
                user is None
                or others
                or user.name != "stablehlo.reshape"
                or user.types[0].shape != step.types[0].shape[1:]
            ):
                rows.append(_ScannedRow(array, slice_, True, side, frozenset({step})))
            else:
                rows.append(_ScannedRow(array, user.outputs[0], False, side, frozenset({step, user})))
        return rows

    def rows_made(self, counter: _Counter) -> list[_ScannedRow]:
        rows = []
        for array, result in self.result_of.items():
            update = self.made_by(result, "stablehlo.dynamic_update_slice")
            if update is None or self.source(update.inputs[0]) != array:
                continue
            # No other step may use the array while it is filled.
            if self.users[array] != [update] or self.users[update.outputs[0]] != [None]:
                continue
            side, shape = self.is_row(array, update.inputs[2:], counter), self.types[array].shape[1:]
            row = self.source(update.inputs[1])
            made = self.maker.get(row)
            if side is None or made is None or self.type_of(row).shape != (1, *shape):
                continue
            adds_axis = (
                made.name == "stablehlo.broadcast_in_dim"
                and made.attributes["broadcast_dimensions"] == tuple(range(1, len(shape) + 1))
                and self.type_of(made.inputs[0]).shape == shape  # an axis of length 1 may be repeated
            )
            row = made.inputs[0] if adds_axis else row
            rows.append(_ScannedRow(array, row, not adds_axis, side, frozenset({update})))
        return rows


def _scan(operation: Operation, pattern: _LoopPattern, counter: _Counter) -> Many:
    body = pattern.body
    taken, made = pattern.rows_taken(counter), pattern.rows_made(counter)
    replaced = frozenset().union(*(row.replaced for row in (*taken, *made)))
    filled = {row.array for row in made}
    carried = [p for p in body.parameters if p not in pattern.unchanged and p not in filled and p != counter.parameter]
    results = [*(pattern.result_of[p] for p in carried), *(row.number for row in made)]
    steps, needed = live([step for step in body.steps if step not in replaced], results)
    counts = [counter.parameter] if counter.parameter in needed else []
    closed = [p for p in body.parameters if p in pattern.unchanged and p in needed]
    trip = Block.of([*counts, *carried, *(row.number for row in taken), *closed], steps, results)

    place = {p: i for i, p in enumerate(body.parameters)}
    n, dtype = len(body.parameters), pattern.types[counter.parameter].dtype
    sides = {row.side for row in (*taken, *made)}
    reverse = sides == {_BACK}

    def in_order(rows: Any, side: str) -> Any:
        return lax.rev(rows, (0,)) if side == _BACK and not reverse else rows

    def run(*arguments: Any) -> Sequence[Any]:
        start, around = arguments[:n], dict(zip(trip.captures, arguments[n:], strict=True))
        constants = [start[place[p]] for p in closed]

        def step(carry: tuple[Any, ...], rows: list[Any]) -> tuple[tuple[Any, ...], list[Any]]:
            inputs = [lax.expand_dims(x, (0,)) if row.has_axis else x for row, x in zip(taken, rows, strict=True)]
            out = trip((*carry, *inputs, *constants), around)
            counted = [lax.add(count, np.ones((), dtype)) for count in carry[: len(counts)]]
            rows_out = [
                lax.squeeze(x, (0,)) if row.has_axis else x for row, x in zip(made, out[len(carried) :], strict=True)
            ]
            return (*counted, *out[: len(carried)]), rows_out

        first = [np.asarray(counter.start, dtype) for _ in counts]
        rows_in = [in_order(start[place[row.array]], row.side) for row in taken]
        carry = (*first, *(start[place[p]] for p in carried))
        carry, rows_out = lax.scan(step, carry, rows_in, length=counter.trips, reverse=reverse)
        final = {p: start[place[p]] for p in body.parameters}
        final.update(zip(carried, carry[len(counts) :], strict=True))
        final.update((row.array, in_order(rows, row.side)) for row, rows in zip(made, rows_out, strict=True))
        final[counter.parameter] = np.asarray(max(counter.start, counter.stop), dtype)
        return [final[p] for p in body.parameters]

    return Many(run, trip.captures)
