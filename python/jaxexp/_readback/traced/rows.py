"""What is known while a function is traced: the rows of its table, and which of them values are."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from jaxexp._kernel.artifact.words import dtype_and_shape

# The operation of a row in float64, and that of what a function returns.
EXACT, RETURN = "in float64", "func.return"

# Of rows and fingerprints: others get another number, so that they are not compared with these.
_FORM = "2"
_ENDS_IN_LINE = re.compile(r":\d+$")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A result of an operation. Or, without a dtype and numbers: where a loop, a call or a `shard_map` takes operands,
    and where a function returns results.

    Attributes:
        operation: the operation's name, such as ``"stablehlo.add"``.
        where: the loops, branches and calls around it, outermost first.
        place: the scope and the line that the module names for it or for what is around it, perhaps empty.
        dtype: the result's dtype.
        shape: its shape.
        takes: the rows of its operands, and of what its branches return; arguments of the function have none.
        at: the function that the operation is in, and its number there: in the order of the text, without those that
            end a block.
        identity: 32 bits that are equal for the same operation, of operands that are made by the same operations. The
            arguments of a function, and of the code of a loop, have numbers. Artifacts keep them.
        before: rows of the trip before that it takes; of a loop, those that its code returns.
        loops: the first rows of the loops around it, outermost first.
    """

    operation: str
    where: tuple[str, ...]
    place: str
    dtype: str
    shape: tuple[int, ...]
    takes: tuple[int, ...]
    at: tuple[str, int]
    identity: int
    before: tuple[int, ...] = ()
    loops: tuple[int, ...] = ()

    @property
    def type(self) -> str:
        return dtype_and_shape(self.dtype, self.shape) if self.dtype else ""

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex"))


def identity(*parts: object) -> int:
    """32 bits that are equal for equal parts, but for few others."""
    return zlib.crc32("\0".join(map(str, (_FORM, *parts))).encode())


def _with_line(place: str, around: str) -> str:
    """A place with the line of what is around it, if it has none of its own."""
    line = around.rpartition(", ")[2]
    if not place or _ENDS_IN_LINE.search(place) or not _ENDS_IN_LINE.search(line):
        return place or around
    return f"{place}, {line}"


class Tables(NamedTuple):
    """What was made of code: rows, the MLIR value of their table, which rows it returns, and their identities.

    A row that is taken or returned has its number; a value from outside of the block has -1 minus its index in
    `outside`, which begins with the block's arguments.
    """

    rows: list[Row]
    outside: list[Any]
    table: Any
    returned: tuple[int, ...]
    identities: tuple[int, ...]


class Scope:
    """The rows of a block, and which of them the values of the block are. Code in it may use values of `around`.

    Attributes:
        rows: the rows.
        made: the numbers of the rows that values are.
        identities: the identities of values.
        outside: what the block takes from outside of it, with numbers.
        parts: tables of single rows or several, and `order` the numbers of the rows in them.
        small: the small arrays that share a table, by their types.
    """

    def __init__(self, arguments: Iterable[Any], around: Scope | None) -> None:
        self.rows: list[Row] = []
        self.made: dict[Any, int] = {}
        self.outside: dict[Any, int] = {argument: index for index, argument in enumerate(arguments)}
        self.identities: dict[Any, int] = {argument: -1 - index for argument, index in self.outside.items()}
        self.parts: list[Any] = []
        self.order: list[int] = []
        self.small: dict[str, list[Any]] = {}
        self._around = around

    def add(self, value: Any, row: Row) -> None:
        self.made[value], self.identities[value] = len(self.rows), row.identity
        self.rows.append(row)

    def add_table(self, table: Any, numbers: Iterable[int]) -> None:
        self.parts.append(table)
        self.order += numbers

    def number(self, value: Any) -> int:
        if value in self.made:
            return self.made[value]
        return -1 - self.outside.setdefault(value, len(self.outside))

    def takes(self, operands: Any) -> tuple[int, ...]:
        return tuple(map(self.number, operands))

    def identity(self, value: Any) -> int:
        """That of the value's row; those of the function's arguments, and of what has no row, are not positive."""
        if value in self.identities or self._around is None:
            return self.identities.get(value, 0)
        return self._around.identity(value)

    def adopt(
        self, inner: Tables, where: str, place: str, arguments: Sequence[Any], given: Sequence[Any]
    ) -> Callable[[int], int]:
        """Adds the rows of a block inside this one, whose arguments are given values. Returns what makes numbers of
        the block numbers of this one. In a loop, an argument is also what the trip before returned.
        """
        start = len(self.rows)
        value_of = dict(zip(arguments, given, strict=False))  # the tables of a function that was traced have no values

        def resolve(number: int) -> int:
            if number >= 0:
                return start + number
            value = inner.outside[-1 - number]
            return self.number(value_of.get(value, value))

        is_loop = where == "while"
        for row in inner.rows:
            takes, before = list(map(resolve, row.takes)), list(map(resolve, row.before))
            if is_loop:
                fed = [inner.returned[-1 - t] for t in row.takes if -len(inner.returned) <= t < 0]
                before += [start + number for number in fed if number >= 0]
            self.rows.append(
                dataclasses.replace(
                    row,
                    where=(where, *row.where),
                    identity=identity(where, row.identity),
                    place=_with_line(row.place, place),
                    takes=tuple(takes),
                    before=tuple(before),
                    loops=(start,) * is_loop + tuple(start + first for first in row.loops),
                )
            )
        return resolve
