"""A function that also returns a fingerprint of what each of its operations makes.

Its module is the function's, with calls that compute fingerprints behind each operation, also in the functions that it
calls, in branches and in loops.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import UnsupportedError
from jaxexp._kernel.call.specialize import specialize
from jaxexp._kernel.function.data import ExportedData, described
from jaxexp._kernel.module import main, mlir
from jaxexp._readback import array_type
from jaxexp._readback.operation import place
from jaxexp._readback.refused import RefusedError

from . import exact, fingerprint
from .rows import EXACT, Parts, Row, Scope, Tables

# Each call of a function has rows of its own for the function's operations.
_MOST_ROWS = 1 << 16

# Arrays of so many numbers are put together with others of their type: compilers take as long for each table.
_SMALL = 4096

# Sizes of arrays with symbolic shapes are computed with integers in arrays of at most this many.
_MOST_SIZES = 16


class Traced(NamedTuple):
    """The function that also returns tables, behind its own results; what their rows are about; and the module of the
    function itself, for its shapes.
    """

    function: ExportedData
    rows: tuple[Row, ...]
    module: bytes


def traced(program: Any, shapes: Sequence[tuple[int, ...]], at: tuple[str, int] | None = None) -> Traced:
    """Makes the function.

    Args:
        program: the function, which has no weights of its own.
        shapes: those of its arguments; of random keys, those of their data.
        at: the place of an operation (`Row.at`) that is made in float64, too: behind each of its rows is one more,
            whose operation is `EXACT`, of what it makes then of the same operands.

    Raises:
        ExportError: the shapes do not fit.
        UnsupportedError: it has too many operations; or the operation has no float64.
    """
    program = _flat(program)
    if _jax.any_symbolic(program.in_avals):
        specs = tuple(map(_spec, shapes, program.in_avals))
        program = specialize(program, specs, {})
    with _jax.make_ir_context() as context, _jax.ir.Location.unknown(context), jax.enable_x64(True):
        module = mlir.parse(program.mlir_module_serialized, context)
        rows = _Tracer(module, described(program), at).main()
        serialized = mlir.serialize(module)
    tables = [_jax.ShapedArray(aval.shape, aval.dtype) for aval in fingerprint.avals(len(rows))]
    out_avals = (*program.out_avals, *tables)
    function = dataclasses.replace(
        program,
        mlir_module_serialized=serialized,
        out_tree=jax.tree_util.tree_structure((0,) * len(out_avals)),
        out_avals=out_avals,
        _out_named_shardings=(*program._out_named_shardings, None, None),
        out_shardings_hlo=(*program.out_shardings_hlo, None, None),
        _get_vjp=None,
    )
    return Traced(function, tuple(rows), bytes(program.mlir_module_serialized))


def _spec(shape: tuple[int, ...], aval: Any) -> jax.ShapeDtypeStruct:
    is_key = _jax.issubdtype(aval.dtype, _jax.extended_dtype)
    return jax.ShapeDtypeStruct(shape[: len(aval.shape)] if is_key else shape, aval.dtype)


def _flat(program: Any) -> Any:
    """The function of flat arguments and results: so no class of a user's trees is needed."""
    return dataclasses.replace(
        program,
        in_tree=jax.tree_util.tree_structure(((0,) * len(program.in_avals), {})),
        out_tree=jax.tree_util.tree_structure((0,) * len(program.out_avals)),
        _get_vjp=None,
    )


class _Tracer:
    """Rewrites one module, in its context, which is entered."""

    def __init__(self, module: Any, name: str, exact_at: tuple[str, int] | None) -> None:
        self._module, self._name, self._exact_at = module, name, exact_at
        self._symbols = _jax.ir.SymbolTable(module.operation)
        self._helpers: dict[Any, str] = {}
        self._functions: dict[str, tuple[str, Tables]] = {}
        self._at = "main", 0  # the function that is rewritten, and how many of its operations were

    def main(self) -> list[Row]:
        tables = self._trace("main", self._symbols["main"])
        mlir.run_passes(self._module, "symbol-dce")
        return [dataclasses.replace(row, takes=tuple(t for t in row.takes if t >= 0)) for row in tables.rows]

    def _function(self, name: str) -> tuple[str, Tables]:
        """A copy of a function that returns tables, too: its name and what was made of it."""
        if name not in self._functions:
            copy = self._symbols[name].operation.clone(_jax.ir.InsertionPoint(self._module.body))
            new = mlir.free_name(f"{name}_traced", self._symbols)
            copy.attributes["sym_name"] = _jax.ir.StringAttr.get(new)
            copy.attributes["sym_visibility"] = _jax.ir.StringAttr.get("private")
            self._symbols.insert(copy)
            self._functions[name] = new, self._trace(name, self._symbols[new])
        return self._functions[name]

    def _trace(self, name: str, function: Any) -> Tables:
        ir = _jax.ir
        (block,) = function.regions[0].blocks
        outer, self._at = self._at, (name, 0)
        tables = self._block(block)
        self._at = outer
        _return_more(block, [tables.floats, tables.integers], _jax.return_op)
        type_ = function.type
        results = [*type_.results, tables.floats.type, tables.integers.type]
        attributes = mlir.result_attributes(function)
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(list(type_.inputs), results))
        function.attributes["res_attrs"] = ir.ArrayAttr.get([*attributes, ir.DictAttr.get({}), ir.DictAttr.get({})])
        return tables

    def _block(self, block: Any) -> Tables:
        """Computes fingerprints in a block, and puts them together in front of its terminator."""
        *operations, terminator = everything = list(block.operations)
        scope = Scope()
        tables = Parts()
        for operation, point in zip(operations, everything[1:], strict=True):
            operation = operation.operation
            name, source, at = operation.name, place(operation.location), self._at
            self._pass(1)
            takes = scope.takes(operation.operands)
            with _jax.ir.InsertionPoint(point), operation.location:
                if name == "func.call":
                    results, inner = self._call(operation, scope)
                elif name == "stablehlo.while":
                    results, inner = self._while(operation, scope)
                elif name in ("stablehlo.case", "stablehlo.if"):
                    results, inner = self._branches(operation, scope)
                elif name == "sdy.manual_computation" and (devices := self._devices(operation)) is not None:
                    results, inner = self._manual(operation, scope, *devices)
                else:
                    for region in operation.regions:
                        for inside in region.blocks:
                            self._pass(_size(inside))
                    # What nobody uses may be memory that nobody wrote, as of routines of LAPACK.
                    results, inner = [value for value in operation.results if mlir.is_used(value)], None
                if inner is not None:
                    count = _jax.ir.RankedTensorType(inner[0].type).shape[1]
                    tables.add(inner, range(len(scope.rows) - count, len(scope.rows)))
                wide = {}
                if at == self._exact_at and results and inner is None:
                    wide = dict(zip(operation.results, exact.results_of(operation), strict=True))
                for value in results:
                    if name != "func.call" and (type_ := _type(value)) is not None:
                        # Regions of sort and reduce may use constants, but no other value; and sizes are computed
                        # with small integers.
                        other = wide.get(value)
                        is_size = type_.dtype.kind in "iub" and math.prod(type_.shape) <= _MOST_SIZES
                        if name != "stablehlo.constant" and not is_size:
                            value = _alone(value)
                        scope.add(value, Row(name, (), source, type_.dtype.name, type_.shape, takes, at))
                        self._keep(value, type_, scope, tables)
                        if other is not None and (type_ := _type(other)) is not None:
                            scope.add(other, Row(EXACT, (), source, type_.dtype.name, type_.shape, takes, at))
                            self._keep(other, type_, scope, tables)
            if len(scope.rows) > _MOST_ROWS:
                raise UnsupportedError(
                    f"tracing {self._name}: with each call written out, it has more than {_MOST_ROWS:,} operations"
                )
        with _jax.ir.InsertionPoint(terminator):
            for group in tables.small.values():
                tables.add(self._fingerprints(group), [scope.made[value] for value in group])
            floats, integers = self._joined(tables.parts, tables.order)
        returned = scope.takes(terminator.operands)
        return Tables(scope.rows, list(scope.outside), returned, floats, integers)

    def _keep(self, value: Any, type_: array_type.Type, scope: Scope, tables: Parts) -> None:
        """Computes the fingerprint of a value that has a row; that of a small one is computed with others."""
        if 0 in type_.shape:
            tables.add(self._nothing(1), [scope.made[value]])
        elif math.prod(type_.shape) > _SMALL:
            tables.add(self._fingerprints([value]), [scope.made[value]])
        else:
            tables.small.setdefault(str(value.type), []).append(value)

    def _pass(self, operations: int) -> None:
        name, number = self._at
        self._at = name, number + operations

    # --- values

    def _fingerprints(self, values: list[Any]) -> tuple[Any, Any]:
        return self._inline(fingerprint.of_arrays, (str(values[0].type), len(values)), values)

    def _joined(self, parts: Sequence[tuple[Any, Any]], order: Sequence[int] = ()) -> tuple[Any, Any]:
        if not parts:
            return self._nothing(0)
        floats, integers = (
            _jax.hlo.concatenate([part[i] for part in parts], dimension=1) if len(parts) > 1 else parts[0][i]
            for i in range(2)
        )
        if list(order) == sorted(order):
            return floats, integers
        # Where each row is, as `order` says of each table's row which one it is.
        places = tuple(int(place) for place in np.argsort(order))
        return self._inline(
            lambda floats, integers: fingerprint.in_order(floats, integers, places),
            ("in order", places),
            [floats, integers],
        )

    def _nothing(self, rows: int) -> tuple[Any, Any]:
        return self._inline(lambda: fingerprint.nothing(rows), ("nothing", rows), [])

    def _inline(self, function: Callable[..., Any], key: Any, operands: Sequence[Any]) -> Any:
        """Calls a function of the module that JAX lowers `function` to, once for each key."""
        ir = _jax.ir
        if key not in self._helpers:
            name = mlir.free_name("fingerprint", self._symbols)
            types = [operand.type for operand in operands]
            avals = [_jax.ShapedArray(*dataclasses.astuple(array_type.read(type_))) for type_ in types]
            helper = _jax.func_op(
                name, ir.FunctionType.get(types, []), visibility="private", ip=ir.InsertionPoint(self._module.body)
            )
            with ir.InsertionPoint(helper.add_entry_block()), ir.Location.unknown():
                made = main.lowered_inline(function, self._module, avals, list(helper.arguments))
                _jax.return_op(made)
            results = [value.type for value in made]
            helper.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, results))
            self._symbols.insert(helper.operation)
            self._helpers[key] = name
        name = self._helpers[key]
        results = list(self._symbols[name].type.results)
        return tuple(_jax.call_op(results, ir.FlatSymbolRefAttr.get(name), list(operands)).results)

    # --- operations with code: their new results, and the values of their tables

    def _call(self, operation: Any, scope: Scope) -> tuple[list[Any], Any]:
        callee = _jax.ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
        name, inner = self._function(callee)
        types = list(self._symbols[name].type.results)
        operands = list(operation.operands)
        new = _jax.call_op(types, _jax.ir.FlatSymbolRefAttr.get(name), operands).operation
        *results, floats, integers = list(new.results)
        mlir.replace(operation, results)
        (block,) = self._symbols[name].regions[0].blocks
        resolve = scope.adopt(inner, f"@{callee}", block.arguments, operands)
        for value, number in zip(results, inner.returned, strict=True):
            scope.made[value] = resolve(number)
        return results, (floats, integers)

    def _while(self, operation: Any, scope: Scope) -> tuple[list[Any], Any]:
        ir = _jax.ir
        condition, body = (region.blocks[0] for region in operation.regions)
        self._pass(_size(condition))
        inner = self._block(body)
        scope.adopt(inner, "while", body.arguments, list(operation.operands))
        unsigned = ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(32))
        more = [unsigned, inner.floats.type, inner.integers.type]
        at = ir.Location.unknown()
        for type_ in more:
            condition.add_argument(type_, at)
        old = [body.add_argument(type_, at) for type_ in more]
        *_, terminator = list(body.operations)
        with ir.InsertionPoint(terminator):
            key = ("repeated", len(inner.rows))
            now = self._inline(fingerprint.repeated, key, [*old, inner.floats, inner.integers])
        _return_more(body, now, _jax.hlo.return_)
        zero = _jax.ir_constant(np.zeros((), np.uint32))
        begin = [zero, *self._nothing(len(inner.rows))]
        types = [*(value.type for value in operation.results), *more]
        *results, _, floats, integers = _rebuilt(operation, types, [*operation.operands, *begin])
        return results, (floats, integers)

    def _branches(self, operation: Any, scope: Scope) -> tuple[list[Any], Any]:
        blocks = [region.blocks[0] for region in operation.regions]
        each = [self._block(block) for block in blocks]
        counts = [len(inner.rows) for inner in each]
        joined: Sequence[Any] = ()
        for i, (block, inner) in enumerate(zip(blocks, each, strict=True)):
            scope.adopt(inner, f"branch {i}", (), ())
            *_, terminator = list(block.operations)
            with _jax.ir.InsertionPoint(terminator):
                parts = [self._nothing(sum(counts[:i])), (inner.floats, inner.integers)]
                joined = self._joined([*parts, self._nothing(sum(counts[i + 1 :]))])
            _return_more(block, joined, _jax.hlo.return_)
        types = [*(value.type for value in operation.results), *(value.type for value in joined)]
        *results, floats, integers = _rebuilt(operation, types, list(operation.operands))
        return results, (floats, integers)

    def _devices(self, operation: Any) -> tuple[Any, int] | None:
        """How the tables of all devices that run the code of a `jax.shard_map` lie, and how many these are; None if no
        array of it says on which mesh.
        """
        sdy = _jax.sdy
        every = [one for name in ("out_shardings", "in_shardings") for one in _shardings(operation, name)]
        name = str(every[0].mesh_or_ref).removeprefix("@") if every else ""
        if name not in self._symbols:
            return None
        mesh: Any = sdy.MeshAttr(self._symbols[name].attributes["mesh"])
        sizes = {axis.name: axis.size for axis in map(sdy.MeshAxisAttr, mesh.axes)}
        manual: Any = sdy.ManualAxesAttr(operation.attributes["manual_axes"])
        axes = [str(axis) for axis in manual]
        first = sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(axis) for axis in axes], True)
        others = [sdy.DimensionShardingAttr.get([], True)] * 2
        return sdy.TensorShardingAttr.get(name, [first, *others]), math.prod(sizes[axis] for axis in axes)

    def _manual(self, operation: Any, scope: Scope, sharding: Any, devices: int) -> tuple[list[Any], Any]:
        ir = _jax.ir
        (block,) = operation.regions[0].blocks
        inner = self._block(block)
        scope.adopt(inner, "shard_map", block.arguments, list(operation.operands))
        own = [ir.RankedTensorType(value.type) for value in (inner.floats, inner.integers)]
        _return_more(block, [inner.floats, inner.integers], _jax.sdy.return_)
        shardings = [*_shardings(operation, "out_shardings"), sharding, sharding]
        operation.attributes["out_shardings"] = _jax.sdy.TensorShardingPerValueAttr.get(shardings)
        every = [ir.RankedTensorType.get([2 * devices, *type_.shape[1:]], type_.element_type) for type_ in own]
        types = [*(value.type for value in operation.results), *every]
        *results, floats, integers = _rebuilt(operation, types, list(operation.operands))
        return results, self._inline(fingerprint.of_devices, (devices, len(inner.rows)), [floats, integers])


def _size(block: Any) -> int:
    """How many operations are in a block, without those that end one."""
    every = [one for operation in block.operations for one in mlir.iter_operations(operation)]
    return sum(not one.name.endswith(".return") for one in every)


def _return_more(block: Any, values: Sequence[Any], terminate: Callable[..., Any]) -> None:
    *_, terminator = list(block.operations)
    with _jax.ir.InsertionPoint(terminator):
        terminate([*terminator.operands, *values])
    terminator.operation.erase()


def _shardings(operation: Any, name: str) -> list[Any]:
    return [
        *map(_jax.sdy.TensorShardingAttr, _jax.sdy.TensorShardingPerValueAttr(operation.attributes[name]).shardings)
    ]


def _alone(value: Any) -> Any:
    """The same value, computed once and not again with each fingerprint that needs it, as compilers do."""
    barrier = _jax.ir.Operation.create("stablehlo.optimization_barrier", results=[value.type], operands=[value])
    value.replace_all_uses_except(barrier.result, barrier)
    return barrier.result


def _type(value: Any) -> array_type.Type | None:
    """The type of an array that fingerprints are made of; None of other values."""
    try:
        return array_type.read(value.type)
    except RefusedError:
        return None


def _rebuilt(operation: Any, types: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """The results of the same operation with more of them at the end; its regions move."""
    new = _jax.ir.Operation.create(
        operation.name,
        results=list(types),
        operands=list(operands),
        attributes=dict(mlir.items(operation.attributes)),
        regions=len(operation.regions),
    )
    for old_region, region in zip(operation.regions, new.regions, strict=True):
        old_region.blocks[0].append_to(region)
    results = list(new.results)
    mlir.replace(operation, results[: len(operation.results)])
    return results
