"""The module of an exported function as the installed JAX runs it. Every module is parsed here before it is used."""

from __future__ import annotations

from typing import Any

from jaxexp import _jax, _native
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.function.data import ExportedData, is_under_policy

from . import mlir, signature

# The beginning of the targets of LAPACK routines.
_LAPACK = ("lapack_", "blas_")


def parse(exported: ExportedData, context: Any) -> Any:
    """The module of an exported function, for calls: parsed in an MLIR context that is entered, and rewritten to a form
    that the installed JAX runs.

    Raises:
        DeserializationError: the bytes are not a module of a function with this signature, or it calls a routine in a
            form that has no counterpart today.
    """
    with mlir.reading():
        module = _with_shardings_of_today(exported, context)
        signature.check(exported, module)
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
    """Whether a module may have custom calls of LAPACK."""
    return module_head.may_name(exported.mlir_module_serialized, *_LAPACK)


def _with_shardings_of_today(exported: ExportedData, context: Any) -> Any:
    serialized = exported.mlir_module_serialized
    if is_under_policy(exported):
        serialized = _native.without_sources(serialized) or serialized
    module = mlir.parse(serialized, context)
    if _jax.shardy_flag.value and _is_from_before_shardy(serialized):
        from . import from_gspmd

        try:
            from_gspmd.to_shardy(module, exported.nr_devices)
        except from_gspmd.NotExpressibleError:
            # The compiler still understands the old form, and reports that it uses the old partitioner.
            return mlir.parse(serialized, context)
    return module


def _is_from_before_shardy(serialized: bytes) -> bool:
    """Whether a serialized module has shardings from before Shardy, and no Shardy."""
    return module_head.may_name(serialized, "mhlo.sharding") and not module_head.may_name(serialized, "sdy")
