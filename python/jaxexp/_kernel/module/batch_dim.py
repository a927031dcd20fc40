"""Declares that a dimension variable is a batch, and reads that declaration.

It is an attribute of the module, so every reader and writer of artifacts keeps it. Code that uses it compares it with
the signature first, and ignores it if it does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportTypeError
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.paths import argument_path, result_paths

from . import mlir

_NAME = "jaxexp.batch_dim"


class BatchDim(NamedTuple):
    name: str
    arguments: tuple[bool, ...]
    results: tuple[bool, ...]


def check(
    name: str, fun_name: str, in_avals: Sequence[Any], in_tree: Any, out_avals: Sequence[Any], out_tree: Any
) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Finds the arguments and results whose leading dimension is the variable `name`, if it can be a batch."""
    if not isinstance(name, str):
        raise ExportTypeError(
            f"exporting {fun_name}: batch_dim is the name of a dimension variable, a str such as 'b', not {name!r}"
        )
    start = f"exporting {fun_name} with batch_dim={name!r}: "

    def led(avals: Sequence[Any], describe: Callable[[int], str]) -> tuple[bool, ...]:
        for index, aval in enumerate(avals):
            for axis, dim in enumerate(aval.shape):
                if name in _jax.dim_vars(dim) and (axis or str(dim) != name):
                    raise ExportError(
                        f"{start}{describe(index)} has shape {_text(aval)}, but {name} may only be the whole leading "
                        "dimension, not another dimension or a part of an expression"
                    )
        return tuple(name in _jax.all_dim_vars([aval]) for aval in avals)

    arguments = led(in_avals, lambda index: argument_path(in_tree, index))
    if not any(arguments):
        known = ", ".join(_jax.all_dim_vars(in_avals)) or "none"
        raise ExportError(f"{start}no argument has that dimension; the arguments' dimension variables: {known}")
    paths = result_paths(out_tree)
    results = led(out_avals, paths.__getitem__)
    for index, aval in enumerate(out_avals):
        if not results[index] and aval.dtype != _jax.float0:  # float0 arrays are empty
            raise ExportError(
                f"{start}{paths[index]} has shape {_text(aval)}, but every result must have {name} as "
                "its leading dimension. Broadcast it in the function, or export without batch_dim"
            )
    return arguments, results


def _text(aval: Any) -> str:
    return f"({', '.join(map(str, aval.shape))})"


def declare(module: Any, name: str) -> None:
    with module.context:
        module.operation.attributes[_NAME] = _jax.ir.StringAttr.get(name)


def declare_again(module: Any, exported: ExportedData, in_avals: Sequence[Any], out_avals: Sequence[Any]) -> str | None:
    """Writes the declaration of a function into its module for other shapes, which may have another variable for the
    batch, and returns this variable. There is none any more if other arguments have it, too.
    """
    if _NAME in module.operation.attributes:
        del module.operation.attributes[_NAME]
    if (batch := of(exported)) is None:
        return None
    name = str(in_avals[batch.arguments.index(True)].shape[0])
    try:
        led = check(name, exported.fun_name, in_avals, exported.in_tree, out_avals, exported.out_tree)
    except ExportError:
        return None
    if led != (batch.arguments, batch.results):
        return None
    declare(module, name)
    return name


def of(exported: ExportedData) -> BatchDim | None:
    """The batch dimension that a function was exported with; None if there is none, or it does not fit."""
    return data.kept(exported, "batch_dim", _read)


def _read(exported: ExportedData) -> BatchDim | None:
    # Modules are large, and few have the attribute: search for its name before parsing.
    if not _jax.any_symbolic(exported.in_avals):
        return None
    if not module_head.may_name(data.module_view(exported), _NAME):
        return None
    with _jax.make_ir_context() as context:
        attributes = mlir.parse(exported.mlir_module_serialized, context).operation.attributes
        if _NAME not in attributes or not isinstance(attributes[_NAME], _jax.ir.StringAttr):
            return None
        name: str = attributes[_NAME].value
    try:
        arguments, results = check(
            name, exported.fun_name, exported.in_avals, exported.in_tree, exported.out_avals, exported.out_tree
        )
    except ExportError:
        return None
    return BatchDim(name, arguments, results)


def of_vjp(primal: ExportedData) -> str | None:
    """The batch dimension of a function's VJP; None if an argument's cotangent sums over the batch."""
    batch = of(primal)
    if batch is None:
        return None
    differentiable = (aval.to_tangent_aval().dtype != _jax.float0 for aval in primal.in_avals)
    return batch.name if all(led for led, d in zip(batch.arguments, differentiable, strict=True) if d) else None
