"""Puts a new main function around a lowered one, so that it takes the arguments of the exported function.

JAX lowers a function with symbolic shapes to a main function that takes the values of its dimension variables as
arguments. Callers of an artifact have only the arrays, so the new main computes those values from the arrays' shapes,
asserts whatever else the shapes promise, and passes on the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from jaxexp import _jax
from jaxexp._errors import ExportError, cause, in_one_line
from jaxexp._kernel.function import specs
from jaxexp._kernel.function.convention import Arguments
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.paths import taking_placeholders

from . import mlir, runnable

_INNER_NAME = "_wrapped_jax_export_main"


def wrap_main(module: Any, in_avals: Sequence[Any], in_tree: Any, has_platform_index: bool) -> None:
    """Wraps `main` of a module, in place; see `convention` for its arguments. With symbolic dimensions, no abstract
    value may be missing: JAX keeps all arguments of such functions. Messages of shape assertions use the tree.
    """
    with module.context, _jax.ir.Location.unknown(module.context):
        inner = _jax.ir.SymbolTable(module.operation)["main"]
        types = list(inner.type.inputs)
        before, dim_vars = int(has_platform_index), len(_jax.all_dim_vars(in_avals))
        tokens = sum(type_ == _jax.token_type() for type_ in types)
        arguments = Arguments(before, dim_vars, tokens, len(types) - before - dim_vars - tokens)
        kept = [i for i in range(len(types)) if i not in range(len(types))[arguments.dim_var]]
        attributes = mlir.argument_attributes(module)

        def operands(given: Sequence[Any]) -> list[Any]:
            outer = arguments._replace(dim_vars=0)
            dim_values: list[Any] = []
            if arguments.dim_vars:
                assert arguments.arrays == len(in_avals), "JAX keeps every argument of a function with symbolic shapes"
                dim_values = dim_values_of(module, in_avals, in_tree, given[outer.array])
            return [*given[outer.platform_index], *dim_values, *given[outer.token], *given[outer.array]]

        surround_main(
            module,
            [types[i] for i in kept],
            inner.type.results,
            operands,
            argument_attributes=[attributes[i] for i in kept],
        )


def surround_main(
    module: Any,
    argument_types: Sequence[Any],
    result_types: Sequence[Any],
    operands: Callable[[Sequence[Any]], Sequence[Any]],
    *,
    argument_attributes: Sequence[Any],
    results: Sequence[int] | None = None,
) -> None:
    """Makes a module's `main` a private function, and adds a new main function of these types, whose shapes may be more
    precise, that calls it. The MLIR context is entered. `operands` is called at the new main's insertion point, with
    its arguments, and returns the old main's. Aliasing in `argument_attributes` refers to the new main's results by
    position. `results` has the index of the old main's result for each new one; None if they stay as they are.
    """
    ir = _jax.ir
    symbols = ir.SymbolTable(module.operation)
    inner = symbols["main"]
    inner_name = mlir.free_name(_INNER_NAME, symbols)  # a callee may have brought the usual one
    symbols.set_symbol_name(inner, inner_name)
    inner.attributes["sym_visibility"] = ir.StringAttr.get("private")
    main = _jax.func_op(
        "main",
        ir.FunctionType.get(list(argument_types), list(result_types)),
        visibility="public",
        ip=ir.InsertionPoint.at_block_begin(module.body),
    )
    main.arg_attrs = ir.ArrayAttr.get(list(argument_attributes))
    places = range(len(inner.type.results)) if results is None else results
    result_attributes = mlir.result_attributes(inner)
    main.result_attrs = ir.ArrayAttr.get([result_attributes[i] for i in places])
    with ir.InsertionPoint(main.add_entry_block()):
        taken = map(mlir.converted, operands(list(main.arguments)), inner.type.inputs)
        call = _jax.call_op(inner.type.results, ir.FlatSymbolRefAttr.get(inner_name), list(taken))
        returned = [call.results[i] for i in places]
        _jax.return_op(list(map(mlir.converted, returned, result_types)))
    mlir.run_passes(module, "symbol-dce")


def say_whether_polymorphic(module: Any, uses_dim_vars: bool) -> None:
    """Notes in a module whether it has to be specialized to shapes or a platform before compilation."""
    with module.context:
        module.operation.attributes["jax.uses_shape_polymorphism"] = _jax.ir.BoolAttr.get(uses_dim_vars)


def dim_values_of(module: Any, in_avals: Sequence[Any], in_tree: Any, arrays: Sequence[Any]) -> list[Any]:
    """Computes the dimension variables of `in_avals` from arrays, and asserts whatever else the shapes promise."""

    def dim_values(*arrays: Any) -> Any:
        (tree,) = taking_placeholders(in_tree)
        solution, assertions, sources = _jax.solve_dim_vars(tuple(in_avals), args_kwargs_tree=tree)
        sizes = _Sizes({name: _jax.dimension_size(arrays[index], axis) for name, index, axis in sources})
        assertions.shape_assertions(sizes)
        return tuple(sizes.evaluate(solution[name]) for name in _jax.all_dim_vars(in_avals))

    try:
        return lowered_inline(dim_values, module, in_avals, arrays)
    except _jax.dim_vars_errors as error:
        message = f"the dimension variables do not follow from the argument shapes: {in_one_line(error)}"
        raise specs.error_of_dims(error, message) from cause(error)


class _Sizes(_jax.ShapeEvaluator):
    """Dimensions by the sizes of arrays.

    JAX asks each factor whether it is 1, and a traced size answers by an error whose message takes a look at all that
    was traced before. Most dimensions are only a variable. So they are looked up: a hundred took seconds.
    """

    def evaluate(self, e: Any) -> Any:
        name = _jax.variable_of(e)
        return self.env[name] if name in self.env else super().evaluate(e)


def lowered_inline(
    function: Callable[..., Any], module: Any, avals: Sequence[Any], operands: Sequence[Any]
) -> list[Any]:
    """Lowers `function` on `operands` at the current insertion point of `module`; returns its flat results.

    Symbolic dimensions of `avals` become sizes that are read from the operands at run time.
    """
    module_context = _jax.ModuleContext(
        backend=None,
        platforms=["cpu"],  # integer arithmetic on shapes: the same on every platform
        axis_context=_jax.ShardingContext(0),
        keepalives=[],
        channel_iterator=itertools.count(1),
        host_callbacks=[],
        module=module,
        context=module.context,
        lowering_parameters=_jax.lowering_parameters(None, global_constants=True),
    )
    context = _jax.LoweringRuleContext(
        avals_in=avals,
        avals_out=None,
        const_lowering={},
        module_context=module_context,
        name_stack=_jax.new_name_stack(),
        primitive=None,
        tokens_in=_jax.TokenSet(),
        tokens_out=None,
        traceback=None,
    )
    results, _ = _jax.flatten_ir(_jax.lower_as_function(function)(context, *operands))
    return list(results)


# --- the module of an exported function for given shapes --------------------------------------------------------------


def for_shapes(exported: ExportedData, in_avals: Sequence[Any], out_avals: Sequence[Any], still_symbolic: bool) -> Any:
    """The module with a main function of the new shapes. If none is `still_symbolic`, it has no dynamic shapes."""
    context = _jax.make_ir_context()
    with context, _jax.ir.Location.unknown(context):
        module = runnable.parse(exported, context)
        inner = _jax.ir.SymbolTable(module.operation)["main"]
        kept = exported.module_kept_var_idx
        arguments = Arguments.of_exported(exported)
        types, result_types = list(inner.type.inputs), list(inner.type.results)
        types[arguments.array] = map(_refined_type, types[arguments.array], [in_avals[i] for i in kept])
        result_types[arguments.tokens :] = map(_refined_type, result_types[arguments.tokens :], out_avals)

        def operands(given: Sequence[Any]) -> Sequence[Any]:
            if still_symbolic:
                if len(kept) != len(in_avals):
                    raise ExportError(
                        f"specializing {exported.fun_name} to symbolic shapes needs all of its arguments in the module"
                    )
                # Only for the assertions: the old main function computes its own variables.
                dim_values_of(module, in_avals, exported.in_tree, given[arguments.array])
            return given

        attributes = mlir.argument_attributes(module)
        surround_main(module, types, result_types, operands, argument_attributes=attributes)
        if still_symbolic:
            return module
        from . import call_arrays

        call_arrays.assert_open_sizes(exported, module)
        try:
            return _jax.refine_shapes(module)
        except ValueError as error:
            reason = mlir.why_not_refined(error) or error
            raise ExportError(
                f"specializing {exported.fun_name}: its module refuses these shapes: {reason}"
            ) from cause(error)


def _refined_type(type_: Any, aval: Any) -> Any:
    """The tensor type with a new shape. Dimensions that a dtype adds, such as those of PRNG keys, stay."""
    tensor = _jax.ir.RankedTensorType(type_)
    dynamic = _jax.ir.ShapedType.get_dynamic_size()
    shape = [size if _jax.is_constant_dim(size) else dynamic for size in aval.shape]
    return _jax.ir.RankedTensorType.get([*shape, *tensor.shape[aval.ndim :]], tensor.element_type, tensor.encoding)
