"""`from_stablehlo`: a module of another producer as a function."""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from jaxexp import _jax
from jaxexp._api.exported import Exported
from jaxexp._errors import ExportError, ExportTypeError, ForeignModuleError, UnsupportedError, cause, in_one_line
from jaxexp._kernel.artifact.words import check_flags
from jaxexp._kernel.codec.dtypes import has_number
from jaxexp._kernel.export.export import Exporting
from jaxexp._kernel.export.lower import check_platforms, default_export_platform, platform_names
from jaxexp._kernel.function import sharding
from jaxexp._kernel.function.convention import NEWEST_VERSION
from jaxexp._kernel.function.data import E, ExportedData
from jaxexp._kernel.function.safety_check import DisabledSafetyCheck
from jaxexp._kernel.function.vjps import DerivedVjp
from jaxexp._kernel.module import locations, mlir
from jaxexp._kernel.module import main as mains
from jaxexp._kernel.module.custom_calls import check_stable
from jaxexp._kernel.module.meshes import of_operation
from jaxexp._public import public
from jaxexp._readback.array_type import DTYPES, is_wide
from jaxexp._readback.read_back import on_any_platform

from . import module as modules
from . import source
from .module import INDEX, entry_of, name_of, names_of, parse, partitions_of, tidy, with_results_at

if TYPE_CHECKING:
    from typing_extensions import Buffer


# --- the signature of `main`: abstract values and shardings, from its types and attributes ----------------------------


Shape = tuple[Any, ...]


def check_signature(types: Sequence[Any], what: str) -> None:
    """Compares types of `main` with what an artifact can have.

    Args:
        types: the types.
        what: "argument" or "result", for the message.

    Raises:
        UnsupportedError: a value is no array, or JAX has no such array.
    """
    for index, type_ in enumerate(types):
        value = f"{what} {index} of the module"
        if not isinstance(type_, _jax.ir.RankedTensorType):
            raise UnsupportedError(f"{value} has the type {type_}, and {_advice(type_)}")
        if type_.encoding is not None:
            raise UnsupportedError(
                f"{value} has the type {type_}: JAX has no bounds and no layouts in types. Let its producer write "
                "constant shapes, or dimensions without bounds"
            )
        dtype = DTYPES.get(str(type_.element_type))
        if dtype is None or not has_number(dtype):
            raise UnsupportedError(f"{value} has elements of type {type_.element_type}, which no artifact can have")


def _advice(type_: Any) -> str:
    if str(type_).startswith("tuple"):
        return "a call takes and returns arrays: let the producer return several results instead of a tuple"
    if type_ == _jax.token_type():
        return "only JAX's own effects have tokens: leave out what is printed, sent or received"
    return "a call takes and returns arrays"


def shape_of(type_: Any) -> tuple[int | None, ...]:
    """The shape of an array type; None for each dimension that is not known."""
    return tuple(None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank))


def avals(types: Sequence[Any], shapes: Sequence[Shape]) -> tuple[Any, ...]:
    """Abstract values of these types with shapes that may be symbolic."""
    return tuple(
        _jax.ShapedArray(shape, DTYPES[str(type_.element_type)]) for type_, shape in zip(types, shapes, strict=True)
    )


def shardings_of(module: Any, in_avals: Sequence[Any], out_avals: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The shardings of main's arguments and of its results by their attributes; None where there is none."""
    meshes = {
        operation.attributes["sym_name"].value: _mesh(operation)
        for operation in module.body.operations
        if operation.operation.name == "sdy.mesh"
    }

    def of(attributes: Sequence[Any], avals: Sequence[Any], what: str) -> list[Any]:
        return [
            _sharding(meshes, _jax.ir.DictAttr(entry), aval, f"{what} {i} of the module")
            for i, (entry, aval) in enumerate(zip(attributes, avals, strict=True))
        ]

    results = mlir.result_attributes(_jax.ir.SymbolTable(module.operation)["main"])
    return of(mlir.argument_attributes(module), in_avals, "argument"), of(results, out_avals, "result")


def _mesh(operation: Any) -> Any:
    if (mesh := of_operation(operation)) is not None:
        return mesh
    if len(_jax.sdy.MeshAttr(operation.attributes["mesh"]).device_ids) > 1:
        raise UnsupportedError(
            f"the mesh @{operation.attributes['sym_name'].value} has an order of devices of its own, which an artifact "
            "cannot store: let its producer leave out device_ids"
        )
    return _jax.AbstractMesh((), ())


def _sharding(meshes: dict[str, Any], attributes: Any, aval: Any, what: str) -> Any:
    if "sdy.sharding" not in attributes:
        return None
    sharding = _jax.sdy.TensorShardingAttr(attributes["sdy.sharding"])
    mesh = meshes.get(str(sharding.mesh_or_ref).removeprefix("@"))
    if mesh is None or len(sharding.dimension_shardings) != aval.ndim:
        raise ForeignModuleError("", f"a sharding for {what}, of type {aval}", str(sharding))
    if len(sharding.unreduced_axes):
        raise UnsupportedError(f"{what} is not yet reduced over devices ({sharding}): let its producer reduce it")
    if mesh.size == 1:
        return None
    entries = [_entry(_jax.sdy.DimensionShardingAttr(d), what) for d in sharding.dimension_shardings]
    return _jax.NamedSharding(mesh, _jax.PartitionSpec(*entries))


def _entry(dimension: Any, what: str) -> Any:
    axes = [_jax.sdy.AxisRefAttr(axis) for axis in dimension.axes]
    if any(axis.sub_axis_info is not None for axis in axes):
        raise UnsupportedError(f"{what} is sharded over a part of a mesh axis, which an artifact cannot store")
    names = tuple(axis.name for axis in axes)
    return (names[0] if len(names) == 1 else names) if names else None


# --- trees ------------------------------------------------------------------------------------------------------------
# How the arguments and results of a module stand in a call: by names that the module has, or as the caller says.


# JAX's names: of arguments, as in params['w'][0], and of results, as in result['loss'].
_STEP_OF_PATH = r"\[(\d{1,9}|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]"
_ARGUMENT = re.compile(rf"([A-Za-z_]\w*)((?:{_STEP_OF_PATH}){{0,64}})")
_RESULT = re.compile(rf"(?:result)?((?:{_STEP_OF_PATH}){{0,64}})")


class Arrangement(NamedTuple):
    """A tree, and for each leaf the index of the module's argument or result.

    Attributes:
        tree: the tree of the call.
        order: the indices.
    """

    tree: Any
    order: tuple[int, ...]

    @property
    def is_flat(self) -> bool:
        """Whether the order of the leaves is that of the module."""
        return self.order == tuple(range(len(self.order)))


def of_arguments(
    names: Sequence[str | None], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Arrangement:
    """The tree of the arguments.

    Args:
        names: the names that the module has for them.
        args, kwargs: what the caller passes in a call, with indices in the place of arrays; None for both if the
            module decides.

    Raises:
        ExportError: an index is not one of an argument, or not all of them are there once.
    """
    if args is None and kwargs is None:
        return Arrangement(jax.tree_util.tree_structure((_named_arguments(names), {})), tuple(range(len(names))))
    found = _given(((*(args or ()),), dict(kwargs or {})), len(names), "args and kwargs", "argument")
    if missing := sorted({*range(len(names))} - {*found.order}):
        raise ExportError(f"args and kwargs have to name each argument of the module; {_list(missing)} is missing")
    return found


def of_results(names: Sequence[str | None], results: Any) -> Arrangement:
    """The tree of the results. `results` may leave some of them out."""
    if results is None:
        return Arrangement(jax.tree_util.tree_structure(_named_results(names)), tuple(range(len(names))))
    return _given(results, len(names), "results", "result")


def _given(tree: Any, count: int, option: str, what: str) -> Arrangement:
    leaves, structure = jax.tree_util.tree_flatten(tree)
    if wrong := [leaf for leaf in leaves if type(leaf) is not int or not 0 <= leaf < count]:
        raise ExportError(
            f"{option}: the leaves have to be the indices of the module's {what}s, 0 to {count - 1}, not {wrong[0]!r}"
            if count
            else f"{option}: the module has no {what}s, not {len(leaves)}"
        )
    if twice := sorted(leaf for leaf, times in collections.Counter(leaves).items() if times > 1):
        raise ExportError(f"{option} has the {what} {_list(twice)} more than once")
    return Arrangement(structure, tuple(leaves))


def _list(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))


def _named_arguments(names: Sequence[str | None]) -> tuple[Any, ...]:
    """The arguments as JAX's names say; one after the other if these do not say it."""
    matches = [_ARGUMENT.fullmatch(name or "") for name in names]
    found = _nested([(match[1], *_steps(match[2])) for match in matches if match is not None])
    top = tuple(found.values()) if isinstance(found, dict) else None
    return top if top is not None and _is_in_order(top, len(names)) else tuple(range(len(names)))


def _named_results(names: Sequence[str | None]) -> Any:
    flat: Any = tuple(range(len(names))) if len(names) != 1 else 0
    matches = [None if name is None else _RESULT.fullmatch(name) for name in names]
    found = _nested([_steps(match[1]) for match in matches if match is not None])
    return found if found is not None and _is_in_order(found, len(names)) else flat


def _steps(text: str) -> tuple[str | int, ...]:
    try:
        return tuple(ast.literal_eval(step) for step in re.findall(_STEP_OF_PATH, text))
    except (SyntaxError, ValueError):  # escapes that are none
        return (text,)


def _nested(paths: Sequence[tuple[str | int, ...]]) -> Any | None:
    """The tree with leaf i at paths[i], of dicts and tuples; None if there is none."""
    root: dict[Any, Any] = {}
    for leaf, path in enumerate(paths):
        node = root
        for step in (None, *path[:-1]) if path else ():
            node = node.setdefault(step, {})
            if not isinstance(node, dict):
                return None
        last = path[-1] if path else None
        if last in node:
            return None
        node[last] = leaf
    return _as_tree(root.get(None))


def _as_tree(node: Any) -> Any | None:
    if not isinstance(node, dict):
        return node
    children = {key: _as_tree(child) for key, child in node.items()}
    if None in children.values():
        return None
    if all(isinstance(key, str) for key in children):
        return children
    return tuple(children[i] for i in range(len(children))) if {*children} == {*range(len(children))} else None


def _is_in_order(tree: Any, count: int) -> bool:
    return jax.tree_util.tree_leaves(tree) == list(range(count))


# --- makes a function of a module: puts its parts together ------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Importing:
    """The options of `from_stablehlo`, and the class of the function that it makes."""

    made: type[ExportedData]
    entry: str | None
    name: str | None
    platforms: tuple[str, ...]
    shapes: Mapping[int, Any] | None
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    results: Any
    checks: Sequence[DisabledSafetyCheck]
    differentiable: bool

    def function(self, bytecode: bytes) -> Any:
        """The function of a module.

        Raises:
            ForeignModuleError, UnsupportedError, ExportError: as `from_stablehlo` says.
        """
        with _jax.make_ir_context() as context, _jax.ir.Location.unknown(context):
            module = parse(bytecode, context)
            entry = entry_of(module, self.entry)
            tidy(module, entry)
            check_stable(module, {target for check in self.checks if (target := check.is_custom_call())})
            types, result_types = _types(module)
            check_signature(types, "argument")
            check_signature(result_types, "result")
            names, result_names = names_of(module)
            arguments = of_arguments(names, self.args, self.kwargs)
            results = of_results(result_names, self.results)
            in_shapes = shapes_of_arguments([shape_of(type_) for type_ in types], self.shapes)
            is_symbolic = any(map(_jax.is_symbolic_dim, (dim for shape in in_shapes for dim in shape)))
            out_shapes = None
            if is_symbolic:
                out_shapes = shapes_of_results(in_shapes, lambda sizes: _result_shapes(_refined(module, sizes)))
            elif _is_dynamic(module):
                module = _refined(module, in_shapes)
        with module.context as context, _jax.ir.Location.unknown(context):
            if out_shapes is None:
                out_shapes = _result_shapes(module)
            exported = self._exported(module, entry, arguments, results, in_shapes, out_shapes, is_symbolic)
        return as_written(exported) if self.differentiable else exported

    def _exported(
        self,
        module: Any,
        entry: str,
        arguments: Arrangement,
        results: Arrangement,
        in_shapes: Sequence[Shape],
        out_shapes: Sequence[Shape],
        is_symbolic: bool,
    ) -> Any:
        types, result_types = _types(module)
        in_avals = avals(types, in_shapes)
        out_avals = avals(result_types, out_shapes)
        shardings, result_shardings = shardings_of(module, in_avals, out_avals)
        chosen_avals = tuple(in_avals[i] for i in arguments.order)
        is_specialized = is_symbolic or len(self.platforms) > 1
        if is_specialized or not (arguments.is_flat and results.is_flat and len(results.order) == len(result_types)):
            self._surround(module, arguments, results, chosen_avals if is_symbolic else None)
        mains.say_whether_polymorphic(module, is_specialized)
        return self.made(
            fun_name=self.name or name_of(module) or entry,
            in_tree=arguments.tree,
            in_avals=chosen_avals,
            out_tree=results.tree,
            out_avals=tuple(out_avals[i] for i in results.order),
            _in_named_shardings=tuple(shardings[i] for i in arguments.order),
            _out_named_shardings=tuple(result_shardings[i] for i in results.order),
            in_shardings_hlo=(None,) * len(arguments.order),
            out_shardings_hlo=(None,) * len(results.order),
            nr_devices=partitions_of(module),
            platforms=self.platforms,
            ordered_effects=(),
            unordered_effects=(),
            disabled_safety_checks=self.checks,
            mlir_module_serialized=_serialized(module),
            calling_convention_version=NEWEST_VERSION,
            module_kept_var_idx=tuple(range(len(arguments.order))),
            uses_global_constants=is_specialized,
            _get_vjp=None,
        )

    def _surround(
        self, module: Any, arguments: Arrangement, results: Arrangement, symbolic: Sequence[Any] | None
    ) -> None:
        """Makes `main` take its arguments, and return its results, in the order of the call; before them, it takes the
        platform, if there are several. `symbolic` are the abstract values of arguments with symbolic shapes."""
        ir = _jax.ir
        types, result_types = _types(module)
        attributes = mlir.argument_attributes(module)
        new_types = [types[i] for i in arguments.order]
        places = {old: new for new, old in enumerate(results.order)}
        new_attributes = [with_results_at(attributes[i], places) for i in arguments.order]
        prefix = int(len(self.platforms) > 1)
        if prefix:
            new_types.insert(0, ir.RankedTensorType.get([], ir.IntegerType.get_signless(32)))
            new_attributes.insert(0, ir.DictAttr.get({INDEX: ir.StringAttr.get("_platform_index")}))
        back = sorted(range(len(types)), key=arguments.order.__getitem__)

        def operands(given: Sequence[Any]) -> Sequence[Any]:
            arrays = given[prefix:]
            if symbolic is not None:  # for the assertions
                mains.dim_values_of(module, symbolic, arguments.tree, arrays)
            return [arrays[i] for i in back]

        new_results = [result_types[i] for i in results.order]
        mains.surround_main(
            module, new_types, new_results, operands, argument_attributes=new_attributes, results=results.order
        )


def _types(module: Any) -> tuple[list[Any], list[Any]]:
    type_ = _jax.ir.SymbolTable(module.operation)["main"].type
    return list(type_.inputs), list(type_.results)


def _is_dynamic(module: Any) -> bool:
    """Whether a shape in the module is not known."""
    values = (value.type for operation in mlir.iter_operations(module) for value in operation.results)
    return any(
        isinstance(t, _jax.ir.RankedTensorType) and not t.has_static_shape for t in (*values, *_types(module)[1])
    )


def _refined(module: Any, in_shapes: Sequence[Shape]) -> Any:
    """A copy of a module for these constant shapes, in a context of its own.

    Raises:
        UnsupportedError: the module refuses them, or they do not determine all other shapes.
    """
    copied = mlir.copy(module)
    with copied.context as context, _jax.ir.Location.unknown(context):
        types, result_types = _types(copied)
        new_types = [
            _jax.ir.RankedTensorType.get(shape, type_.element_type)
            for shape, type_ in zip(in_shapes, types, strict=True)
        ]
        attributes = mlir.argument_attributes(copied)
        mains.surround_main(copied, new_types, result_types, lambda given: given, argument_attributes=attributes)
        try:
            return _jax.refine_shapes(copied)
        except ValueError as error:
            reason = mlir.why_not_refined(error) or in_one_line(error)
            sizes = ", ".join(f"({', '.join(map(str, shape))})" for shape in in_shapes)
            raise UnsupportedError(
                f"with arguments of the shapes {sizes}, the module's other shapes cannot be inferred: {reason}"
            ) from cause(error)


def _result_shapes(module: Any) -> list[Shape]:
    return [shape_of(type_) for type_ in _types(module)[1]]


def _serialized(module: Any) -> bytes:
    try:
        return mlir.serialize(module)
    except jax.errors.JaxRuntimeError as error:
        raise UnsupportedError(
            f"the module has a part that is newer than the StableHLO of four weeks ago, which artifacts hold: "
            f"{in_one_line(error)}"
        ) from cause(error)


class _ReadBackVjp(DerivedVjp):
    """The VJP of a function that was exported again from what was read back."""

    __slots__ = ()

    def __call__(self, primal: Any) -> Any:
        (again,) = self.of
        return again.vjp()


def as_written(exported: E) -> E:
    """The function with VJPs of any order. The first is made now, so that a function without one is refused here.

    Raises:
        UnsupportedError: an operation has no derivative, or cannot be read back.
    """
    if _jax.any_symbolic(exported.in_avals):
        raise UnsupportedError("differentiable=True needs constant shapes: give sizes in shapes=, or leave it out")

    def flat(*leaves: Any) -> Any:
        return tuple(on_any_platform(exported, leaves, differentiable=True))

    flat.__name__ = flat.__qualname__ = exported.fun_name
    jitted: Any = jax.jit(
        flat,
        in_shardings=tuple(map(sharding.for_jit, exported._in_named_shardings)),
        out_shardings=tuple(map(sharding.for_jit, exported._out_named_shardings)),
    )
    checks = exported.disabled_safety_checks
    # Without the lines of code that led here.
    how = Exporting(type(exported), exported.platforms, checks, None, None, None, True, (locations.callers(),))
    wide = any(map(is_wide, (*exported.in_avals, *exported.out_avals)))
    try:
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            again = how.export(jitted, exported.in_avals, {})
            differentiable = dataclasses.replace(exported, _get_vjp=_ReadBackVjp(again))
            differentiable.vjp()
            return differentiable
    except UnsupportedError as error:
        raise UnsupportedError(f"differentiable=True: {error}") from cause(error)
    except (ValueError, NotImplementedError, TypeError) as error:
        raise UnsupportedError(
            f"differentiable=True: JAX cannot differentiate the module: {in_one_line(error)}"
        ) from cause(error)


_Known = tuple[int | None, ...]

# From one size to another, sizes for which results are looked at: the first is not a multiple of the usual tiles.
_FIRST, _STEP = 6, 5


def shapes_of_arguments(known: Sequence[_Known], given: Mapping[int, Any] | None) -> list[Shape]:
    """The shapes of all arguments; the dimensions of the given ones may be symbolic.

    Args:
        known: the shapes in the module.
        given: shapes by the index of the argument: texts such as "batch, 3", or tuples.

    Raises:
        ExportError: a shape is missing, or contradicts the module.
    """
    given = dict(given or {})
    if wrong := [index for index in given if index not in range(len(known))]:
        raise ExportError(
            f"shapes= has the key {wrong[0]!r}, but the module has {len(known)} arguments, numbered from 0"
        )
    scope = next((dim.scope for shape in given.values() for dim in _symbolic(shape)), None) or _jax.SymbolicScope()
    found = []
    for index, shape in enumerate(known):
        if index in given:
            found.append(_agreed(index, shape, given[index], scope))
        elif None in shape:
            raise ExportError(
                f"argument {index} of the module has the shape ({_text(shape)}): say its dimensions in shapes=, as "
                f"names or sizes, such as shapes={{{index}: {_example(shape)!r}}}"
            )
        else:
            found.append(shape)
    return found


def _symbolic(shape: Any) -> list[Any]:
    return [] if isinstance(shape, str) else [dim for dim in shape if _jax.is_symbolic_dim(dim)]


def _agreed(index: int, known: _Known, given: Any, scope: Any) -> Shape:
    try:
        shape = tuple(_jax.symbolic_shape(given, scope=scope) if isinstance(given, str) else given)
    except ValueError as error:
        raise ExportError(
            f"shapes= gives argument {index} {given!r:.80}, which is not a shape such as {_example(known)!r}: "
            f"{in_one_line(error)}"
        ) from cause(error)
    if len(shape) != len(known) or any(size not in (None, dim) for size, dim in zip(known, shape, strict=True)):
        raise ExportError(
            f"shapes= gives argument {index} the shape ({_text(shape)}), and in the module it is ({_text(known)})"
        )
    return shape


def _text(shape: Sequence[Any]) -> str:
    return ", ".join("?" if dim is None else str(dim) for dim in shape)


def _example(shape: _Known) -> str:
    letters = itertools.chain("abcdefgh", itertools.repeat("i"))
    return ", ".join(next(letters) if dim is None else str(dim) for dim in shape)


def shapes_of_results(shapes: Sequence[Shape], refined: Callable[[Sequence[Shape]], Sequence[Shape]]) -> list[Shape]:
    """The shapes of the results for symbolic shapes of the arguments: what StableHLO's own inference finds for several
    sizes, as linear expressions of the dimension variables.

    Args:
        shapes: the shapes of the arguments.
        refined: finds the shapes of the results for constant shapes of the arguments.

    Raises:
        UnsupportedError: they are not linear.
    """
    dims = {name: dim for shape in shapes for dim in shape for name in _jax.dim_vars(dim)}
    names = sorted(dims)
    variables = [_jax.symbolic_shape(name, scope=dims[name].scope)[0] for name in names]

    def at(sizes: Sequence[Any]) -> Sequence[Shape]:
        return refined([tuple(_jax.evaluate_shape(shape, names, *sizes)) for shape in shapes])

    base = [_FIRST + _STEP * i for i in range(len(names))]
    first = at(base)
    slopes = [at(sizes) for sizes in _one_more(base)]
    other = [size + _FIRST + i for i, size in enumerate(base)]
    expected = at(other)
    found = []
    for result, shape in enumerate(first):
        expressions = []
        for axis, size in enumerate(shape):
            factors = [more[result][axis] - size for more in slopes]
            constant = size - sum(f * b for f, b in zip(factors, base, strict=True))
            if constant + sum(f * o for f, o in zip(factors, other, strict=True)) != expected[result][axis]:
                raise UnsupportedError(
                    f"dimension {axis} of result {result} is not linear in {', '.join(names)}: import the module with "
                    "sizes in shapes="
                )
            expressions.append(sum((f * v for f, v in zip(factors, variables, strict=True) if f), start=constant))
        found.append(tuple(expressions))
    return found


def _one_more(base: Sequence[int]) -> Iterator[list[int]]:
    for i in range(len(base)):
        yield [size + (i == j) for j, size in enumerate(base)]


# --- the public function ----------------------------------------------------------------------------------------------


def _check_options(entry: Any, name: Any, shapes: Any, args: Any, kwargs: Any) -> None:
    """Raises an ExportTypeError for options of other types than `from_stablehlo` says."""
    for option, value in (("entry", entry), ("name", name)):
        if value is not None and not isinstance(value, str):
            raise ExportTypeError(f"{option}= takes the name of a function, not {value!r:.80}")
    if shapes is not None and not isinstance(shapes, Mapping):
        raise ExportTypeError(
            "shapes= takes a dict of shapes by the indices of the module's arguments, such as {0: 'batch, 3'}, not "
            f"{shapes!r:.80}"
        )
    for index, shape in (shapes or {}).items():
        is_shape = isinstance(shape, str) or (isinstance(shape, Sequence) and all(map(_is_dim, shape)))
        if not is_shape or isinstance(shape, bytes):
            raise ExportTypeError(
                f"shapes= takes the shape of argument {index!r:.80} as a text of names and sizes, such as 'batch, 3', "
                f"or as a tuple of sizes and symbolic dimensions, not {shape!r:.80}"
            )
    if args is not None and (not isinstance(args, Sequence) or isinstance(args, (str, bytes))):
        raise ExportTypeError(
            "args= takes the positional arguments of a call in a tuple, with the indices of the module's arguments in "
            f"place of arrays, such as args=(0, 1), not {args!r:.80}"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ExportTypeError(
            "kwargs= takes the arguments by keyword in a dict, with the indices of the module's arguments in place of "
            f"arrays, such as kwargs={{'x': 0}}, not {kwargs!r:.80}"
        )


def _is_dim(given: Any) -> bool:
    """Whether it is one of the dimensions of a shape."""
    return _jax.is_symbolic_dim(given) or (hasattr(given, "__index__") and not isinstance(given, bool))


@public
def from_stablehlo(
    module: str | os.PathLike[str] | Buffer,
    *,
    entry: str | None = None,
    name: str | None = None,
    platforms: Sequence[str] | None = None,
    shapes: Mapping[int, Any] | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    results: Any = None,
    disabled_checks: Sequence[DisabledSafetyCheck] = (),
    differentiable: bool = False,
) -> Exported:
    """Makes a function from a StableHLO module of another program, such as PyTorch, TensorFlow or Reactant.jl.

    The signature comes from the module's public function: its types, shardings and donations. Names of arguments and
    results in JAX's form, such as ``params['w']``, group them into trees. Without such names, a call takes arrays by
    position, and returns an array or a tuple of arrays.

    A module is a program. Import only modules that you trust, or save the function and `load` it with a policy.

    Args:
        module: StableHLO text, MLIR bytecode (a portable artifact or not), or the path of a file with one of them. A
            str is text if it contains a line break or a brace. Text is parsed in its own process, which takes about a
            second.
        entry: the name of the function to call. The default is ``main``, or the only public function.
        name: the name of the new function. The default is the name of the module, or of the function in it.
        platforms: the platforms that the function may be called on, as in `export`. The default is
            `default_export_platform()`. Without custom calls, StableHLO is the same on all platforms: name all that you
            need.
        shapes: the shapes of arguments that have dynamic dimensions (``tensor<?x3xf32>``), by the index of the argument
            in the module. A shape is a text, such as ``"batch, 3"`` with names and sizes, or a tuple. Names become
            dimension variables, and the shapes of results follow from StableHLO's shape inference for some sizes.
        args, kwargs: the arguments of a call: pytrees with the indices of the module's arguments in place of arrays,
            such as ``args=({"w": 0, "b": 1}, 2)``. Each index must occur once.
        results: the result of a call, in the same form. Results of the module that it leaves out are not returned.
        disabled_checks: safety checks to leave out, as in `export`: custom calls that are not known to be stable.
        differentiable: whether the function gets VJPs. They differentiate the module as it is written: stopped
            gradients and custom derivatives of its source are lost. A cotangent of 0 stays 0, also times infinity or
            NaN. The first VJP is made now; `serialize` and `save` take any ``vjp_order``.

    Raises:
        DeserializationError: the input is not a StableHLO module, or `entry` is needed to choose one of its functions.
        UnsupportedError: the module has something that no artifact can hold, such as operations of other dialects,
            tuples, tokens, replicas or quantized types; the message names it. With `differentiable`, also operations
            without a derivative: a loop of unknown length, a custom call, the bits of a number.
        ExportError: custom calls are not known to be stable; or `shapes`, `args`, `kwargs` or `results` do not fit the
            module.
        TypeError: `module` is neither text, bytes nor a path.
        OSError: the file cannot be read, or is a pipe or a device.

    Example:
        >>> model = from_stablehlo("model.mlirbc", args=({"weight": 0, "bias": 1}, 2), platforms=["cpu", "cuda"])
        >>> model.save("model.jaxexp")
    """
    chosen = () if platforms is None else platform_names(platforms)
    checks = DisabledSafetyCheck.coerce_all(disabled_checks)
    check_flags(differentiable=differentiable)
    _check_options(entry, name, shapes, args, kwargs)
    how = Importing(
        Exported, entry, name, chosen or (default_export_platform(),), shapes, args, kwargs, results, checks,
        differentiable,
    )  # fmt: skip
    content, file = source.contents(module)
    with modules.named(file):
        exported: Exported = how.function(source.bytecode(content))
        check_platforms(exported.fun_name, exported.platforms)
        return exported
