"""Makes a function of a module: puts its parts together."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._errors import ExportError, UnsupportedError, cause, in_one_line
from jaxexp._kernel.export.export import Exporting
from jaxexp._kernel.function import sharding
from jaxexp._kernel.function.convention import NEWEST_VERSION
from jaxexp._kernel.function.data import E, ExportedData
from jaxexp._kernel.function.safety_check import DisabledSafetyCheck
from jaxexp._kernel.function.vjps import DerivedVjp
from jaxexp._kernel.module import locations, mlir
from jaxexp._kernel.module import main as mains
from jaxexp._kernel.module.custom_calls import check_stable
from jaxexp._readback.array_type import is_wide
from jaxexp._readback.read_back import on_any_platform

from . import signature, trees
from .module import INDEX, entry_of, name_of, names_of, parse, partitions_of, tidy, with_results_at
from .signature import Shape
from .trees import Tree


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
            signature.check(types, "argument")
            signature.check(result_types, "result")
            names, result_names = names_of(module)
            arguments = trees.of_arguments(names, self.args, self.kwargs)
            results = trees.of_results(result_names, self.results)
            in_shapes = shapes_of_arguments([signature.shape_of(type_) for type_ in types], self.shapes)
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
        arguments: Tree,
        results: Tree,
        in_shapes: Sequence[Shape],
        out_shapes: Sequence[Shape],
        is_symbolic: bool,
    ) -> Any:
        types, result_types = _types(module)
        in_avals = signature.avals(types, in_shapes)
        out_avals = signature.avals(result_types, out_shapes)
        shardings, result_shardings = signature.shardings(module, in_avals, out_avals)
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

    def _surround(self, module: Any, arguments: Tree, results: Tree, symbolic: Sequence[Any] | None) -> None:
        """Makes `main` take its arguments, and return its results, in the order of the call; before them, it takes the
        platform, if there are several. `symbolic` are the abstract values of arguments with symbolic shapes."""
        ir = _jax.ir
        types, result_types = _types(module)
        attributes = mlir.argument_attributes(module)
        new_types = [types[i] for i in arguments.order]
        new_attributes = [with_results_at(attributes[i], results.order) for i in arguments.order]
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
    return [signature.shape_of(type_) for type_ in _types(module)[1]]


def _serialized(module: Any) -> bytes:
    try:
        return mlir.serialize(module)
    except jax.errors.JaxRuntimeError as error:
        raise UnsupportedError(
            f"the module has something that is not in the StableHLO of four weeks ago: {in_one_line(error)}"
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
        raise UnsupportedError(f"differentiable=True: JAX has no derivative of it: {in_one_line(error)}") from cause(
            error
        )


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
        raise ExportError(f"shapes= has the key {wrong[0]!r}, and the module has {len(known)} arguments, from 0")
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
    shape = tuple(_jax.symbolic_shape(given, scope=scope) if isinstance(given, str) else given)
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
