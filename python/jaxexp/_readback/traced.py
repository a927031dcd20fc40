"""A function that also returns a fingerprint of what each of its operations makes. It reads no module back.

Its module is the function's, with calls that compute fingerprints behind each operation, also in the functions that it
calls, in branches and in loops.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxexp import _jax
from jaxexp._errors import UnsupportedError
from jaxexp._kernel.artifact.words import dtype_and_shape
from jaxexp._kernel.call.specialize import specialize
from jaxexp._kernel.function.data import ExportedData, described
from jaxexp._kernel.module import main, mlir

from . import array_type
from .reader import place
from .refused import RefusedError

# Each call of a function has rows of its own for the function's operations.
_MOST_ROWS = 1 << 16

# Operations whose code is traced, too.
_CALL, _LOOP, _MANUAL = _TAKES = "func.call", "stablehlo.while", "sdy.manual_computation"
_ENTERED = (_LOOP, _MANUAL, "stablehlo.case", "stablehlo.if")

# Arrays of so many numbers are put together with others of their type: compilers take as long for each table.
_SMALL = 4096

# Sizes of arrays with symbolic shapes are computed with integers in arrays of at most this many.
_MOST_SIZES = 16


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
            whose operation is `EXACT`, of what it makes then of the same operands. Other rows have no numbers, which
            compilers take long for.

    Raises:
        ExportError: the shapes do not fit.
        UnsupportedError: it has too many operations; or the operation has no float64.
    """
    flat = lambda avals: jax.tree_util.tree_structure((0,) * len(avals))  # noqa: E731  (no class of a user's trees)
    in_tree = jax.tree_util.tree_structure(((0,) * len(program.in_avals), {}))
    program = dataclasses.replace(program, in_tree=in_tree, out_tree=flat(program.out_avals), _get_vjp=None)
    if _jax.any_symbolic(program.in_avals):
        is_key = lambda aval: _jax.issubdtype(aval.dtype, _jax.extended_dtype)  # noqa: E731
        pairs = zip(shapes, program.in_avals, strict=False)
        own = [(shape[: len(aval.shape)] if is_key(aval) else shape, aval.dtype) for shape, aval in pairs]
        program = specialize(program, tuple(itertools.starmap(jax.ShapeDtypeStruct, own)), {})
    with _jax.make_ir_context() as context, _jax.ir.Location.unknown(context), jax.enable_x64(True):
        module = mlir.parse(program.mlir_module_serialized, context)
        tracer = _Tracer(module, described(program), at)
        rows = tracer.main()
        serialized = mlir.serialize(module)
    table = _jax.ShapedArray((tracer.trips + 1, len(rows), COLUMNS), np.uint32)
    out_avals = (*program.out_avals, table)
    function = dataclasses.replace(
        program,
        mlir_module_serialized=serialized,
        out_tree=flat(out_avals),
        out_avals=out_avals,
        _out_named_shardings=(*program._out_named_shardings, None),
        out_shardings_hlo=(*program.out_shardings_hlo, None),
        _get_vjp=None,
    )
    return Traced(function, tuple(rows), bytes(program.mlir_module_serialized))


# --- the rows of a table, and which of them values are

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


class _Tables(NamedTuple):
    """What was made of code: rows, the MLIR value of their table, which rows it returns, and their identities.

    A row that is taken or returned has its number; a value from outside of the block has -1 minus its index in
    `outside`, which begins with the block's arguments.
    """

    rows: list[Row]
    outside: list[Any]
    table: Any
    returned: tuple[int, ...]
    identities: tuple[int, ...]


class _Scope:
    """The rows of a block, and which of them the values of the block are. Code in it may use values of `around`.

    Attributes:
        rows: the rows.
        made: the numbers of the rows that values are.
        identities: the identities of values.
        outside: what the block takes from outside of it, with numbers.
        parts: tables of single rows or several, and `order` the numbers of the rows in them.
        small: the small arrays that share a table, by their types.
    """

    def __init__(self, arguments: Iterable[Any], around: _Scope | None) -> None:
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
        self, inner: _Tables, where: str, place: str, arguments: Sequence[Any], given: Sequence[Any]
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


# --- the module, with fingerprints

# Of an operation, a scope, and a place: traces the code. Returns the new results, and what was made of the code.
_Trace = Callable[[Any, _Scope, str], tuple[list[Any], _Tables]]


class _Tracer:
    """Rewrites one module, in its context, which is entered. `trips` is how many trips of a loop are kept apart."""

    def __init__(self, module: Any, name: str, exact_at: tuple[str, int] | None) -> None:
        self._module, self._name, self._exact_at = module, name, exact_at
        self._symbols = _jax.ir.SymbolTable(module.operation)
        self._helpers: dict[Any, str] = {}
        self._functions: dict[str, tuple[str, _Tables]] = {}
        self._at = "main", 0  # the function that is rewritten, and how many of its operations were
        has_loops = any(one.name == _LOOP for one in mlir.iter_operations(module))
        self.trips = TRIPS if has_loops else 1
        branches = dict.fromkeys(("stablehlo.case", "stablehlo.if"), self._branches)
        self._code: dict[str, _Trace] = {_CALL: self._call, _LOOP: self._while, **branches}

    def main(self) -> list[Row]:
        tables = self._trace("main", self._symbols["main"])
        mlir.run_passes(self._module, "symbol-dce")
        return [dataclasses.replace(row, takes=tuple(t for t in row.takes if t >= 0)) for row in tables.rows]

    def _function(self, name: str) -> tuple[str, _Tables]:
        """A copy of a function that returns tables, too: its name and what was made of it."""
        if name not in self._functions:
            copy = self._symbols[name].operation.clone(_jax.ir.InsertionPoint(self._module.body))
            new = mlir.free_name(f"{name}_traced", self._symbols)
            copy.attributes["sym_name"] = _jax.ir.StringAttr.get(new)
            copy.attributes["sym_visibility"] = _jax.ir.StringAttr.get("private")
            self._symbols.insert(copy)
            self._functions[name] = new, self._trace(name, self._symbols[new])
        return self._functions[name]

    def _trace(self, name: str, function: Any) -> _Tables:
        ir = _jax.ir
        (block,) = function.regions[0].blocks
        outer, self._at = self._at, (name, 0)
        tables = self._block(block, None)
        self._at = outer
        _return_more(block, tables.table)
        type_ = function.type
        results = [*type_.results, tables.table.type]
        attributes = mlir.result_attributes(function)
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(list(type_.inputs), results))
        function.attributes["res_attrs"] = ir.ArrayAttr.get([*attributes, ir.DictAttr.get({})])
        return tables

    def _block(self, block: Any, around: _Scope | None) -> _Tables:
        """Computes fingerprints in a block, and puts them together in front of its terminator."""
        *operations, terminator = everything = list(block.operations)
        scope = _Scope(block.arguments, around)
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
        return _Tables(scope.rows, list(scope.outside), table, returned, identities)

    def _operation(self, operation: Any, scope: _Scope) -> None:
        """Adds the rows of an operation, and of the code in it."""
        name, source, at = operation.name, place(operation.location), self._at
        takes, before = scope.takes(operation.operands), tuple[int, ...]()
        kind = identity(name, _said(operation, scope), *map(scope.identity, operation.operands))
        results = list(operation.results)
        used = [mlir.is_used(value) for value in results]
        trace, inner, wide = self._code.get(name), tuple[int, ...](), dict[Any, Any]()
        if name == _MANUAL and (devices := self._devices(operation)) is not None:
            trace = functools.partial(self._manual, *devices)
        self._pass(1)
        if trace is None:
            self._pass(sum(_size(block) for region in operation.regions for block in region.blocks))
            if at == self._exact_at and any(used):
                wide = dict(zip(results, _results_in_float64(operation), strict=True))
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
            self._add(row, scope, value, type_ if is_used and self._exact_at in (None, at) else None)
            if is_used and other is not None and (type_ := _type(other)) is not None:
                self._add(dataclasses.replace(row, operation=EXACT, dtype=type_.dtype.name), scope, other, type_)

    def _add(self, row: Row, scope: _Scope, value: Any = None, type_: array_type.ArrayType | None = None) -> None:
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
        of_arrays = functools.partial(fingerprints_of, trips=self.trips)
        return self._inline(of_arrays, (str(values[0].type), len(values)), values)[0]

    def _joined(self, parts: Sequence[Any], order: Sequence[int] = ()) -> Any:
        if not parts:
            return self._nothing(0)
        table = _jax.hlo.concatenate(parts, dimension=1) if len(parts) > 1 else parts[0]
        if list(order) == sorted(order):
            return table
        # Where each row is, as `order` says of each table's row which one it is.
        places = np.argsort(order)
        take = lambda table: jnp.take(table, places, axis=1)  # noqa: E731
        return self._inline(take, ("in order", *map(int, places)), [table])[0]

    def _nothing(self, rows: int, count: int = 1) -> Any:
        return self._inline(lambda: _nothing(rows, self.trips, count), ("nothing", rows, count), [])[0]

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
        return self._called(self._helpers[key], list(operands))

    def _called(self, name: str, operands: list[Any]) -> tuple[Any, ...]:
        types = list(self._symbols[name].type.results)
        return tuple(_jax.call_op(types, _jax.ir.FlatSymbolRefAttr.get(name), operands).results)

    # --- operations with code: their new results, and what was made of the code

    def _call(self, operation: Any, scope: _Scope, source: str) -> tuple[list[Any], _Tables]:
        callee = _jax.ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
        name, inner = self._function(callee)
        operands = list(operation.operands)
        *results, table = self._called(name, operands)
        mlir.replace(operation, results)
        (block,) = self._symbols[name].regions[0].blocks
        resolve = scope.adopt(inner, f"@{callee}", source, block.arguments, operands)
        return results, inner._replace(table=table, returned=tuple(map(resolve, inner.returned)))

    def _while(self, operation: Any, scope: _Scope, source: str) -> tuple[list[Any], _Tables]:
        ir = _jax.ir
        condition, body = (region.blocks[0] for region in operation.regions)
        self._pass(_size(condition))
        inner = self._block(body, scope)
        resolve = scope.adopt(inner, "while", source, body.arguments, list(operation.operands))
        more = [ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(32)), inner.table.type]
        _, old = ([block.add_argument(type_, ir.Location.unknown()) for type_ in more] for block in (condition, body))
        with ir.InsertionPoint.at_block_terminator(body):
            now = self._inline(_repeated, ("repeated", len(inner.rows)), [*old, inner.table])
        _return_more(body, *now)
        begin = [_jax.ir_constant(np.zeros((), np.uint32)), self._nothing(len(inner.rows), 0)]
        *results, _, table = _rebuilt(operation, more, begin)
        return results, inner._replace(table=table, returned=tuple(resolve(row) for row in inner.returned if row >= 0))

    def _branches(self, operation: Any, scope: _Scope, source: str) -> tuple[list[Any], _Tables]:
        blocks = [region.blocks[0] for region in operation.regions]
        each = [self._block(block, scope) for block in blocks]
        counts = [len(inner.rows) for inner in each]
        returned: list[int] = []
        joined: Any = None
        for i, (block, inner) in enumerate(zip(blocks, each, strict=True)):
            returned += map(scope.adopt(inner, f"branch {i}", source, (), ()), inner.returned)
            with _jax.ir.InsertionPoint.at_block_terminator(block):
                parts = [self._nothing(sum(counts[:i])), inner.table, self._nothing(sum(counts[i + 1 :]))]
                joined = self._joined(parts)
            _return_more(block, joined)
        *results, table = _rebuilt(operation, [joined.type])
        identities = tuple(one for inner in each for one in inner.identities)
        return results, _Tables([], [], table, tuple(returned), identities)

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
        self, sharding: Any, devices: int, operation: Any, scope: _Scope, source: str
    ) -> tuple[list[Any], _Tables]:
        ir = _jax.ir
        (block,) = operation.regions[0].blocks
        inner = self._block(block, scope)
        resolve = scope.adopt(inner, "shard_map", source, block.arguments, list(operation.operands))
        own = ir.RankedTensorType(inner.table.type)
        _return_more(block, inner.table)
        shardings = [*_shardings(operation, "out_shardings"), sharding]
        operation.attributes["out_shardings"] = _jax.sdy.TensorShardingPerValueAttr.get(shardings)
        every = ir.RankedTensorType.get([devices * own.shape[0], *own.shape[1:]], own.element_type)
        *results, table = _rebuilt(operation, [every])
        key = ("of devices", devices, len(inner.rows))
        (table,) = self._inline(lambda table: _of_devices(table, devices), key, [table])
        return results, inner._replace(table=table, returned=tuple(map(resolve, inner.returned)))


def _said(operation: Any, scope: _Scope) -> int:
    """What is equal for equal names and attributes, of an operation and of those inside it that are not traced, if
    these take the same.
    """
    name, inside = operation.name, [operation]
    if name not in _ENTERED:
        inside = list(mlir.iter_operations(operation))
    elif name == _LOOP:  # whose condition is not traced
        inside += [inner for one in operation.regions[0].blocks[0].operations for inner in mlir.iter_operations(one)]
    if name == "stablehlo.constant" and math.prod(_jax.ir.RankedTensorType(operation.results[0].type).shape) > _SMALL:
        return identity(name)  # its fingerprint says as much
    attributes = [f"{key}={value}" for one in inside for key, value in mlir.readable_items(one.attributes)]
    taken, known = list[object](), dict[Any, str]()
    for number, one in enumerate(inside):
        if number:
            taken += [known.get(value) or scope.identity(value) for value in one.operands]
        blocks = [block for region in one.regions for block in region.blocks]
        for value in itertools.chain(*(block.arguments for block in blocks), one.results):
            known[value] = f"%{len(known)}"
    return identity(*(one.name for one in inside), *attributes, *taken)


def _size(block: Any) -> int:
    """How many operations are in a block, without those that end one."""
    every = [one for operation in block.operations for one in mlir.iter_operations(operation)]
    return sum(not one.name.endswith(".return") for one in every)


def _return_more(block: Any, *values: Any) -> None:
    *_, terminator = list(block.operations)
    with _jax.ir.InsertionPoint(terminator):
        _jax.ir.Operation.create(terminator.operation.name, operands=[*terminator.operands, *values])
    terminator.operation.erase()


def _shardings(operation: Any, name: str) -> list[Any]:
    every: Any = _jax.sdy.TensorShardingPerValueAttr(operation.attributes[name])
    return list(map(_jax.sdy.TensorShardingAttr, every.shardings))


def _alone(value: Any) -> Any:
    """The same value, computed once and not again with each fingerprint that needs it, as compilers do."""
    barrier = _jax.ir.Operation.create("stablehlo.optimization_barrier", results=[value.type], operands=[value])
    value.replace_all_uses_except(barrier.result, barrier)
    return barrier.result


def _type(value: Any) -> array_type.ArrayType | None:
    """The type of an array that fingerprints are made of; None of other values."""
    try:
        return array_type.read(value.type)
    except RefusedError:
        return None


def _rebuilt(operation: Any, types: Sequence[Any], operands: Sequence[Any] = ()) -> list[Any]:
    """The results of the same operation with more of them, and more operands, at the end; its regions move."""
    new = _jax.ir.Operation.create(
        operation.name,
        results=[*(value.type for value in operation.results), *types],
        operands=[*operation.operands, *operands],
        attributes=dict(mlir.items(operation.attributes)),
        regions=len(operation.regions),
    )
    for old_region, region in zip(operation.regions, new.regions, strict=True):
        old_region.blocks[0].append_to(region)
    results = list(new.results)
    mlir.replace(operation, results[: len(operation.results)])
    return results


# --- an operation once more, in float64: with the same operands, and with what it does inside

# What depends on the bits of floats, rounds on purpose, or runs code of its own; and what tells devices apart.
_OTHERS = "bitcast_convert reduce_precision custom_call composite rng rng_bit_generator partition_id".split()
# Of which precision, by which parts of floats.
_OF_PRECISION = ("algorithm", "precision_config", "result_accuracy")


def _results_in_float64(operation: Any) -> list[Any]:
    """The results in float64, computed at the insertion point.

    Raises:
        UnsupportedError: the operation has no floats that are narrower, or depends on how they are held.
    """
    name = operation.name.removeprefix("stablehlo.")
    attributes = {one for one, _ in mlir.items(operation.attributes)}
    is_plain = operation.name.startswith(("stablehlo.", "chlo.")) and name not in _OTHERS
    if not is_plain or "channel_handle" in attributes or all(_wide(one.type) == one.type for one in operation.operands):
        raise UnsupportedError(f"{operation.name} in float64")
    return _copied(operation, {})


def _copied(operation: Any, known: dict[Any, Any]) -> list[Any]:
    """The results of a copy of an operation, whose operands were replaced by these, or are converted."""
    ir = _jax.ir
    if operation.name == "stablehlo.constant":
        (result,) = operation.clone().results
        return [mlir.converted(result, _wide(result.type))]
    attributes = {name: value for name, value in mlir.items(operation.attributes) if name not in _OF_PRECISION}
    new = ir.Operation.create(
        operation.name,
        results=[_wide(result.type) for result in operation.results],
        operands=[known[one] if one in known else mlir.converted(one, _wide(one.type)) for one in operation.operands],
        attributes=attributes,
        regions=len(operation.regions),
    )
    for old_region, region in zip(operation.regions, new.regions, strict=True):
        for old in old_region.blocks:
            types = [_wide(argument.type) for argument in old.arguments]
            block = region.blocks.append(*types, arg_locs=[ir.Location.unknown()] * len(types))
            inside = {**known, **dict(zip(old.arguments, block.arguments, strict=True))}
            with ir.InsertionPoint(block):
                for one in old.operations:
                    inside.update(zip(one.operation.results, _copied(one.operation, inside), strict=True))
    return list(new.results)


def _wide(type_: Any) -> Any:
    """The type with floats of 64 bits in place of fewer."""
    ir = _jax.ir
    if not isinstance(type_, ir.RankedTensorType):
        return type_
    element = type_.element_type
    if isinstance(element, ir.ComplexType):
        return ir.RankedTensorType.get(type_.shape, ir.ComplexType.get(ir.F64Type.get()))
    return ir.RankedTensorType.get(type_.shape, ir.F64Type.get()) if isinstance(element, ir.FloatType) else type_


# --- what a trace keeps of an array that an operation makes: some numbers, whatever its size

# They are a checksum of where elements are infinite or no numbers; two checksums of integers, or two sums of floats,
# each element with a random weight that depends on its place; the root of the sum of their squares; and the largest
# element. If two runs make the same but for rounding, so are the sums but for as small a part of the root. Other arrays
# have other sums, unless somebody chose them so.
#
# Inside a program, a table is uint32[trips + 1,rows,9], with floats as their bits. It has a row for each result of an
# operation, from each of the first trips of the loop around it. In front are two more numbers: which trip of the
# outermost loop that was, from 1 on; and how often the operation ran in it, which is not always if it is in a branch.
# Behind these trips is the number of all trips, and how often the operation ran in them.

TRIPS = 32  # that are kept apart
COLUMNS = 9
_COUNTS, _CHECKS, _FLOATS = slice(0, 2), slice(2, 5), slice(5, 9)
# What is larger counts as infinite: so neither sums overflow, nor do masks hide what is beside them.
_LARGEST = np.float32(1e15)
_ODD = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77), np.uint32(0xC2B2AE3D)


def _mixed(numbers: Any, factor: np.uint32) -> Any:
    """Numbers that look random: a permutation of uint32."""
    numbers = (numbers + np.uint32(1)) * factor
    numbers = numbers ^ (numbers >> np.uint32(15))
    numbers = numbers * np.uint32(0x2C1B3C6D)
    return numbers ^ (numbers >> np.uint32(13))


def _weights(index: Any, factor: np.uint32) -> Any:
    """Weights between -1 and 1."""
    return lax.convert_element_type(_mixed(index, factor), np.float32) * np.float32(2**-31) - np.float32(1)


def fingerprints_of(*arrays: Any, trips: int) -> Any:
    """The table of arrays of one type, of any dtype and static shape, which are not empty."""
    x = jnp.stack([lax.reshape(one, (one.size,)) for one in arrays])
    if jnp.issubdtype(x.dtype, np.complexfloating):
        x = jnp.concatenate([lax.real(x), lax.imag(x)], axis=1)
    index = lax.broadcasted_iota(np.uint32, x.shape, 1)
    values = lax.convert_element_type(x, np.float32)
    none: Any = jnp.zeros(len(arrays), np.uint32)
    if jnp.issubdtype(x.dtype, np.floating):
        is_plain = lax.abs(values) < _LARGEST
        kind = jnp.where(values > 0, np.uint32(1), np.uint32(2)) + jnp.where(
            values != values, np.uint32(4), np.uint32(0)
        )
        special = jnp.where(is_plain, np.uint32(0), kind * _mixed(index, _ODD[2]))
        values = jnp.where(is_plain, values, np.float32(0))
        parts = [*(values * _weights(index, odd) for odd in _ODD[:2]), values * values, special]
        high, low, *sums, squares, special = _reduced(values, parts)
        floats, checks = [*sums, jnp.sqrt(squares)], [special, none, none]
    else:
        bits = _bits(x)
        high, low, *sums = _reduced(values, [_mixed(bits ^ _mixed(index, odd), odd) for odd in _ODD[:2]])
        floats, checks = [jnp.zeros(len(arrays), np.float32)] * 3, [none, *sums]
    numbers = [_of_floats(one) for one in (*floats, jnp.where(high >= -low, high, low))]
    once = jnp.stack([none + np.uint32(1)] * 2 + [*checks, *numbers], axis=1)
    counts = np.zeros((trips, len(arrays), COLUMNS), np.uint32)
    counts[-1, :, _COUNTS] = 1
    return jnp.concatenate([once[None], counts])  # a scatter would take longer to compile than all of the above


def _of_floats(floats: Any) -> Any:
    return lax.bitcast_convert_type(floats, np.uint32)


def _floats(table: Any) -> Any:
    return lax.bitcast_convert_type(table[..., _FLOATS], np.float32)


def _reduced(values: Any, parts: list[Any]) -> Any:
    """The largest value, the least, and sums of the parts, in one pass: compilers take long for many."""

    def both(a: Any, b: Any) -> Any:
        sums = [x + y for x, y in zip(a[2:], b[2:], strict=True)]
        return lax.max(a[0], b[0]), lax.min(a[1], b[1]), *sums

    start = -np.float32(np.inf), np.float32(np.inf), *(np.zeros((), part.dtype)[()] for part in parts)
    return lax.reduce((values, values, *parts), start, both, (1,))


def _bits(integers: Any) -> Any:
    """Integers and truth values as uint32, equal only for equal ones, but for few of 64 bits."""
    if integers.dtype.itemsize < 8:
        return lax.convert_element_type(integers, np.uint32)
    wide = lax.convert_element_type(integers, np.uint64)
    high = lax.convert_element_type(wide >> np.uint64(32), np.uint32)
    return lax.convert_element_type(wide, np.uint32) ^ _mixed(high, _ODD[2])


def _repeated(times: Any, table: Any, new: Any) -> tuple[Any, Any]:
    """How many trips a loop has made, and its table, after one more trip: `times` is the number before, uint32[]."""
    times, count = times + np.uint32(1), table[-1, :, 0]
    firsts = new[:-1].at[..., 0].set(jnp.where(new[:-1, :, 0] > 0, times, np.uint32(0)))
    # Of a loop inside, one trip out here adds several.
    trip = lax.broadcasted_iota(np.uint32, firsts.shape[:2], 0)
    place = jnp.minimum(trip - count, np.uint32(len(firsts) - 1))
    moved = jnp.take_along_axis(firsts, place[..., None], axis=0)
    firsts = jnp.where((trip < count)[..., None], table[:-1], moved)
    return times, jnp.concatenate([firsts, (table[-1] + new[-1])[None]])


def _of_devices(table: Any, devices: int) -> Any:
    """The table of code that several devices run, from their tables, one behind the other.

    Each device has a weight of its own, so that what two of them exchange is seen.
    """
    table = table.reshape(devices, len(table) // devices, *table.shape[1:])
    number = lax.iota(np.uint32, devices)[:, None, None, None]
    floats, checks = _floats(table), table[..., _CHECKS] * (_mixed(number, _ODD[1]) | np.uint32(1))
    weights = np.float32(1) + np.float32(0.5) * _weights(number, _ODD[0])
    roots, extremes = floats[..., 2:3], floats[..., 3:]
    largest, least = extremes.max(0), extremes.min(0)
    parts = [
        (floats[..., :2] * weights).sum(0),
        jnp.sqrt((roots * roots).sum(0)),
        jnp.where(largest >= -least, largest, least),
    ]
    return jnp.concatenate(
        [table[..., _COUNTS].max(0), checks.sum(0, dtype=np.uint32), *map(_of_floats, parts)], axis=-1
    )


def _nothing(rows: int, trips: int, count: int) -> Any:
    """The table of operations that did not run, in one trip or none."""
    table = np.zeros((trips + 1, rows, COLUMNS), np.uint32)
    table[[0, -1], :, 0] = count
    return jnp.asarray(table)
