"""An operation of a module while it is read: what it says, and a check that all of it was read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from jaxexp import _jax
from jaxexp._errors import cause

from .array_type import DTYPES, Type
from .program import Block
from .refused import RefusedError

T = TypeVar("T")
# Marks an attribute that must be there, and has no default.
_REQUIRED: Any = object()
_KEYWORD = re.compile(r"#(?:stablehlo|chlo)<\w+ (\w+)>")


class Reading(Protocol):
    """What an operation needs of the reader that reads it."""

    constants: dict[int, np.ndarray[Any, Any]]
    foreign: set[str]
    meshes: dict[str, Any]
    is_partitioned: bool
    manual: Any

    def number_of(self, value: Any) -> int: ...
    def type_of(self, value: Any) -> Type: ...
    def type_of_number(self, number: int) -> Type: ...
    def block(self, block: Any) -> Block: ...
    def function(self, name: str, operands: Sequence[int] = ()) -> Function: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """A function of the module: its code, and the same as a jitted function.

    `written_out` is how many operations it has, with those of the functions that it calls, for each call.
    """

    block: Block
    jitted: Callable[..., Any]
    written_out: int

    @property
    def is_small(self) -> bool:
        """Whether to inline it into its caller: then jaxprs are easier to read, and patterns are easier to find."""
        return len(self.block.steps) <= 6


@dataclasses.dataclass(frozen=True, slots=True)
class Many:
    """What an operation with any number of results becomes: `run` returns a sequence of them.

    `captures` are the values that its regions use; `run` takes them behind the operands.
    """

    run: Callable[..., Sequence[Any]]
    captures: tuple[int, ...] = ()


class Operation:
    """An operation. Each method that reads an attribute refuses one that it does not understand.

    Attributes:
        name: its name, such as ``"stablehlo.add"``.
        inputs: the numbers of its operands.
        outputs: the numbers of its results.
        operands: the types of its operands.
        results: the types of its results.
        said: the attributes that were asked for, by name.
        value: its result, to be set if that is a scalar constant.
        looked_around: whether reading used anything outside the operation and its types: operands' values, functions,
            regions.
    """

    def __init__(self, mlir: Any, reading: Reading) -> None:
        self._mlir = mlir
        self._reading = reading
        self._unread = set(mlir.attributes)
        self._regions_left = len(mlir.regions)
        self.name: str = mlir.name
        values = list(mlir.operands)
        self.inputs = tuple(map(reading.number_of, values))
        self.operands = tuple(map(reading.type_of_number, self.inputs))
        values = list(mlir.results)
        self.results = tuple(map(reading.type_of, values))
        self.outputs = tuple(map(reading.number_of, values))
        self.said: dict[str, Any] = {}
        self.value: np.ndarray[Any, Any] | None = None
        self.looked_around = False

    @property
    def place(self) -> str:
        """Where it comes from, in short; empty if the module does not say."""
        return place(self._mlir.location)

    def refuse(self, why: str = "") -> NoReturn:
        raise RefusedError(self.name, why, self.place)

    def check_all_was_read(self) -> None:
        if self._unread:
            self.refuse(f"with the attribute {min(self._unread)}")
        if self._regions_left:
            self.refuse("with an extra region")
        if len(self._mlir.successors):
            self.refuse("with successors")

    # --- attributes

    def has(self, name: str) -> bool:
        return name in self._mlir.attributes

    def attribute(self, name: str) -> Any:
        """An attribute as MLIR has it."""
        self.ignore(name)
        return self._mlir.attributes[name]

    def is_a(self, name: str, kind: Any) -> bool:
        """Whether an attribute, which has to be there, is one of a class of MLIR's bindings."""
        return bool(kind.isinstance(self._mlir.attributes[name]))

    def ignore(self, name: str) -> None:
        """Marks an attribute as understood without reading it."""
        if name not in self._unread:
            self.refuse(f"without the attribute {name}")
        self._unread.discard(name)

    def _read(self, name: str, default: T, read: Callable[[Any], T]) -> T:
        value = self._parsed(name, read) if name in self._unread or default is _REQUIRED else default
        self.said[name] = value
        return value

    def _parsed(self, name: str, read: Callable[[Any], T]) -> T:
        attribute = self.attribute(name)
        try:
            return read(attribute)
        except RefusedError:  # which is a ValueError, too
            raise
        except (TypeError, ValueError, KeyError) as error:
            raise RefusedError(self.name, f"whose {name} is not understood", self.place) from cause(error)

    def integer(self, name: str, default: int = _REQUIRED) -> int:
        return self._read(name, default, lambda a: int(_jax.ir.IntegerAttr(a).value))

    def boolean(self, name: str, default: bool = _REQUIRED) -> bool:
        return self._read(name, default, lambda a: bool(_jax.ir.BoolAttr(a).value))

    def text(self, name: str, default: str = _REQUIRED) -> str:
        return self._read(name, default, lambda a: str(_jax.ir.StringAttr(a).value))

    def symbol(self, name: str) -> str:
        """The name of a function of the module."""
        required: str = _REQUIRED
        return self._read(name, required, lambda a: str(_jax.ir.FlatSymbolRefAttr(a).value))

    def integers(self, name: str, default: tuple[int, ...] = _REQUIRED) -> tuple[int, ...]:
        return self._read(name, default, lambda a: tuple(map(int, _jax.ir.DenseI64ArrayAttr(a))))

    def booleans(self, name: str, default: tuple[bool, ...] = _REQUIRED) -> tuple[bool, ...]:
        return self._read(name, default, lambda a: tuple(map(bool, _jax.ir.DenseBoolArrayAttr(a))))

    def pairs(self, name: str, default: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """A matrix of two columns, such as the padding before and after each dimension."""

        def read(attribute: Any) -> tuple[tuple[int, int], ...]:
            matrix = np.array(_jax.ir.DenseIntElementsAttr(attribute))
            if matrix.shape != (len(default), 2):
                raise ValueError(f"a matrix of shape {matrix.shape}")
            return tuple((int(low), int(high)) for low, high in matrix)

        return self._read(name, default, read)

    def matrix(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Lists of integers, such as groups of devices."""

        def read(attribute: Any) -> tuple[tuple[int, ...], ...]:
            return tuple(tuple(map(int, row)) for row in np.array(_jax.ir.DenseIntElementsAttr(attribute)))

        return self.plain(name, read)

    def keyword(self, name: str, known: Mapping[str, T], default: T = _REQUIRED) -> T:
        """The word of an enumeration, looked up among the known ones."""
        return self._read(name, default, lambda a: known[_word(a)])

    def keywords(self, name: str, known: Mapping[str, T], default: tuple[T, ...]) -> tuple[T, ...]:
        return self._read(name, default, lambda a: tuple(known[_word(entry)] for entry in _jax.ir.ArrayAttr(a)))

    def plain(self, name: str, read: Callable[[Any], T]) -> T:
        """An attribute as the plain data that `read` makes of it."""
        required: T = _REQUIRED
        return self._read(name, required, read)

    def values(self, name: str) -> dict[str, Any]:
        """A dictionary of plain values, as composites and custom calls have it; empty if it is missing."""
        return self._read(name, {}, lambda a: {entry.name: _plain(entry.attr) for entry in _jax.ir.DictAttr(a)})

    def structure(self, name: str, kind: Any) -> Any:
        """An attribute with named parts, in the class that MLIR's bindings have for it. It must not be kept."""
        return self._parsed(name, kind)

    def print(self) -> str:
        """The operation as text."""
        return str(self._mlir)

    # --- devices

    def calls_foreign(self, target: str) -> None:
        """Records that the operation calls a function that exists only on its platform."""
        self._reading.foreign.add(target)

    @property
    def is_partitioned(self) -> bool:
        """Whether the module is for several devices."""
        return self._reading.is_partitioned

    @property
    def manual(self) -> Any:
        """The mesh of the `jax.shard_map` around the operation, whose axes are partly or all manual; None outside."""
        return self._reading.manual

    def mesh(self, name: str) -> Any:
        """The mesh that a sharding refers to by name. Inside a `jax.shard_map`, it has the manual axes of that."""
        if name not in self._reading.meshes:
            self.refuse(f"on {name}, which is not a mesh of the module")
        mesh, around = self._reading.meshes[name], self.manual
        if around is not None and mesh.shape_tuple != around.shape_tuple:
            self.refuse(f"on {name}, which is not the mesh of the jax.shard_map around it")
        return mesh if around is None else around

    # --- regions, functions and values around

    @property
    def _around(self) -> Reading:
        self.looked_around = True
        return self._reading

    def region(self, index: int) -> Block:
        """The code in a region. Regions must be read in order, each once."""
        blocks = list(self._mlir.regions[index].blocks)
        if len(blocks) != 1:
            self.refuse("with a region that is not one block")
        self._regions_left -= 1
        return self._around.block(blocks[0])

    @property
    def region_count(self) -> int:
        return len(self._mlir.regions)

    def only_region(self, index: int) -> Block:
        """The code in the one region that ever runs. The others need not be understood."""
        self._regions_left = 1
        return self.region(index)

    def closed_region(self, index: int) -> Block:
        """The code in a region that uses nothing but constants from around it."""
        closed = self.region(index).closed(self._around.constants)
        if closed is None:
            self.refuse("whose region uses values from around it")
        return closed

    def manual_region(self, index: int, mesh: Any) -> Block:
        """The code in a region that each device runs by itself, along the manual axes of a mesh."""
        around, self._reading.manual = self._reading.manual, mesh
        block = self.closed_region(index)
        self._reading.manual = around
        return block

    def function(self, name: str) -> Function:
        """A function of the module, for a call with the operands."""
        return self._around.function(name, self.inputs)

    def function_named(self, name: str) -> Function:
        """A function of the module, for any operands."""
        return self._around.function(name)

    def is_iota(self, operand: int, dimension: int) -> bool:
        """Whether an operand counts along a dimension."""
        self.looked_around = True
        owner = self._mlir.operands[operand].owner
        if isinstance(owner, _jax.ir.Block) or owner.operation.name != "stablehlo.iota":
            return False
        return bool(owner.operation.attributes["iota_dimension"].value == dimension)

    def constant(self, operand: int) -> np.ndarray[Any, Any] | None:
        """The value of an operand that is a scalar constant."""
        return self._around.constants.get(self.inputs[operand])

    def type_of(self, number: int) -> Type:
        """The type of any value around the operation."""
        return self._around.type_of_number(number)

    @property
    def constants(self) -> Mapping[int, np.ndarray[Any, Any]]:
        """The scalar constants that have been seen, by their numbers."""
        return self._around.constants


# Reads an operation. A plain function takes the operands and returns the one result; a block replaces the operation.
# None stands for an operation whose results are its operands.
Read = Callable[[Operation], Callable[..., Any] | Many | Function | Block | None]


def _word(attribute: Any) -> str:
    found = _KEYWORD.fullmatch(str(attribute))
    if found is None:
        raise ValueError(f"{attribute} is not an enumeration")
    return found[1]


def _plain(attribute: Any) -> Any:
    """A plain value: a scalar of its dtype, a string, or a list of these."""
    ir = _jax.ir
    if isinstance(attribute, ir.BoolAttr):
        return attribute.value
    if isinstance(attribute, (ir.IntegerAttr, ir.FloatAttr)):
        return DTYPES[str(attribute.type)].type(attribute.value)
    if isinstance(attribute, ir.StringAttr):
        return attribute.value
    if isinstance(attribute, ir.DictAttr):
        return {entry.name: _plain(entry.attr) for entry in attribute}
    for kind, dtype in ((ir.DenseI64ArrayAttr, np.int64), (ir.DenseI32ArrayAttr, np.int32)):
        if isinstance(attribute, kind):
            return np.array(list(attribute), dtype)
    raise ValueError(f"{attribute} is not a plain value")


_PARTS_OF_PLACE = re.compile(r'"((?:[^"\\]|\\.)*)"(?::(\d+))?')


def place(location: Any) -> str:
    """Where an operation comes from, in short: the name that JAX gave it, and the first line of source code."""
    name = line = ""
    for text, number in _PARTS_OF_PLACE.findall(str(location)):
        if number and not line:
            line = f"{text}:{number}"
        elif not number and not name:
            name = text
    return ", ".join(filter(None, (name, line)))
