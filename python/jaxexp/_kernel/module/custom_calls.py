"""Checks the custom calls of a module: for stability, for callbacks to Python, and whether this process has them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportRuntimeError, Lines
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.artifact.operations import STABLE_CUSTOM_CALLS, is_callback, is_understood
from jaxexp._kernel.function.data import ExportedData
from jaxexp._public import public

from . import mlir, runnable


@public
class UnknownCustomCallError(ExportRuntimeError, _jax.JaxRuntimeError):
    """A custom call that this process does not implement."""


def check_stable(module: Any, allowed_targets: Collection[str]) -> None:
    """Refuses a module with custom calls, or operations that are not in the tables of `_kernel/artifact/operations.py`,
    whose targets or names are not promised to be stable, and not allowed by the user; "ALL" allows all.
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
    """Refuses a module that would call back to Python on these of the exported platforms: to addresses in the process
    that exported it.
    """
    if not module_head.may_name(exported.mlir_module_serialized, "custom_call"):
        return
    if not any(is_callback(target) for target, _ in mlir.custom_calls(module)):
        return
    if found := ", ".join(sorted({*filter(is_callback, _targets(exported, module, platforms))})):
        raise ExportError(
            f"calling {exported.fun_name}: its module calls back to Python ({found}), to functions that "
            "existed only in the process that exported it. Export the function without its callbacks"
        )


def why_not_compiled(exported: ExportedData, error: Exception) -> str | None:
    """Which custom calls XLA lacks, and what to do about it; None if XLA's error has another reason."""
    if not module_head.may_name(exported.mlir_module_serialized, "custom_call"):
        return None
    for platform in dict.fromkeys((_jax.platform_name(), *exported.platforms)):
        missing = {target for target in targets_on(exported, platform) if not is_known(target, platform)}
        # XLA's message names it, however that is worded.
        if any(re.search(rf"(?<![\w.]){re.escape(target)}(?![\w.])", str(error)) for target in missing):
            names = ", ".join(sorted(missing))
            return (
                f"its module has custom calls that nothing in this process implements on {platform}: {names}. "
                "Register each with jax.ffi.register_ffi_target, or import the library that does so, before calling; "
                f"{_origin(missing)}"
            )
    return None


def targets_on(exported: ExportedData, platform: str) -> set[str]:
    if not module_head.may_name(exported.mlir_module_serialized, "custom_call"):
        return set()
    index = exported.platforms.index(platform) if platform in exported.platforms else 0
    with _jax.make_ir_context() as context:
        return _targets(exported, runnable.parse(exported, context), (index,))


def _targets(exported: ExportedData, module: Any, platforms: Iterable[int]) -> set[str]:
    indices: set[int | None] = set(platforms) if len(exported.platforms) > 1 else {None}
    return {mlir.target_of(call) for index in indices for call in custom_calls_on(module, index)}


def _origin(targets: set[str]) -> str:
    if any(target.startswith(("lapack_", "blas_", "cu", "hip")) for target in targets):
        return "custom calls of linear algebra come with jaxlib, and need the JAX release that exported the function"
    return "if they came with jaxlib, use the JAX release that exported the function"


# Custom calls that are gone when the program runs: the compiler takes them apart, and calls no native code for them.
_OF_COMPILER = r"""
    (stablehlo|mhlo|chlo|vhlo|sdy|xla|tf)\..*
    | __.*
    | X64.*
    | Sharding | SPMD\w+ToFullShape | SPMD\w+ToShardShape | CustomSPMDPartitioning | ShardBarrier\w+ | InspectSharding
    | annotate_device_placement | MoveTo\w+ | PinTo\w+ | Pin | Unpin | AllocateBuffer | CreateBuffer | LayoutConstraint
    | SetBound | SliceToDynamic | PadToStatic
    | TopK | ApproxTopK | PartialReduce | shape_assertion | dce_sink
"""


def is_known(target: str, platform: str) -> bool:
    """Whether a custom call is registered for a platform, or needs no registration there."""
    if re.fullmatch(_OF_COMPILER, target, re.VERBOSE) or target in _jax.registered_custom_calls(platform):
        return True
    # XLA or a plugin itself may implement these, and no registry says so.
    return platform != "cpu" and target in STABLE_CUSTOM_CALLS


# At most this many operations may lie between the platform index and the index of a branch; JAX needs a few for each
# `lax.platform_dependent`. If there are more, all branches count.
_MOST_STEPS = 64

# More than there are platforms. Each function is visited at most once for each.
_MOST_PLATFORMS = 8


def custom_calls_on(module: Any, platform: int | None) -> Iterator[Any]:
    """The custom calls that may run when main is called with a platform index; None if main takes none."""
    symbols = _jax.ir.SymbolTable(module.operation)
    pending: list[tuple[Any, int | None]] = [(symbols["main"].operation, platform)]
    seen = {("main", platform)}
    while pending:
        operation, first_argument = pending.pop()
        if operation.name == "stablehlo.custom_call":
            yield operation
        passed = None
        if operation.name == "func.call" and len(operation.operands):
            passed = _number(operation.operands[0], first_argument)
        for name in _references(operation):
            if (name, passed) not in seen and name in symbols:
                seen.add((name, passed))
                pending.append((symbols[name].operation, passed))
        regions = list(operation.regions)
        if operation.name == "stablehlo.case" and (index := _number(operation.operands[0], first_argument)) is not None:
            regions = [regions[_branch(index, regions)]]
        for region in regions:
            pending += [(inner.operation, first_argument) for block in region for inner in block]


def _branch(index: int, regions: Sequence[Any]) -> int:
    """The branch of a case: the last one if no branch has this index."""
    return min(index, len(regions) - 1)


def _number(value: Any, first_argument: int | None) -> int | None:
    """The value of an integer that depends only on the first argument of its function; None for any other value."""
    waiting: list[tuple[Any, int]] = []  # the operations that lead to `value`, with the index of a result
    for _ in range(_MOST_STEPS):
        number = None
        if isinstance(value.owner, _jax.ir.Block):
            around = value.owner.owner.operation
            number = first_argument if around.name == "func.func" and value.arg_number == 0 else None
        else:
            operation = value.owner.operation
            if operation.name == "stablehlo.convert" and _is_index(value) and _is_index(operation.operands[0]):
                value = operation.operands[0]
                continue
            if operation.name in ("stablehlo.case", "stablehlo.clamp"):
                waiting.append((operation, value.result_number))
                value = operation.operands[1 if operation.name == "stablehlo.clamp" else 0]
                continue
            number = _constant(operation)
        while number is not None and waiting and waiting[-1][0].name == "stablehlo.clamp":
            least, _, most = waiting.pop()[0].operands
            low, high = _constant(least.owner), _constant(most.owner)
            number = None if low is None or high is None else min(max(low, number), high)
        if number is None or not waiting:
            return number
        chosen, result = waiting.pop()
        branch = chosen.regions[_branch(number, chosen.regions)].blocks[0]
        value = branch.operations[len(branch.operations) - 1].operands[result]
    return None


def _is_index(value: Any) -> bool:
    """Whether a value has one of the types that JAX gives to the index of a platform."""
    return str(value.type) in ("tensor<i32>", "tensor<i64>")


def _constant(owner: Any) -> int | None:
    """The value of an operation that is a small integer scalar; None for any other operation or block."""
    if isinstance(owner, _jax.ir.Block) or owner.operation.name != "stablehlo.constant":
        return None
    operation = owner.operation
    value = operation.attributes["value"]
    if not _is_index(operation.results[0]) or not isinstance(value, _jax.ir.DenseIntElementsAttr):
        return None
    number = int(value[0])
    return number if 0 <= number < _MOST_PLATFORMS else None


def _references(operation: Any) -> Sequence[str]:
    attributes = operation.attributes
    names = (name for name in ("callee", "called_computations", "decomposition") if name in attributes)
    return re.findall(r'@"?([^",\]]+)', " ".join(str(attributes[name]) for name in names))
