"""What is known while a function is traced: the rows of its table, and which of them values are."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from jaxexp._kernel.artifact.words import dtype_and_shape

# The operation of a row in float64.
EXACT = "in float64"

# Of rows and fingerprints: others get another number, so that they are not compared with these.
_FORM = "1"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A result of an operation.

    Attributes:
        operation: the operation's name, such as ``"stablehlo.add"``.
        where: the loops, branches and calls around it, outermost first.
        place: the scope and the line that the module names for it, perhaps empty.
        dtype: the result's dtype.
        shape: its shape.
        takes: the rows of its operands; arguments of the function have none.
        at: the function that the operation is in, and its number there: in the order of the text, without those that
            end a block.
    """

    operation: str
    where: tuple[str, ...]
    place: str
    dtype: str
    shape: tuple[int, ...]
    takes: tuple[int, ...]
    at: tuple[str, int]

    @property
    def type(self) -> str:
        return dtype_and_shape(self.dtype, self.shape)

    @property
    def identity(self) -> int:
        """32 bits that are equal for rows of the same operation, type and surroundings. Artifacts keep them."""
        parts = (_FORM, self.operation, f"{self.dtype}{list(self.shape)}", *self.where)
        return zlib.crc32("\0".join(parts).encode())

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex"))


class Tables(NamedTuple):
    """What was made of a block: rows, the MLIR values of their tables, and which rows the block returns.

    A row that is taken or returned has its number; a value from outside of the block has -1 minus its index in
    `outside`.
    """

    rows: list[Row]
    outside: list[Any]
    returned: tuple[int, ...]
    floats: Any
    integers: Any


class Parts:
    """The tables of a block: of single rows or several, and the small arrays that share one."""

    def __init__(self) -> None:
        self.parts: list[tuple[Any, Any]] = []
        self.order: list[int] = []  # the numbers of the rows of the parts
        self.small: dict[str, list[Any]] = {}

    def add(self, table: tuple[Any, Any], numbers: Iterable[int]) -> None:
        self.parts.append(table)
        self.order += numbers


class Scope:
    """The rows of a block, and which of them the values of the block are."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.made: dict[Any, int] = {}
        self.outside: dict[Any, int] = {}

    def add(self, value: Any, row: Row) -> None:
        self.made[value] = len(self.rows)
        self.rows.append(row)

    def number(self, value: Any) -> int:
        if value in self.made:
            return self.made[value]
        return -1 - self.outside.setdefault(value, len(self.outside))

    def takes(self, operands: Any) -> tuple[int, ...]:
        return tuple(map(self.number, operands))

    def adopt(self, inner: Tables, where: str, arguments: Sequence[Any], given: Sequence[Any]) -> Callable[[int], int]:
        """Adds the rows of a block inside this one, such as a loop's, whose arguments are given values. Returns what
        makes numbers of the block numbers of this one.
        """
        start = len(self.rows)
        value_of = dict(zip(arguments, given, strict=False))  # the tables of a function that was traced have no values

        def resolve(number: int) -> int:
            if number >= 0:
                return start + number
            value = inner.outside[-1 - number]
            return self.number(value_of.get(value, value))

        for row in inner.rows:
            self.rows.append(dataclasses.replace(row, where=(where, *row.where), takes=tuple(map(resolve, row.takes))))
        return resolve
