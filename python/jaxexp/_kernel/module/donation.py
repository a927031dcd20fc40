"""The arguments of a function that were donated in the export."""

from __future__ import annotations

from jaxexp import _jax
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.function import data
from jaxexp._kernel.function.convention import Arguments
from jaxexp._kernel.function.data import ExportedData

from . import mlir

# How a module says that a result may take the memory of an argument: a certain result, or any.
_DONATION = "tf.aliasing_output", "jax.buffer_donor"


def donated_arguments(exported: ExportedData) -> tuple[int, ...]:
    """Indices into `in_avals`: the arguments whose memory the module may use for its results."""
    return data.kept(exported, "donated", _read)


def _read(exported: ExportedData) -> tuple[int, ...]:
    serialized = exported.mlir_module_serialized
    if not module_head.may_name(serialized, *_DONATION):
        return ()
    context = _jax.make_ir_context()
    with context:
        attributes = mlir.argument_attributes(mlir.parse(serialized, context))
    arrays = attributes[Arguments.of_exported(exported).array]
    return tuple(
        index
        for index, attribute in zip(exported.module_kept_var_idx, arrays, strict=True)
        if any(name in _jax.ir.DictAttr(attribute) for name in _DONATION)
    )
