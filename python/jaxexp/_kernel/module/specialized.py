"""The module of an exported function for given shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxexp import _jax
from jaxexp._errors import ExportError, cause
from jaxexp._kernel.function.convention import Arguments
from jaxexp._kernel.function.data import ExportedData

from . import call_arrays, main, mlir, runnable


def parse(exported: ExportedData, in_avals: Sequence[Any], out_avals: Sequence[Any], still_symbolic: bool) -> Any:
    """The module with a main function of the new shapes. If none is `still_symbolic`, it has no dynamic shapes.

    Raises:
        ExportError: the module refuses these shapes, or cannot take symbolic ones.
    """
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
                main.dim_values_of(module, in_avals, exported.in_tree, given[arguments.array])
            return given

        attributes = mlir.argument_attributes(module)
        main.surround_main(module, types, result_types, operands, argument_attributes=attributes)
        if still_symbolic:
            return module
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
