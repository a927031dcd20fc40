"""Turns a program whose first argument is any pytree of arrays into one that takes them in a dict by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._errors import ExportError
from jaxexp._kernel.codec import treedefs
from jaxexp._kernel.function import data
from jaxexp._kernel.function.convention import Arguments
from jaxexp._kernel.function.data import E, ExportedData
from jaxexp._kernel.function.facts import Written
from jaxexp._kernel.function.vjps import DerivedVjp
from jaxexp._kernel.module import main, mlir, runnable
from jaxexp._weights.arrays.names import names_in


def with_named_weights(exported: E) -> E:
    """The same function, but its first argument is a dict of the pytree's arrays by their paths.

    Raises:
        ExportError: there is no such argument, or no array in it; two arrays have one name; or a shape is symbolic.
    """
    if (named := names_in_first(exported.in_tree)) is not None:
        _check_shapes(exported, named)
        return exported
    args, kwargs = exported.in_tree.children()
    first, *others = args.children() or [None]
    if first is None or first.num_leaves == 0:
        raise ExportError(f"binding {exported.fun_name}: it has no arrays in a first positional argument")
    names = names_in(first)
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


def names_in_first(in_tree: Any) -> list[str] | None:
    """The keys of the first positional argument, if it is a dict of arrays by names; otherwise None. An empty key is no
    name: `names_in` has one for it.
    """
    args, _ = in_tree.children()
    first = args.children()[0] if args.children() else None
    if first is None or first.node_data() is None or first.node_data()[0] is not dict:
        return None
    keys = list(first.node_data()[1])
    is_flat = first.num_leaves == first.num_nodes - 1 == len(keys)
    return keys if is_flat and all(isinstance(key, str) and key for key in keys) else None


def _check_shapes(exported: ExportedData, names: Sequence[str]) -> None:
    if not names:
        raise ExportError(f"binding {exported.fun_name}: it has no arrays in a first positional argument")
    for name, aval in zip(names, exported.in_avals, strict=False):
        if _jax.any_symbolic([aval]):
            raise ExportError(
                f"binding {exported.fun_name}: {name!r} in its first argument has the symbolic shape {aval.shape}, and "
                "weights have constant ones. Specialize it first"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class _Order:
    """A new order of arguments and results: the old index for each place."""

    arguments: tuple[int, ...]
    results: tuple[int, ...]

    @property
    def changes_nothing(self) -> bool:
        return self == _Order(tuple(range(len(self.arguments))), tuple(range(len(self.results))))

    def of_vjp(self) -> _Order:
        """The order of the VJP, which takes a cotangent for each result, and returns one for each argument."""
        n = len(self.arguments)
        return _Order((*self.arguments, *(n + i for i in self.results)), self.arguments)


def _rearranged(exported: E, order: _Order, in_tree: Any, written: Written | None) -> E:
    """The function with its arguments and results in another order, and a tree that an artifact stores as `written`."""
    place = {old: new for new, old in enumerate(order.arguments)}
    kept = sorted(place[old] for old in exported.module_kept_var_idx)
    module = exported.mlir_module_serialized if order.changes_nothing else _module(exported, order, kept)
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
