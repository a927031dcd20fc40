"""A function that also returns a fingerprint of what each of its operations makes.

Its module is the function's, with calls that compute fingerprints behind each operation, also in the functions that it
calls, in branches and in loops.
"""

from __future__ import annotations

import dataclasses
import functools
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
from .rows import EXACT, RETURN, Row, Scope, Tables, identity

# Each call of a function has rows of its own for the function's operations.
_MOST_ROWS = 1 << 16

# Operations whose code is traced, too.
_CALL, _LOOP, _MANUAL = _TAKES = "func.call", "stablehlo.while", "sdy.manual_computation"
_ENTERED = (_LOOP, _MANUAL, "stablehlo.case", "stablehlo.if")

# Arrays of so many numbers are put together with others of their type: compilers take as long for each table.
_SMALL = 4096

# Sizes of arrays with symbolic shapes are computed with integers in arrays of at most this many.
_MOST_SIZES = 16


# Of an operation, a scope, and a place: traces the code. Returns the new results, and what was made of the code.
_Trace = Callable[[Any, Scope, str], tuple[list[Any], Tables]]


class Traced(NamedTuple):
    """The function that also returns a table, behind its own results; what its rows are about; and the module of the
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
        tracer = _Tracer(module, described(program), at)
        rows = tracer.main()
        serialized = mlir.serialize(module)
    table = fingerprint.aval(len(rows), tracer.trips)
    out_avals = (*program.out_avals, _jax.ShapedArray(table.shape, table.dtype))
    function = dataclasses.replace(
        program,
        mlir_module_serialized=serialized,
        out_tree=jax.tree_util.tree_structure((0,) * len(out_avals)),
        out_avals=out_avals,
        _out_named_shardings=(*program._out_named_shardings, None),
        out_shardings_hlo=(*program.out_shardings_hlo, None),
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
    """Rewrites one module, in its context, which is entered. `trips` is how many trips of a loop are kept apart."""

    def __init__(self, module: Any, name: str, exact_at: tuple[str, int] | None) -> None:
        self._module, self._name, self._exact_at = module, name, exact_at
        self._symbols = _jax.ir.SymbolTable(module.operation)
        self._helpers: dict[Any, str] = {}
        self._functions: dict[str, tuple[str, Tables]] = {}
        self._at = "main", 0  # the function that is rewritten, and how many of its operations were
        has_loops = any(one.name == _LOOP for one in mlir.iter_operations(module))
        self.trips = fingerprint.TRIPS if has_loops else 1
        branches = dict.fromkeys(("stablehlo.case", "stablehlo.if"), self._branches)
        self._code: dict[str, _Trace] = {_CALL: self._call, _LOOP: self._while, **branches}

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
        tables = self._block(block, None)
        self._at = outer
        _return_more(block, [tables.table], _jax.return_op)
        type_ = function.type
        results = [*type_.results, tables.table.type]
        attributes = mlir.result_attributes(function)
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(list(type_.inputs), results))
        function.attributes["res_attrs"] = ir.ArrayAttr.get([*attributes, ir.DictAttr.get({})])
        return tables

    def _block(self, block: Any, around: Scope | None) -> Tables:
        """Computes fingerprints in a block, and puts them together in front of its terminator."""
        *operations, terminator = everything = list(block.operations)
        scope = Scope(block.arguments, around)
        for operation, point in zip(operations, everything[1:], strict=True):
            with _jax.ir.InsertionPoint(point), operation.operation.location:
                self._operation(operation.operation, scope)
            if len(scope.rows) > _MOST_ROWS:
                raise UnsupportedError(
                    f"tracing {self._name}: with each call written out, it has more than {_MOST_ROWS:,} operations"
                )
        values = list(terminator.operands)
        returned, identities = scope.takes(values), tuple(map(scope.identity, values))
        with _jax.ir.InsertionPoint(terminator):
            if terminator.name == RETURN:
                own = identity(RETURN, *identities)
                self._add(Row(RETURN, (), place(terminator.location), "", (), returned, self._at, own), scope)
            for group in scope.small.values():
                scope.add_table(self._fingerprints(group), [scope.made[value] for value in group])
            table = self._joined(scope.parts, scope.order)
        return Tables(scope.rows, list(scope.outside), table, returned, identities)

    def _operation(self, operation: Any, scope: Scope) -> None:
        """Adds the rows of an operation, and of the code in it."""
        name, source, at = operation.name, place(operation.location), self._at
        takes, before = scope.takes(operation.operands), tuple[int, ...]()
        kind = identity(name, _said(operation), *map(scope.identity, operation.operands))
        results = list(operation.results)
        used = [mlir.is_used(value) for value in results]
        trace, inner, wide = self._code.get(name), tuple[int, ...](), dict[Any, Any]()
        if name == _MANUAL and (devices := self._devices(operation)) is not None:
            trace = functools.partial(self._manual, *devices)
        self._pass(1)
        if trace is None:
            self._pass(sum(_size(block) for region in operation.regions for block in region.blocks))
            if at == self._exact_at and any(used):
                wide = dict(zip(results, exact.results_of(operation), strict=True))
        else:
            if name in _TAKES:
                self._add(Row(name, (), source, "", (), takes, at, kind), scope)
            results, code = trace(operation, scope, source)
            count = _jax.ir.RankedTensorType(code.table.type).shape[1]
            scope.add_table(code.table, range(len(scope.rows) - count, len(scope.rows)))
            inner = code.identities
            if name == _CALL:
                scope.made.update(zip(results, code.returned, strict=True))
                scope.identities.update((value, identity(kind, one)) for value, one in zip(results, inner, strict=True))
                return
            takes, before = (takes, code.returned) if name == _LOOP else (takes + code.returned, before)
        for number, (value, is_used) in enumerate(zip(results, used, strict=True)):
            if (type_ := _type(value)) is None:
                continue
            other = wide.get(value)
            # Regions of sort and reduce may use constants, but no other value; and sizes are computed with small
            # integers.
            is_size = type_.dtype.kind in "iub" and math.prod(type_.shape) <= _MOST_SIZES
            if is_used and name != "stablehlo.constant" and not is_size:
                value = _alone(value)
            own = identity(kind, number, type_, *inner)
            row = Row(name, (), source, type_.dtype.name, type_.shape, takes, at, own, before)
            # What nobody uses may be memory that nobody wrote, as of routines of LAPACK.
            self._add(row, scope, value, type_ if is_used else None)
            if is_used and other is not None and (type_ := _type(other)) is not None:
                self._add(dataclasses.replace(row, operation=EXACT, dtype=type_.dtype.name), scope, other, type_)

    def _add(self, row: Row, scope: Scope, value: Any = None, type_: array_type.Type | None = None) -> None:
        """Adds a row, and computes the fingerprint of its value, if it has a type; that of a small one is computed with
        others.
        """
        scope.add(value, row)
        if type_ is None or 0 in type_.shape:
            scope.add_table(self._nothing(1), [scope.made[value]])
        elif math.prod(type_.shape) > _SMALL:
            scope.add_table(self._fingerprints([value]), [scope.made[value]])
        else:
            scope.small.setdefault(str(value.type), []).append(value)

    def _pass(self, operations: int) -> None:
        name, number = self._at
        self._at = name, number + operations

    # --- values

    def _fingerprints(self, values: list[Any]) -> Any:
        of_arrays = functools.partial(fingerprint.of_arrays, trips=self.trips)
        return self._inline(of_arrays, (str(values[0].type), len(values)), values)[0]

    def _joined(self, parts: Sequence[Any], order: Sequence[int] = ()) -> Any:
        if not parts:
            return self._nothing(0)
        table = _jax.hlo.concatenate(parts, dimension=1) if len(parts) > 1 else parts[0]
        if list(order) == sorted(order):
            return table
        # Where each row is, as `order` says of each table's row which one it is.
        places = tuple(int(place) for place in np.argsort(order))
        return self._inline(lambda table: fingerprint.in_order(table, places), ("in order", places), [table])[0]

    def _nothing(self, rows: int, count: int = 1) -> Any:
        return self._inline(lambda: fingerprint.nothing(rows, self.trips, count), ("nothing", rows, count), [])[0]

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
                leaves = lambda *args: jax.tree.leaves(function(*args))  # noqa: E731
                made = main.lowered_inline(leaves, self._module, avals, list(helper.arguments))
                _jax.return_op(made)
            results = [value.type for value in made]
            helper.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, results))
            self._symbols.insert(helper.operation)
            self._helpers[key] = name
        name = self._helpers[key]
        results = list(self._symbols[name].type.results)
        return tuple(_jax.call_op(results, ir.FlatSymbolRefAttr.get(name), list(operands)).results)

    # --- operations with code: their new results, and what was made of the code

    def _call(self, operation: Any, scope: Scope, source: str) -> tuple[list[Any], Tables]:
        callee = _jax.ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
        name, inner = self._function(callee)
        types = list(self._symbols[name].type.results)
        operands = list(operation.operands)
        new = _jax.call_op(types, _jax.ir.FlatSymbolRefAttr.get(name), operands).operation
        *results, table = list(new.results)
        mlir.replace(operation, results)
        (block,) = self._symbols[name].regions[0].blocks
        resolve = scope.adopt(inner, f"@{callee}", source, block.arguments, operands)
        return results, inner._replace(table=table, returned=tuple(map(resolve, inner.returned)))

    def _while(self, operation: Any, scope: Scope, source: str) -> tuple[list[Any], Tables]:
        ir = _jax.ir
        condition, body = (region.blocks[0] for region in operation.regions)
        self._pass(_size(condition))
        inner = self._block(body, scope)
        resolve = scope.adopt(inner, "while", source, body.arguments, list(operation.operands))
        unsigned = ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(32))
        more = [unsigned, inner.table.type]
        at = ir.Location.unknown()
        for type_ in more:
            condition.add_argument(type_, at)
        old = [body.add_argument(type_, at) for type_ in more]
        *_, terminator = list(body.operations)
        with ir.InsertionPoint(terminator):
            now = self._inline(fingerprint.repeated, ("repeated", len(inner.rows)), [*old, inner.table])
        _return_more(body, now, _jax.hlo.return_)
        begin = [_jax.ir_constant(np.zeros((), np.uint32)), self._nothing(len(inner.rows), 0)]
        types = [*(value.type for value in operation.results), *more]
        *results, _, table = _rebuilt(operation, types, [*operation.operands, *begin])
        return results, inner._replace(table=table, returned=tuple(resolve(row) for row in inner.returned if row >= 0))

    def _branches(self, operation: Any, scope: Scope, source: str) -> tuple[list[Any], Tables]:
        blocks = [region.blocks[0] for region in operation.regions]
        each = [self._block(block, scope) for block in blocks]
        counts = [len(inner.rows) for inner in each]
        returned: list[int] = []
        joined: Any = None
        for i, (block, inner) in enumerate(zip(blocks, each, strict=True)):
            returned += map(scope.adopt(inner, f"branch {i}", source, (), ()), inner.returned)
            *_, terminator = list(block.operations)
            with _jax.ir.InsertionPoint(terminator):
                parts = [self._nothing(sum(counts[:i])), inner.table, self._nothing(sum(counts[i + 1 :]))]
                joined = self._joined(parts)
            _return_more(block, [joined], _jax.hlo.return_)
        types = [*(value.type for value in operation.results), joined.type]
        *results, table = _rebuilt(operation, types, list(operation.operands))
        identities = tuple(one for inner in each for one in inner.identities)
        return results, Tables([], [], table, tuple(returned), identities)

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

    def _manual(
        self, sharding: Any, devices: int, operation: Any, scope: Scope, source: str
    ) -> tuple[list[Any], Tables]:
        ir = _jax.ir
        (block,) = operation.regions[0].blocks
        inner = self._block(block, scope)
        resolve = scope.adopt(inner, "shard_map", source, block.arguments, list(operation.operands))
        own = ir.RankedTensorType(inner.table.type)
        _return_more(block, [inner.table], _jax.sdy.return_)
        shardings = [*_shardings(operation, "out_shardings"), sharding]
        operation.attributes["out_shardings"] = _jax.sdy.TensorShardingPerValueAttr.get(shardings)
        every = ir.RankedTensorType.get([devices * own.shape[0], *own.shape[1:]], own.element_type)
        types = [*(value.type for value in operation.results), every]
        *results, table = _rebuilt(operation, types, list(operation.operands))
        key = ("of devices", devices, len(inner.rows))
        (table,) = self._inline(lambda table: fingerprint.of_devices(table, devices), key, [table])
        return results, inner._replace(table=table, returned=tuple(map(resolve, inner.returned)))


def _said(operation: Any) -> int:
    """What is equal for equal names and attributes, of an operation and of those inside it that are not traced."""
    name, inside = operation.name, [operation]
    if name not in _ENTERED:
        inside = list(mlir.iter_operations(operation))
    elif name == _LOOP:  # whose condition is not traced
        inside += [inner for one in operation.regions[0].blocks[0].operations for inner in mlir.iter_operations(one)]
    if name == "stablehlo.constant" and math.prod(_jax.ir.RankedTensorType(operation.results[0].type).shape) > _SMALL:
        return identity(name)  # its fingerprint says as much
    attributes = [f"{key}={value}" for one in inside for key, value in mlir.readable_items(one.attributes)]
    return identity(*(one.name for one in inside), *attributes)


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
