"""Programs whose first argument is a dict of weights, and these weights: made, found, specialized and saved."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxexp import _jax
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError
from jaxexp._kernel.artifact.words import listed
from jaxexp._kernel.call import first_argument
from jaxexp._kernel.call.primitive import SPECIALIZING, check
from jaxexp._kernel.call.specialize import specialize, specialized_avals
from jaxexp._kernel.call.trees import names_in_first
from jaxexp._kernel.codec import treedefs
from jaxexp._kernel.function import data
from jaxexp._kernel.function.convention import Arguments
from jaxexp._kernel.function.data import E, ExportedData, Written
from jaxexp._kernel.function.vjps import DerivedVjp
from jaxexp._kernel.io.lock import folder_locked
from jaxexp._kernel.module import main, mlir, runnable
from jaxexp._kernel.write import serialize
from jaxexp._kernel.write.options import Writing
from jaxexp._weights.arrays.weights import ALONE, Weights, names_in
from jaxexp._weights.files import saving
from jaxexp._weights.files.header import Table
from jaxexp._weights.files.places import SUFFIX, is_name_beside, name_beside
from jaxexp._weights.files.reading import Tensors


def given(program: ExportedData, arrays: Mapping[str, Any], other_names: Mapping[str, str] | None = None) -> Weights:
    """Arrays that fit a program as its weights. `other_names` has each further name of a tied weight, with its own."""
    return Weights(_types(program), arrays, (), other_names)


def without_arrays(program: ExportedData, like: Any) -> Weights:
    """The weights of a program before there are arrays. They are tied as those of another function are, if `like` is
    such weights of the same names.
    """
    found = given(program, {})
    return given(program, {}, like.other_names) if isinstance(like, Weights) and list(like) == list(found) else found


def of_leaves(program: ExportedData, leaves: Mapping[str, Any], other_names: dict[str, str]) -> Weights:
    """The same for whatever JAX puts in place of arrays: tracers, specs, axes."""
    return Weights(_types(program), leaves, (), other_names, {}, leaves)


def stored(program: ExportedData, tensors: Callable[[Table, Mapping[str, Any]], Tensors]) -> Weights:
    """The weights that the trailer of a program names; a DeserializationError if they do not fit it. None is read.

    A function finds them, given the trailer's table and the abstract value of each weight by name.
    """
    found = data.weights_in_trailer(program)
    assert found is not None
    table = Table.of_trailer(*found)
    names = [tensor.name for tensor in table.tensors]
    if names != names_in_first(program.in_tree):
        raise DeserializationError(
            "trailer.weights.tensors", "the names in the dict that is the first argument", listed(names, repr, most=8)
        )
    types = _types(program)
    return Weights(types, tensors(table, types), (), table.named_otherwise())


def specialized(program: E, args_specs: tuple[Any, ...], kwargs_specs: dict[str, Any]) -> E:
    """A program for other shapes of the arguments that are no weights."""
    rest = first_argument.without(program)
    # Here, because the errors for all arguments would count the weights, too.
    check(rest, specialized_avals(rest, args_specs, kwargs_specs), SPECIALIZING)
    return specialize(program, (_types(program), *args_specs), kwargs_specs)


def _types(program: ExportedData) -> dict[str, Any]:
    """The abstract values of the weights of a program, by their names."""
    args, _ = program.in_tree.children()
    avals = program.in_avals[: first_argument.count(program.in_tree)]
    types: dict[str, Any] = jax.tree_util.tree_unflatten(args.children()[0], avals)
    return types


def save(
    program: ExportedData,
    weights: Weights,
    path: str | os.PathLike[str],
    how: Writing,
    name: str | None,
    max_file_size: int | None,
) -> None:
    """`BoundExported.save`."""
    folder, program_name = os.path.split(os.fsdecode(path))
    saving.check_is_no_link(path, "weights")
    if name is not None and not isinstance(name, str):
        raise ExportTypeError(
            f"saving {program.fun_name}: weights= takes the name of the file for its weights, not {type(name)}: to "
            "save other weights, pass them to with_weights, and save the result"
        )
    if name is not None and not is_name_beside(name):
        raise ExportError(
            f"saving {program.fun_name}: weights={name!r} has to be the name of a {SUFFIX} file in the folder of the "
            f"program, such as {name_beside(program_name, SUFFIX)!r}"
        )
    weights_name = name or name_beside(program_name, SUFFIX)
    if weights_name == program_name:
        raise ExportError(
            f"saving {program.fun_name}: {program_name!r} would be the file of the weights, too: give the program "
            f"another name, such as {os.path.splitext(program_name)[0] + '.jaxexp'!r}"
        )
    if max_file_size is not None and (isinstance(max_file_size, bool) or not isinstance(max_file_size, int)):
        raise ExportTypeError(
            f"saving {program.fun_name}: max_weights_file_size= takes a number of bytes, an int, not {max_file_size!r}"
        )
    if max_file_size is not None and max_file_size <= 0:
        raise ExportError(f"saving {program.fun_name}: max_weights_file_size={max_file_size} has to be positive")

    def save_program(table: Table) -> None:
        if how.cases is not None and {file.name for file in table.files} & {
            file.name for file in how.cases.table.files
        }:
            raise ExportError(
                f"saving {program.fun_name}: {weights_name!r} would be the file of the cases, too: name another file "
                "with weights="
            )
        serialize.save(program, path, how._replace(weights=table.with_other_names(weights.other_names)))

    stored = weights.stored
    if stored is not None and max_file_size is None:
        with folder_locked(folder):
            if stored.are_there(folder, weights_name):
                save_program(stored.table)
                return
    saving.save(path, weights_name, weights.sources(), save_program, max_file_size=max_file_size)


# --- any first argument as a dict of weights -------------------------------------------------------------------------


def with_named_weights(exported: E) -> E:
    """The same function, but its first argument is a dict of the pytree's arrays by their paths.

    An ExportError if there is no such argument, or no array in it; if two have one name; or if a shape is symbolic.
    """
    if (named := names_in_first(exported.in_tree)) is not None:
        _check_shapes(exported, named)
        return exported
    args, kwargs = exported.in_tree.children()
    first, *others = args.children() or [None]
    names = [] if first is None else names_in(first)
    _check_shapes(exported, names)
    order = sorted(range(len(names)), key=names.__getitem__)  # as JAX flattens a dict
    weights = jax.tree_util.tree_structure(dict.fromkeys(names, 0))
    in_tree = treedefs.tuple_of([treedefs.tuple_of([weights, *others]), kwargs])
    order += range(len(names), len(exported.in_avals))
    written = data.facts_of(exported).in_tree
    if written is not None:
        args, kwargs = written.written.children()
        positional = treedefs.tuple_of([weights, *args.children()[1:]])
        written = Written(in_tree, treedefs.tuple_of([positional, kwargs]))
    return _rearranged(exported, _Order(tuple(order), tuple(range(len(exported.out_avals)))), in_tree, written)


def _check_shapes(exported: ExportedData, names: Sequence[str]) -> None:
    if not names:
        raise ExportError(f"binding {exported.fun_name}: it has no arrays in a first positional argument")
    for name, aval in zip(names, exported.in_avals, strict=False):
        if _jax.any_symbolic([aval]):
            is_alone = list(names) == [ALONE]
            what, advice = (
                ("its first argument", "If it is no weight, export a function of (weights, x) instead")
                if is_alone
                else (f"{name!r} in its first argument", "Specialize it first")
            )
            raise ExportError(
                f"binding {exported.fun_name}: {what} has the symbolic shape {aval.shape}, and weights have constant "
                f"ones. {advice}"
            )


class _Order(NamedTuple):
    """A new order of arguments and results: the old index for each place."""

    arguments: tuple[int, ...]
    results: tuple[int, ...]

    def of_vjp(self) -> _Order:
        """The order of the VJP, which takes a cotangent for each result, and returns one for each argument."""
        n = len(self.arguments)
        return _Order((*self.arguments, *(n + i for i in self.results)), self.arguments)


def _rearranged(exported: E, order: _Order, in_tree: Any, written: Written | None) -> E:
    """The function with its arguments and results in another order, and a tree that an artifact stores as `written`."""
    place = {old: new for new, old in enumerate(order.arguments)}
    kept = sorted(place[old] for old in exported.module_kept_var_idx)
    is_new = any(old != new for indices in (order.arguments, order.results) for new, old in enumerate(indices))
    module = _module(exported, order, kept) if is_new else exported.mlir_module_serialized
    weak_results = data.weak_results(exported)
    return dataclasses.replace(
        exported,
        in_tree=in_tree,
        in_avals=tuple(exported.in_avals[i] for i in order.arguments),
        out_avals=tuple(exported.out_avals[i] for i in order.results),
        _in_named_shardings=tuple(exported._in_named_shardings[i] for i in order.arguments),
        _out_named_shardings=tuple(exported._out_named_shardings[i] for i in order.results),
        mlir_module_serialized=module,
        module_kept_var_idx=tuple(kept),
        _get_vjp=_RearrangedVjp(exported, order.of_vjp()) if exported.has_vjp() else None,
        _facts=data.facts_of(exported)._replace(
            weak_arguments=tuple(sorted(place[old] for old in data.weak_arguments(exported))),
            weak_results=tuple(new for new, old in enumerate(order.results) if old in weak_results),
            in_tree=written,
        ),
    )


def _module(exported: ExportedData, order: _Order, kept: Sequence[int]) -> bytes:
    """The module with a new main function around its old one. `kept` says which of the new arguments it takes."""
    arguments = Arguments.of_exported(exported)
    place = {order.arguments[new]: position for position, new in enumerate(kept)}
    of_arrays = [place[old] for old in exported.module_kept_var_idx]  # for each old operand, the new one
    context = _jax.make_ir_context()
    with context, _jax.ir.Location.unknown(context):
        module = runnable.parse(exported, context)

        def in_new_order(old: Sequence[Any]) -> list[Any]:
            new = list(old)
            for position, operand in zip(of_arrays, old[arguments.array], strict=True):
                new[arguments.array.start + position] = operand
            return new

        def operands(given: Sequence[Any]) -> list[Any]:
            arrays = given[arguments.array]
            return [*given[: arguments.array.start], *(arrays[position] for position in of_arrays)]

        inner = _jax.ir.SymbolTable(module.operation)["main"]
        results = [*range(arguments.tokens), *(arguments.tokens + i for i in order.results)]
        main.surround_main(
            module,
            in_new_order(list(inner.type.inputs)),
            [inner.type.results[i] for i in results],
            operands,
            argument_attributes=in_new_order(mlir.argument_attributes(module)),
            results=results,
        )
        return mlir.serialize(module)


class _RearrangedVjp(DerivedVjp):
    """The VJP of a function whose arguments were reordered."""

    __slots__ = ()

    def __call__(self, primal: Any) -> Any:
        origin, order = self.of
        vjp = origin.vjp()
        return _rearranged(vjp, order, vjp.in_tree, data.facts_of(vjp).in_tree)
