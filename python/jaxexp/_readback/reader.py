"""Reads the functions of a module into blocks of steps. Functions, and operations that are alike, are read once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxexp import _jax
from jaxexp._kernel.module.meshes import of_operation

from .array_type import Type, is_wide
from .array_type import read as read_type
from .axis_indices import with_axis_indices
from .operation import Function, Many, Operation, Read
from .outer_products import in_order
from .program import ALIAS, Block, Step
from .refused import SHOWN_AS_TEXT, RefusedError
from .staged import jitted_block

# Attributes of a module, a function, or its arguments and results that do not change what is computed: names,
# visibility, and requests about memory. Shardings change nothing on one device.
_OF_MODULES = re.compile(r"sym_name|mhlo\.num_(partitions|replicas)|jax\.\w+|jaxexp\.\w+")
_OF_MESHES = re.compile(r"sym_name|sym_visibility|mesh|stablehlo\.mesh")
_OF_ENDS = re.compile("")
_OF_FUNCTIONS = re.compile(r"sym_name|function_type|sym_visibility|arg_attrs|res_attrs")
_OF_VALUES = re.compile(
    r"jax\.(result_info|arg_info|buffer_donor|global_constant)|tf\.aliasing_output|mhlo\.(layout_mode|memory_kind)"
)

# Functions with at most this many steps are traced in no time.
_SHORT = 50

# How many operations calls may add to those that are in the module, with each call written out. JAX and XLA follow
# each call, so functions that call each other twice take 2**n steps to print or to lower.
_MOST_WRITTEN_OUT = 2**20

# For how many different arguments that are the platform's index a function is read; any other call asks at run time.
_MOST_READINGS = 8


class _Reading(NamedTuple):
    """What an operation was read as. It holds for all operations with the same name, attributes and types.

    Attributes:
        run: what its steps run.
        types: the types of its results.
        said: what else it says.
        value: its result, if that is a scalar constant.
    """

    run: Callable[..., Sequence[Any]]
    types: tuple[Type, ...]
    said: Mapping[str, Any]
    value: np.ndarray[Any, Any] | None


class Reader:
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
        self._functions: dict[str, dict[Any, Function | None]] = {}
        self._numbers: dict[Any, int] = {}
        self._types: list[Type] = []
        self._known_types: dict[Any, Type] = {}
        self._readings: dict[Any, _Reading] = {}
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
                self._read_mesh(operation)
            else:
                raise RefusedError(name, "at the top of the module")

    def main(self) -> Block:
        """The main function."""
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

    def _read_mesh(self, operation: Any) -> None:
        _check_attributes(operation.operation, _OF_MESHES)
        if (mesh := of_operation(operation)) is not None:
            self.meshes[operation.attributes["sym_name"].value] = mesh

    # --- values

    def number_of(self, value: Any) -> int:
        number = self._numbers.get(value)
        return self._new_value(value) if number is None else number

    def _new_value(self, value: Any) -> int:
        number = self._numbers[value] = len(self._types)
        self._types.append(self.type_of(value))
        return number

    def _fresh(self, type_: Type) -> int:
        self._types.append(type_)
        return len(self._types) - 1

    def type_of(self, value: Any) -> Type:
        mlir = value.type
        known = self._known_types.get(mlir)
        if known is None:
            known = self._known_types[mlir] = read_type(mlir)
            self.is_wide |= is_wide(known)
        return known

    def type_of_number(self, number: int) -> Type:
        return self._types[number]

    # --- functions

    def function(self, name: str, operands: Sequence[int] = ()) -> Function:
        known = tuple(
            (position, int(self._platform_values[number]))
            for position, number in enumerate(operands)
            if number in self._platform_values
        )
        return self._function(name, known)

    def _function(self, name: str, known: tuple[tuple[int, int], ...]) -> Function:
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

    def _read_function(self, name: str, known: tuple[tuple[int, int], ...]) -> Function:
        operation = self._mlir_functions[name]
        _check_attributes(operation.operation, _OF_FUNCTIONS)
        for attributes in ("arg_attrs", "res_attrs"):
            if attributes in operation.attributes:
                for entry in _jax.ir.ArrayAttr(operation.attributes[attributes]):
                    self._check_value(name, {attribute.name for attribute in _jax.ir.DictAttr(entry)})
        blocks = list(operation.regions[0].blocks)
        if len(blocks) != 1:
            raise RefusedError("func.func", f"@{name} of {len(blocks)} blocks")
        (mlir,) = blocks
        before, around = self._written_out, self._numbers
        self._numbers = {}  # another reading of the same function gives its values other numbers
        for position, index in known:
            parameter = self.number_of(mlir.arguments[position])
            value = np.asarray(index, self._types[parameter].dtype)
            self.constants[parameter] = self._platform_values[parameter] = value
        block = self.block(mlir)
        self._numbers = around
        if block.captures:
            raise RefusedError("func.func", f"@{name}, which uses values of another function")
        # What a jax.shard_map runs has types that say more than shapes and dtypes.
        is_staged = len(block.steps) > _SHORT and self.manual is None
        return Function(block, jitted_block(block, name, is_staged=is_staged), self._written_out - before)

    def _check_value(self, name: str, attributes: set[str]) -> None:
        for attribute in sorted(attributes):
            sharding = attribute in ("sdy.sharding", "mhlo.sharding")
            # The main function's shardings are also in the signature.
            known = not self.is_partitioned or (name == "main" and attribute == "sdy.sharding")
            if not (_OF_VALUES.fullmatch(attribute) or (sharding and known)):
                raise RefusedError("func.func", f"@{name} with the attribute {attribute} of an argument or a result")

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
        return Block.of(parameters, in_order(steps, results, self._types, self._turned), results)

    def _read(self, mlir: Any, steps: list[Step]) -> None:
        name = mlir.name
        self.counts[name] = self.counts.get(name, 0) + 1
        self._written_out += 1
        inputs, outputs = tuple(map(self.number_of, mlir.operands)), tuple(map(self.number_of, mlir.results))
        key = self._key(mlir, name, inputs, outputs)
        reading = None if key is None else self._readings.get(key)
        if reading is None:
            operation = Operation(mlir, self)
            made = self._table[name](operation) if name in self._table else operation.refuse()
            operation.check_all_was_read()
            if made is None:
                self._numbers.update(zip(mlir.results, inputs, strict=True))
                return
            if isinstance(made, Function):
                made = made.block if made.is_small else Many(made.jitted)
            if isinstance(made, Block):
                self._insert(made, inputs[: len(made.parameters)], outputs, steps)
                self._follow_platform(name, inputs, outputs)
                return
            if isinstance(made, Many):
                inputs += made.captures
                reading = _Reading(made.run, operation.results, operation.said, None)
            else:
                reading = _Reading(_single(made), operation.results, operation.said, operation.value)
            if key is not None and not operation.looked_around:
                self._readings[key] = reading
        if reading.value is not None:
            self.constants[outputs[0]] = reading.value
        steps.append(Step(name, reading.run, inputs, outputs, reading.types, reading.said))
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
        types = self._types  # each is made once
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
            self.constants[number] = self._platform_values[number] = np.asarray(value, self._types[number].dtype)

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
            types = tuple(self._types[number] for number in outputs)
            steps.append(Step(ALIAS, lambda *values: values, inputs, outputs, types, {}))


def _single(function: Callable[..., Any]) -> Callable[..., Sequence[Any]]:
    def run(*arguments: Any) -> Sequence[Any]:
        return (function(*arguments),)

    return run


def _check_attributes(operation: Any, known: re.Pattern[str]) -> None:
    for name in sorted(map(str, operation.attributes)):
        if not known.fullmatch(name):
            raise RefusedError(operation.name, f"with the attribute {name}")
