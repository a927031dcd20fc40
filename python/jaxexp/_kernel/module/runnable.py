"""The module of an exported function as the installed JAX runs it. Every module is parsed here before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from jaxexp import _jax, _native
from jaxexp._errors import ModuleError
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.function.convention import OLDEST_VERSION, Arguments
from jaxexp._kernel.function.data import ExportedData, is_under_policy

from . import mlir

# The beginning of the targets of LAPACK routines.
_LAPACK = ("lapack_", "blas_")


def parse(exported: ExportedData, context: Any) -> Any:
    """The module of an exported function, for calls: parsed in an MLIR context that is entered, and rewritten to a form
    that the installed JAX runs.
    """
    with mlir.reading():
        module = _with_shardings_of_today(exported, context)
        check_signature(exported, module)
        if may_call_lapack(exported):
            from . import lapack

            for target, operation in mlir.custom_calls(module):
                lapack.modernize(operation, target)
        if is_under_policy(exported):
            from . import confined

            confined.confine(module, exported.mlir_module_serialized)
        return module


def module_of(exported: ExportedData) -> bytes:
    """The bytes of a module for those who run it in another way than through `parse`: as they are, unless a policy
    allowed it.
    """
    if not is_under_policy(exported):
        return exported.mlir_module_serialized
    from . import call_arrays

    with _jax.make_ir_context() as context:
        module = parse(exported, context)
        call_arrays.assert_open_sizes(exported, module)
        return mlir.serialize(module)


def may_call_lapack(exported: ExportedData) -> bool:
    return module_head.may_name(exported.mlir_module_serialized, *_LAPACK)


def _with_shardings_of_today(exported: ExportedData, context: Any) -> Any:
    serialized = exported.mlir_module_serialized
    if is_under_policy(exported):
        serialized = _native.without_sources(serialized) or serialized
    module = mlir.parse(serialized, context)
    is_from_before_shardy = module_head.may_name(serialized, "mhlo.sharding") and not module_head.may_name(
        serialized, "sdy"
    )
    if is_from_before_shardy and _jax.shardy_flag.value:
        from . import from_gspmd

        try:
            from_gspmd.to_shardy(module, exported.nr_devices)
        except from_gspmd.NotExpressibleError:
            # The compiler still understands the old form, and reports that it uses the old partitioner.
            return mlir.parse(serialized, context)
    return module


def check_signature(exported: ExportedData, module: Any) -> None:
    """Compares a module's main function with the signature, argument by argument.

    Nothing else ties the two together: without this check, a module of another function would be compiled with
    arguments that it does not expect.
    """
    symbols = _jax.ir.SymbolTable(module.operation)
    if "main" not in symbols or not isinstance(symbols["main"], _jax.func_op):
        raise ModuleError(_MODULE, "a module with the function 'main'", "a module without it")
    type_ = symbols["main"].type
    inputs, results = list(type_.inputs), list(type_.results)
    groups = Arguments.of_exported(exported)
    if exported.calling_convention_version < OLDEST_VERSION and exported.ordered_effects:
        return  # it passes tokens in another way; calls are refused with a better message
    kept = exported.module_kept_var_idx
    _check_count("arguments", groups.array.stop, inputs, groups)
    _check_count("results", groups.tokens + len(exported.out_avals), results, groups)

    for found in inputs[groups.platform_index]:
        if str(found) not in ("tensor<i32>", "tensor<i64>"):
            _refuse("the platform index", "tensor<i32>", found)
    for found in (*inputs[groups.token], *results[: groups.tokens]):
        if found != _jax.token_type():
            _refuse("the token of an ordered effect", str(_jax.token_type()), found)
    right: dict[int, Any] = {}  # types that were checked, by the identity of their aval
    for index, found in zip(kept, inputs[groups.array], strict=True):
        aval = exported.in_avals[index]
        if right.get(id(aval)) != found:
            _check_type(f"its argument for in_avals[{index}]", aval, found)
            right[id(aval)] = found
    for index, (aval, found) in enumerate(zip(exported.out_avals, results[groups.tokens :], strict=True)):
        if right.get(id(aval)) != found:
            _check_type(f"its result for out_avals[{index}]", aval, found)
            right[id(aval)] = found


_MODULE = "mlir_module_serialized"


def _check_count(what: str, expected: int, found: Sequence[Any], groups: Arguments) -> None:
    if len(found) != expected:
        others = [
            f"{n} for {of}" for n, of in ((groups.platform_indices, "the platform"), (groups.tokens, "tokens")) if n
        ]
        raise ModuleError(
            _MODULE,
            f"a main function with {expected} {what}, as the signature says"
            + (f" ({', '.join(others)})" if others else ""),
            f"one with {len(found)}",
        )


def _check_type(where: str, aval: Any, found: Any) -> None:
    physical: Any = _jax.physical_aval(aval) if _jax.issubdtype(aval.dtype, _jax.extended_dtype) else aval
    ir = _jax.ir
    if not isinstance(found, ir.RankedTensorType):
        _refuse(where, f"an array ({aval})", found)
    tensor = ir.RankedTensorType(found)
    if tensor.element_type != _jax.dtype_to_ir_type(physical.dtype) or tensor.rank != len(physical.shape):
        _refuse(where, str(aval), found)
    for axis, size in enumerate(physical.shape):
        if _jax.is_constant_dim(size):
            # A module may know less about a shape than the signature.
            fits = tensor.is_dynamic_dim(axis) or tensor.get_dim_size(axis) == size
        else:
            fits = tensor.is_dynamic_dim(axis)
        if not fits:
            _refuse(where, str(aval), found)


def _refuse(where: str, expected: str, found: Any) -> NoReturn:
    raise ModuleError(_MODULE, f"a main function that takes or returns {expected} as {where}", str(found))


# How a module says that a result may take the memory of an argument: a certain result, or any.
_DONATION = "tf.aliasing_output", "jax.buffer_donor"


def donated_arguments(exported: ExportedData) -> tuple[int, ...]:
    """Indices into `in_avals`: the arguments whose memory the module may use for its results."""
    serialized = exported.mlir_module_serialized
    if not module_head.may_name(serialized, *_DONATION):
        return ()
    with _jax.make_ir_context() as context:
        attributes = mlir.argument_attributes(mlir.parse(serialized, context))
    kept = zip(exported.module_kept_var_idx, attributes[Arguments.of_exported(exported).array], strict=True)
    return tuple(i for i, attribute in kept if any(name in _jax.ir.DictAttr(attribute) for name in _DONATION))
