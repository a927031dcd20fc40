"""Puts a new main function around a lowered one, which turns the lowering's arguments into the exported ones.

JAX lowers a function with symbolic shapes to a main function that takes the values of its dimension variables as
arguments. Callers of an artifact have the arrays alone, so the new main computes those values from the arrays'
shapes, asserts what else the shapes promise, and passes the rest on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from . import _jax
from ._convention import Arguments
from ._errors import ExportError

_INNER_NAME = "_wrapped_jax_export_main"


def wrap_main(module: Any, in_avals: Sequence[Any], in_tree: Any, has_platform_index: bool) -> None:
    """Wraps `main` of a module, in place.

    Args:
        module: the module, which is changed; see `_convention` for the arguments of its main function.
        in_avals: the abstract values of its array arguments. With symbolic dimensions, none may have been dropped:
            JAX keeps all arguments of such functions.
        in_tree: their tree structure, for the messages of shape assertions.
        has_platform_index: whether the main function takes a platform index.
    """
    ir = _jax.ir
    with module.context, ir.Location.unknown(module.context):
        symbols = ir.SymbolTable(module.operation)
        inner = symbols["main"]
        arguments = _arguments(inner, in_avals, has_platform_index)
        kept = _kept_arguments(arguments)

        inner_name = _free_name(symbols)
        symbols.set_symbol_name(inner, inner_name)
        inner.attributes["sym_visibility"] = ir.StringAttr.get("private")
        types, attributes = list(inner.type.inputs), list(ir.ArrayAttr(inner.arg_attrs))
        main = _jax.func_op(
            "main",
            ir.FunctionType.get([types[i] for i in kept], inner.type.results),
            visibility="public",
            ip=ir.InsertionPoint.at_block_begin(module.body),
        )
        # Donation and aliasing refer to results, and those keep their places.
        main.arg_attrs = ir.ArrayAttr.get([attributes[i] for i in kept])
        main.result_attrs = inner.result_attrs
        with ir.InsertionPoint(main.add_entry_block()):
            operands = _inner_operands(module, main, arguments, types, in_avals, in_tree)
            call = _jax.call_op(inner.type.results, ir.FlatSymbolRefAttr.get(inner_name), operands)
            _jax.return_op(call.results)
    _jax.run_passes(module, "symbol-dce")


def _free_name(symbols: Any) -> str:
    """A name for the old main function; an exported function that it calls may have brought the usual one."""
    return next(name for i in itertools.count() if (name := f"{_INNER_NAME}{i or ''}") not in symbols)


def _arguments(inner: Any, in_avals: Sequence[Any], has_platform_index: bool) -> Arguments:
    types = inner.type.inputs
    platform_indices, dim_vars = int(has_platform_index), len(_jax.all_dim_vars(in_avals))
    tokens = sum(type_ == _jax.token_type() for type_ in types)
    return Arguments(platform_indices, dim_vars, tokens, len(types) - platform_indices - dim_vars - tokens)


def _kept_arguments(arguments: Arguments) -> list[int]:
    """Which arguments of the inner main the new one takes as well."""
    everything = range(arguments.array.stop)
    return [i for i in everything if i not in everything[arguments.dim_var]]


def _inner_operands(
    module: Any, main: Any, arguments: Arguments, inner_types: Sequence[Any], in_avals: Sequence[Any], in_tree: Any
) -> list[Any]:
    outer, given = arguments.without_dim_vars(), list(main.arguments)
    dim_values: list[Any] = []
    if arguments.dim_vars:
        assert arguments.arrays == len(in_avals), "JAX keeps every argument of a function with symbolic shapes"
        try:
            _jax.solve_dim_vars(tuple(in_avals), args_kwargs_tree=in_tree)
        except ValueError as error:
            raise ExportError(f"the dimension variables do not follow from the argument shapes: {error}") from error
        compute = _jax.dim_values_from_shapes(in_avals, in_tree)
        dim_values = _jax.lower_inline(compute, module, in_avals, given[outer.array])
    operands = [*given[outer.platform_index], *dim_values, *given[outer.token], *given[outer.array]]
    return [
        operand if operand.type == wanted else _jax.hlo.convert(wanted, operand)
        for operand, wanted in zip(operands, inner_types, strict=True)
    ]
