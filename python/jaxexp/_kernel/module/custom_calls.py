"""Checks the custom calls of a module: for stability, for callbacks to Python, and whether this process has them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportRuntimeError, Lines
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.artifact.operations import is_understood
from jaxexp._kernel.artifact.targets import STABLE_CUSTOM_CALLS, is_callback
from jaxexp._kernel.function.data import ExportedData
from jaxexp._public import public

from . import branches, mlir, runnable


@public
class UnknownCustomCallError(ExportRuntimeError, _jax.JaxRuntimeError):
    """A custom call that this process does not implement. Without jaxexp, only XLA would say so."""


def check_stable(module: Any, allowed_targets: Collection[str]) -> None:
    """Refuses a module with custom calls, or operations of other dialects, that are not promised to be stable.

    Args:
        module: the MLIR module.
        allowed_targets: custom call targets that the user allows besides the stable ones, and names of operations that
            the tables of `_kernel/artifact/operations.py` lack; "ALL" allows all.

    Raises:
        ExportError: names each such target or operation, where it comes from, and how to allow it.
    """
    if "ALL" in allowed_targets:
        return
    refused: dict[str, Any] = {}
    stable = STABLE_CUSTOM_CALLS | _jax.stable_custom_calls()
    for operation in mlir.iter_operations(module):
        name = operation.name
        target = mlir.target_of(operation) if name == "stablehlo.custom_call" else name
        if target not in stable and target not in allowed_targets and not is_understood(target):
            refused.setdefault(target, operation)
    if not refused:
        return
    examples = (f"  {operation} at {operation.location}" for operation in refused.values())
    also_allowed = f" (allowed so far: {', '.join(sorted(allowed_targets))})" if allowed_targets else ""
    said = (
        f"the function contains custom calls that may change with any release of JAX: {', '.join(sorted(refused))}. "
        f"To export it anyway, pass disabled_checks=[DisabledSafetyCheck.custom_call({min(refused)!r}), ...]"
        f"{also_allowed}. They come from:"
    )
    # MLIR prints an operation with regions in several lines, and escapes the texts in them.
    raise ExportError(Lines.of([said, *(line for example in examples for line in example.split("\n"))]))


def refuse_callbacks(exported: ExportedData, module: Any, platforms: Iterable[int]) -> None:
    """Refuses a module that would call back to Python: to addresses in the process that exported it.

    Args:
        platforms: the indices of the exported platforms that it will run on.

    Raises:
        ExportError: names the targets.
    """
    if not module_head.may_name(exported.mlir_module_serialized, "custom_call"):
        return
    if not any(is_callback(target) for target, _ in mlir.custom_calls(module)):
        return
    if found := set(filter(is_callback, _targets(exported, module, platforms))):
        raise ExportError(
            f"calling {exported.fun_name}: its module calls back to Python ({_list(found)}), to functions that "
            "existed only in the process that exported it. Export the function without its callbacks"
        )


def why_not_compiled(exported: ExportedData, error: Exception) -> str | None:
    """Which custom calls XLA lacks, and what to do about it; None if XLA's error has another reason."""
    if not module_head.may_name(exported.mlir_module_serialized, "custom_call"):
        return None
    for platform in dict.fromkeys((_jax.platform_name(), *exported.platforms)):
        missing = {target for target in targets_on(exported, platform) if not is_known(target, platform)}
        if any(_names(str(error), target) for target in missing):
            return (
                f"its module has custom calls that nothing in this process implements on {platform}: {_list(missing)}. "
                "Register each with jax.ffi.register_ffi_target, or import the library that does so, before calling; "
                f"{_origin(missing)}"
            )
    return None


def _names(message: str, target: str) -> bool:
    """Whether XLA's message is about a custom call, however it is worded."""
    return re.search(rf"(?<![\w.]){re.escape(target)}(?![\w.])", message) is not None


def targets_on(exported: ExportedData, platform: str) -> set[str]:
    """The targets of a function's custom calls that may run on a platform."""
    if not module_head.may_name(exported.mlir_module_serialized, "custom_call"):
        return set()
    index = exported.platforms.index(platform) if platform in exported.platforms else 0
    with _jax.make_ir_context() as context:
        return _targets(exported, runnable.parse(exported, context), (index,))


def _targets(exported: ExportedData, module: Any, platforms: Iterable[int]) -> set[str]:
    """The targets of the custom calls that may run on some of the exported platforms."""
    indices: set[int | None] = set(platforms) if len(exported.platforms) > 1 else {None}
    return {mlir.target_of(call) for index in indices for call in branches.custom_calls_on(module, index)}


def _list(targets: Iterable[str]) -> str:
    return ", ".join(sorted(targets))


def _origin(targets: set[str]) -> str:
    if any(target.startswith(("lapack_", "blas_", "cu", "hip")) for target in targets):
        return "those of linear algebra come with jaxlib, and need the JAX release that exported the function"
    return "if jaxlib had them, use the JAX release that exported the function"


# Custom calls that are gone when the program runs: the compiler takes them apart.
_OF_COMPILER = r"""
    (stablehlo|mhlo|chlo|vhlo|sdy|xla|tf)\..*
    | __.*
    | X64.*
    | Sharding | SPMD\w+ToFullShape | SPMD\w+ToShardShape | CustomSPMDPartitioning | ShardBarrier\w+ | InspectSharding
    | annotate_device_placement | MoveTo\w+ | PinTo\w+ | Pin | Unpin | AllocateBuffer | CreateBuffer | LayoutConstraint
    | SetBound | SliceToDynamic | PadToStatic
    | TopK | ApproxTopK | PartialReduce | shape_assertion | dce_sink
"""


def is_of_compiler(target: str) -> bool:
    """Whether a custom call is for the compiler, which does not turn it into a call of native code."""
    return re.fullmatch(_OF_COMPILER, target, re.VERBOSE) is not None


def is_known(target: str, platform: str) -> bool:
    """Whether a custom call is registered for a platform, or needs no registration there."""
    if is_of_compiler(target) or target in _jax.registered_custom_calls(platform):
        return True
    # XLA or a plugin itself may implement these, and no registry says so.
    return platform != "cpu" and target in STABLE_CUSTOM_CALLS
