"""Reads the functions of a module into blocks of steps. Functions, and operations that are alike, are read once.

An operation is understood completely or refused: each of its attributes and regions has to be asked for.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from jaxexp import _jax
from jaxexp._errors import cause
from jaxexp._kernel.module.meshes import of_operation
from jaxexp._kernel.module.mlir import origin

from .array_type import DTYPES, ArrayType, is_wide
from .array_type import read as read_type
from .program import ALIAS, Block, Step, in_order, jitted_block, with_axis_indices
from .refused import SHOWN_AS_TEXT, RefusedError

T = TypeVar("T")
# Marks an attribute that must be there, and has no default.
_REQUIRED: Any = object()
_KEYWORD = re.compile(r"#(?:stablehlo|chlo)<\w+ (\w+)>")
_PARTS_OF_PLACE = re.compile(r'"((?:[^"\\]|\\.)*)"(?::(\d+))?')

# Attributes of a module, a function, or its arguments and results that do not change what is computed: names,
# visibility, and requests about memory. Shardings change nothing on one device.
_OF_MODULES = re.compile(r"sym_name|mhlo\.num_(partitions|replicas)|jax\.\w+|jaxexp\.\w+")
_OF_MESHES = re.compile(r"sym_name|sym_visibility|mesh|stablehlo\.mesh")
_OF_ENDS = re.compile("")
_OF_FUNCTIONS = re.compile(r"sym_name|function_type|sym_visibility|arg_attrs|res_attrs")
_OF_VALUES = re.compile(
    r"jax\.(result_info|arg_info|buffer_donor|global_constant)|tf\.aliasing_output|mhlo\.(layout_mode|memory_kind)"
)

# Functions with at most this many steps are inlined into their callers, to make jaxprs easier to read, and patterns
# easier to find.
_SMALL = 6

# How many operations calls may add to those that are in the module, with each call written out. JAX and XLA follow
# each call, so functions that call each other twice take 2**n steps to print or to lower.
_MOST_WRITTEN_OUT = 2**20

# For how many different arguments that are the platform's index a function is read; any other call asks at run time.
_MOST_READINGS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class ModuleFunction:
    """A function of the module: its code, and the same as a jitted function.

    `written_out` is how many operations it has, with those of the functions that it calls, for each call.
    """

    block: Block
    jitted: Callable[..., Any]
    written_out: int


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
        mlir: the operation as MLIR has it.
        reader: what reads the module.
    """

    def __init__(self, mlir: Any, reader: ModuleReader) -> None:
        self.mlir = mlir
        self.reader = reader
        self._unread = set(mlir.attributes)
        self._regions_left = len(mlir.regions)
        self.name: str = mlir.name
        self.inputs = tuple(map(reader.number_of, mlir.operands))
        self.operands = tuple(reader.types[number] for number in self.inputs)
        self.results = tuple(map(reader.type_of, mlir.results))
        self.outputs = tuple(map(reader.number_of, mlir.results))
        self.said: dict[str, Any] = {}
        self.value: np.ndarray[Any, Any] | None = None
        self.looked_around = False

    def refuse(self, why: str = "", error: BaseException | None = None) -> NoReturn:
        raise RefusedError(self.name, why, place(self.mlir.location)) from error

    def check_kinds(self, kinds: str) -> None:
        """Refuses operands of other kinds, as `ArrayType.kind` names them."""
        for type_ in self.operands:
            if type_.kind not in kinds:
                self.refuse(f"of {type_.dtype}")

    def check_all_was_read(self) -> None:
        if self._unread:
            self.refuse(f"with the attribute {min(self._unread)}")
        if self._regions_left:
            self.refuse("with an extra region")
        if len(self.mlir.successors):
            self.refuse("with successors")

    # --- attributes

    def has(self, name: str) -> bool:
        return name in self.mlir.attributes

    def attribute(self, name: str) -> Any:
        """An attribute as MLIR has it."""
        if name not in self._unread:
            self.refuse(f"without the attribute {name}")
        self.ignore(name)
        return self.mlir.attributes[name]

    def ignore(self, name: str) -> None:
        """Marks an attribute as understood without reading it, if it is there."""
        self._unread.discard(name)

    def structure(self, name: str, read: Callable[[Any], T]) -> T:
        """An attribute as `read` makes it. Must not be kept if that is a class of MLIR's bindings, with named parts."""
        attribute = self.attribute(name)
        try:
            return read(attribute)
        except RefusedError:  # which is a ValueError, too
            raise
        except (TypeError, ValueError, KeyError) as error:
            self.refuse(f"whose {name} is not understood", cause(error))

    def read(self, name: str, read: Callable[[Any], T], default: T = _REQUIRED) -> T:
        """An attribute as the plain data that `read` makes of it."""
        value = self.structure(name, read) if name in self._unread or default is _REQUIRED else default
        self.said[name] = value
        return value

    def integer(self, name: str, default: int = _REQUIRED) -> int:
        return self.read(name, lambda a: int(_jax.ir.IntegerAttr(a).value), default)

    def boolean(self, name: str, default: bool = _REQUIRED) -> bool:
        return self.read(name, lambda a: bool(_jax.ir.BoolAttr(a).value), default)

    def text(self, name: str) -> str:
        return self.read(name, lambda a: str(_jax.ir.StringAttr(a).value))

    def integers(self, name: str, default: tuple[int, ...] = _REQUIRED) -> tuple[int, ...]:
        return self.read(name, lambda a: tuple(map(int, _jax.ir.DenseI64ArrayAttr(a))), default)

    def booleans(self, name: str, default: tuple[bool, ...]) -> tuple[bool, ...]:
        return self.read(name, lambda a: tuple(map(bool, _jax.ir.DenseBoolArrayAttr(a))), default)

    def matrix(self, name: str, default: tuple[tuple[int, ...], ...] = _REQUIRED) -> tuple[tuple[int, ...], ...]:
        """Lists of integers, such as groups of devices."""
        rows = lambda a: np.array(_jax.ir.DenseIntElementsAttr(a)).tolist()  # noqa: E731
        return self.read(name, lambda a: tuple(map(tuple, rows(a))), default)

    def padding(self, dims: int) -> tuple[tuple[int, int], ...]:
        """The padding before and after each of so many dimensions."""
        found = self.matrix("padding", ((0, 0),) * dims)
        if [len(row) for row in found] != [2] * dims:
            self.refuse("whose padding is not understood")
        return tuple((before, after) for before, after in found)

    def keyword(self, name: str, known: Mapping[str, T], default: T = _REQUIRED) -> T:
        """The word of an enumeration, looked up among the known ones."""
        return self.read(name, lambda a: known[_word(a)], default)

    def keywords(self, name: str, known: Mapping[str, T], default: tuple[T, ...]) -> tuple[T, ...]:
        return self.read(name, lambda a: tuple(known[_word(entry)] for entry in _jax.ir.ArrayAttr(a)), default)

    def values(self, name: str) -> dict[str, Any]:
        """A dictionary of plain values, as composites and custom calls have it; empty if it is missing."""
        return self.read(name, lambda a: {entry.name: _plain(entry.attr) for entry in _jax.ir.DictAttr(a)}, {})

    # --- devices

    def mesh(self, name: str) -> Any:
        """The mesh that a sharding refers to by name. Inside a `jax.shard_map`, it has the manual axes of that."""
        if name not in self.reader.meshes:
            self.refuse(f"on {name}, which is not a mesh of the module")
        mesh, around = self.reader.meshes[name], self.reader.manual
        if around is not None and mesh.shape_tuple != around.shape_tuple:
            self.refuse(f"on {name}, which is not the mesh of the jax.shard_map around it")
        return mesh if around is None else around

    # --- regions, functions and values around

    @property
    def _around(self) -> ModuleReader:
        self.looked_around = True
        return self.reader

    def region(self, index: int) -> Block:
        """The code in a region. Regions must be read in order, each once."""
        blocks = list(self.mlir.regions[index].blocks)
        if len(blocks) != 1:
            self.refuse("with a region that is not one block")
        self._regions_left -= 1
        return self._around.block(blocks[0])

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
        around, self.reader.manual = self.reader.manual, mesh
        block = self.closed_region(index)
        self.reader.manual = around
        return block

    def function(self, attribute: str) -> ModuleFunction:
        """The function of the module that an attribute names, for a call with the operands."""
        name = self.read(attribute, lambda a: str(_jax.ir.FlatSymbolRefAttr(a).value))
        return self._around.function(name, self.inputs)

    def is_iota(self, operand: int, dimension: int) -> bool:
        """Whether an operand counts along a dimension."""
        self.looked_around = True
        owner = origin(self.mlir.operands[operand])
        if owner is None or owner.name != "stablehlo.iota":
            return False
        return bool(owner.attributes["iota_dimension"].value == dimension)

    def constant(self, operand: int) -> np.ndarray[Any, Any] | None:
        """The value of an operand that is a scalar constant."""
        return self._around.constants.get(self.inputs[operand])


# Reads an operation. A plain function takes the operands and returns the one result; a block replaces the operation.
# None stands for an operation whose results are its operands.
Read = Callable[[Operation], Callable[..., Any] | Many | ModuleFunction | Block | None]


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


def place(location: Any) -> str:
    """Where an operation comes from, in short: the name that JAX gave it, and the first line of source code."""
    parts = _PARTS_OF_PLACE.findall(str(location))
    name = next((text for text, number in parts if text and not number), "")
    line = next((f"{text}:{number}" for text, number in parts if number), "")
    return ", ".join(filter(None, (name, line)))


class ModuleReader:
    """Reads the functions of one module.

    Args:
        module: the MLIR module.
        table: how each operation is read.
        platform_index: which of its platforms the module is read for; None if it does not ask.
        partitioned: whether the module is for several devices, so that its shardings matter.
    """

    def __init__(
        self, module: Any, table: Mapping[str, Read], platform_index: int | None = None, *, partitioned: bool = False
    ) -> None:
        self._module = module  # otherwise MLIR frees it
        self._table = table
        self._platform_index = platform_index
        self.is_partitioned = partitioned
        self.meshes: dict[str, Any] = {}
        self.manual: Any = None
        self._mlir_functions: dict[str, Any] = {}
        self._functions: dict[str, dict[Any, ModuleFunction | None]] = {}
        self._numbers: dict[Any, int] = {}
        self.types: list[ArrayType] = []  # of values, by their numbers
        self._known_types: dict[Any, ArrayType] = {}
        # What operations were read as, and their results if these are scalar constants. It holds for all operations
        # with the same name, attributes and types.
        self._readings: dict[Any, tuple[Step, np.ndarray[Any, Any] | None]] = {}
        self._turned: dict[Callable[..., Any], Callable[..., Any]] = {}
        # Values that are known to be the index of the platform.
        self._platform_values: dict[int, np.ndarray[Any, Any]] = {}
        self.constants: dict[int, np.ndarray[Any, Any]] = {}
        self.counts: dict[str, int] = {}
        self._written_out = 0  # operations so far, those of a function once for each call
        self.foreign: set[str] = set()
        self.is_wide = False
        _check_attributes(module.operation, _OF_MODULES)
        for operation in module.body.operations:
            name = operation.operation.name
            if name == "func.func":
                self._mlir_functions[operation.attributes["sym_name"].value] = operation
            elif name == "sdy.mesh":
                _check_attributes(operation.operation, _OF_MESHES)
                if (mesh := of_operation(operation)) is not None:
                    self.meshes[operation.attributes["sym_name"].value] = mesh
            else:
                raise RefusedError(name, "at the top of the module")

    def main(self) -> Block:
        known = () if self._platform_index is None else ((0, self._platform_index),)
        block = self._function("main", known).block
        size = self._written_out
        if size - sum(self.counts.values()) > _MOST_WRITTEN_OUT:
            shown = f"{size:,}" if size < 2**40 else f"more than 2**{size.bit_length() - 1}"
            raise RefusedError(
                "func.call",
                f"with each call written out, the module has {shown} operations; {SHOWN_AS_TEXT}",
            )
        return block

    # --- values

    def number_of(self, value: Any) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = self._fresh(self.type_of(value))
        return number

    def _fresh(self, type_: ArrayType) -> int:
        self.types.append(type_)
        return len(self.types) - 1

    def type_of(self, value: Any) -> ArrayType:
        mlir = value.type
        known = self._known_types.get(mlir)
        if known is None:
            known = self._known_types[mlir] = read_type(mlir)
            self.is_wide |= is_wide(known)
        return known

    # --- functions

    def function(self, name: str, operands: Sequence[int] = ()) -> ModuleFunction:
        """A function, for a call with these operands, some of which may be the platform's index."""
        indices = enumerate(map(self._platform_values.get, operands))
        return self._function(name, tuple((place, int(index)) for place, index in indices if index is not None))

    def _function(self, name: str, known: tuple[tuple[int, int], ...]) -> ModuleFunction:
        """A function; `known` has the parameters that are the platform's index."""
        readings = self._functions.setdefault(name, {})
        if (known, self.manual) not in readings and len(readings) >= _MOST_READINGS:
            known = ()
        how = known, self.manual
        if how in readings:
            found = readings[how]
            if found is None:
                raise RefusedError("func.call", f"of @{name} by itself")
            self._written_out += found.written_out
            return found
        if name not in self._mlir_functions:
            raise RefusedError("func.call", f"of @{name}, which the module does not have")
        readings[how] = None  # until it is read
        found = readings[how] = self._read_function(name, known)
        return found

    def _read_function(self, name: str, known: tuple[tuple[int, int], ...]) -> ModuleFunction:
        operation = self._mlir_functions[name]
        _check_attributes(operation.operation, _OF_FUNCTIONS)
        # The main function's shardings are also in the signature.
        shardings = ["sdy.sharding"] if name == "main" or not self.is_partitioned else []
        shardings += [] if self.is_partitioned else ["mhlo.sharding"]
        ends = [operation.attributes[key] for key in ("arg_attrs", "res_attrs") if key in operation.attributes]
        for entry in itertools.chain(*ends):
            for one in sorted(attribute.name for attribute in _jax.ir.DictAttr(entry)):
                if not (_OF_VALUES.fullmatch(one) or one in shardings):
                    raise RefusedError("func.func", f"@{name} with the attribute {one} of an argument or a result")
        blocks = list(operation.regions[0].blocks)
        if len(blocks) != 1:
            raise RefusedError("func.func", f"@{name} of {len(blocks)} blocks")
        (mlir,) = blocks
        before, around = self._written_out, self._numbers
        self._numbers = {}  # another reading of the same function gives its values other numbers
        for position, index in known:
            parameter = self.number_of(mlir.arguments[position])
            value = np.asarray(index, self.types[parameter].dtype)
            self.constants[parameter] = self._platform_values[parameter] = value
        block = self.block(mlir)
        self._numbers = around
        if block.captures:
            raise RefusedError("func.func", f"@{name}, which uses values of another function")
        return ModuleFunction(block, jitted_block(block, name), self._written_out - before)

    # --- blocks

    def block(self, block: Any) -> Block:
        parameters = [self.number_of(argument) for argument in block.arguments]
        operations = list(block.operations)
        steps: list[Step] = []
        for operation in operations[:-1]:
            self._read(operation.operation, steps)
        terminator = operations[-1].operation
        if terminator.name not in ("func.return", "sdy.return", "stablehlo.return"):
            raise RefusedError(terminator.name, "at the end of a block")
        _check_attributes(terminator, _OF_ENDS)
        results = [self.number_of(value) for value in terminator.operands]
        steps = with_axis_indices(steps, results, self.constants, self.manual)
        return Block.of(parameters, in_order(steps, results, self.types, self._turned), results)

    def _read(self, mlir: Any, steps: list[Step]) -> None:
        name = mlir.name
        self.counts[name] = self.counts.get(name, 0) + 1
        self._written_out += 1
        inputs, outputs = tuple(map(self.number_of, mlir.operands)), tuple(map(self.number_of, mlir.results))
        key = self._key(mlir, name, inputs, outputs)
        reading = None if key is None else self._readings.get(key)
        if reading is not None:
            step, value = reading
            steps.append(Step(name, step.run, inputs, outputs, step.types, step.attributes))
        else:
            operation = Operation(mlir, self)
            made = self._table[name](operation) if name in self._table else operation.refuse()
            operation.check_all_was_read()
            if made is None:
                self._numbers.update(zip(mlir.results, inputs, strict=True))
                return
            if isinstance(made, ModuleFunction):
                made = made.block if len(made.block.steps) <= _SMALL else Many(made.jitted)
            value = operation.value
            if isinstance(made, Block):
                self._insert(made, inputs[: len(made.parameters)], outputs, steps)
            else:
                many = made if isinstance(made, Many) else Many(lambda *xs, one=made: (one(*xs),))
                step = Step(name, many.run, inputs + many.captures, outputs, operation.results, operation.said)
                steps.append(step)
                if key is not None and not operation.looked_around:
                    self._readings[key] = step, value
        if value is not None:
            self.constants[outputs[0]] = value
        self._follow_platform(name, inputs, outputs)

    def _key(self, mlir: Any, name: str, inputs: Sequence[int], outputs: Sequence[int]) -> Any:
        """Everything that an operation says; None if it has regions, or attributes that cannot be compared."""
        if len(mlir.regions) or len(mlir.successors):
            return None
        attributes = mlir.attributes
        try:
            said = tuple(attributes.items()) if len(attributes) else ()
        except TypeError:  # MLIR's bindings have no class for complex constants
            return None
        types = self.types  # each is made once
        return name, self.manual, said, tuple([id(types[i]) for i in inputs]), tuple([id(types[i]) for i in outputs])

    def _follow_platform(self, name: str, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Records a result that is still the index of the platform: converted, clamped, or chosen by it."""
        if self._platform_values.keys().isdisjoint(inputs):
            return
        known = [self.constants.get(number) for number in inputs]
        if name == "stablehlo.convert":
            (value,) = known
        elif name == "stablehlo.clamp" and all(value is not None for value in known):
            least, number, most = (int(value) for value in known if value is not None)
            value = np.asarray(min(max(least, number), most))
        elif name == "stablehlo.case" and len(outputs) == 1:
            value = self.constants.get(outputs[0])
        else:
            return
        if value is not None and value.ndim == 0 and value.dtype.kind == "i":
            number = outputs[0]
            self.constants[number] = self._platform_values[number] = np.asarray(value, self.types[number].dtype)

    def _insert(self, block: Block, arguments: Sequence[int], results: Sequence[int], steps: list[Step]) -> None:
        """Appends a copy of a block to the steps of another one."""
        renamed = dict(zip(block.parameters, arguments, strict=True))
        renamed.update(zip(block.captures, block.captures, strict=True))
        # The results of the block get its caller's numbers for them.
        made = {number for step in block.steps for number in step.outputs}
        aliases = []
        for inner, outer in zip(block.results, results, strict=True):
            if inner in made and inner not in renamed:
                renamed[inner] = outer
            else:
                aliases.append((inner, outer))
                if (source := renamed[inner]) in self.constants:
                    self.constants[outer] = self.constants[source]
        for step in block.steps:
            for number, type_ in zip(step.outputs, step.types, strict=True):
                new = renamed.setdefault(number, -1)
                if new < 0:
                    new = renamed[number] = self._fresh(type_)
                if number in self.constants:
                    self.constants[new] = self.constants[number]
            inputs = tuple(renamed[number] for number in step.inputs)
            outputs = tuple(renamed[number] for number in step.outputs)
            steps.append(Step(step.name, step.run, inputs, outputs, step.types, step.attributes))
        if aliases:
            inputs = tuple(renamed[inner] for inner, _ in aliases)
            outputs = tuple(outer for _, outer in aliases)
            types = tuple(self.types[number] for number in outputs)
            steps.append(Step(ALIAS, lambda *values: values, inputs, outputs, types, {}))


def _check_attributes(operation: Any, known: re.Pattern[str]) -> None:
    for name in sorted(map(str, operation.attributes)):
        if not known.fullmatch(name):
            raise RefusedError(operation.name, f"with the attribute {name}")
