"""The custom calls of a module: which are stable, which call back to Python, and whether this process has them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._artifact import module_head
from jaxexp._artifact.operations import is_understood
from jaxexp._errors import ExportError, ExportRuntimeError
from jaxexp._function.data import ExportedData

from . import mlir

# LAPACK routines that lower to a custom call on CPU, and what some are called in complex arithmetic.
_LAPACK = "potrf geqrf orgqr syevd geev gesdd getrf sytrd gehrd gees trsm gtsv".split()
_COMPLEX_LAPACK = {"orgqr": "ungqr", "syevd": "heevd", "sytrd": "hetrd"}


def _lapack_targets() -> set[str]:
    names = {f"lapack_{precision}{routine}_ffi" for precision in "sd" for routine in _LAPACK}
    return names | {
        f"lapack_{precision}{_COMPLEX_LAPACK.get(name, name)}_ffi" for precision in "cz" for name in _LAPACK
    }


def _gpu_targets() -> set[str]:
    solver = "getrf geqrf orgqr potrf syevd gesvd gesvdj sytrd".split()
    names = {f"{vendor}solver_{routine}_ffi" for vendor, routine in itertools.product(("cu", "hip"), solver)}
    names |= {f"{vendor}_lu_pivots_to_permutation" for vendor in ("cu", "hip")}
    names |= {f"{vendor}_threefry2x32_ffi" for vendor in ("cu", "hip")}
    return names | {"hipsolver_gesdd_ffi", "cusparse_gtsv2_ffi"}


# Custom calls whose meaning JAX promises to keep ("Compatibility guarantees for custom calls" in
# https://docs.jax.dev/en/latest/export/export.html).
STABLE_CUSTOM_CALLS = frozenset(
    _lapack_targets()
    | _gpu_targets()
    | {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"}
    | {"Eigh", "Qr", "ProductOfElementaryHouseholderReflectors", "LuDecomposition", "ApproxTopK"}  # TPU
    | {"tpu_custom_call", "mosaic_gpu_v2"}  # Pallas
    | {f"stablehlo.dynamic_{name}" for name in ("approx_top_k", "reduce_window", "rng_bit_generator", "top_k")}
    | {"tf.call_tf_function", "AllocateBuffer", "shape_assertion"}
)


def check_stable(module: Any, allowed_targets: Collection[str]) -> None:
    """Refuses a module with custom calls, or operations of other dialects, that nobody promises to keep stable.

    Args:
        module: the MLIR module.
        allowed_targets: custom call targets that the user allows besides the stable ones, and names of operations that
            are in no table of `_artifact/operations.py`; "ALL" allows all.

    Raises:
        ExportError: names each such target or operation, where it comes from, and how to allow it.
    """
    if "ALL" in allowed_targets:
        return
    refused: dict[str, Any] = {}
    for operation in mlir.iter_operations(module):
        name = operation.name
        target = mlir.target_of(operation) if name == "stablehlo.custom_call" else name
        if target not in STABLE_CUSTOM_CALLS and target not in allowed_targets and not is_understood(target):
            refused.setdefault(target, operation)
    if not refused:
        return
    examples = "\n".join(f"  {operation} at {operation.location}" for operation in refused.values())
    also_allowed = f" (allowed so far: {', '.join(sorted(allowed_targets))})" if allowed_targets else ""
    raise ExportError(
        f"the function contains custom calls that may change with any release of JAX: {', '.join(sorted(refused))}. "
        f"To export it all the same, pass disabled_checks=[DisabledSafetyCheck.custom_call({min(refused)!r}), ...]"
        f"{also_allowed}. They come from:\n{examples}"
    )


def check_present(exported: ExportedData, module: Any, module_context: Any) -> None:
    """Refuses, before it is compiled, a module that calls what this process does not have.

    If the caller is being exported, another process will run the module, about which nothing is known here.

    Args:
        exported: the function.
        module: its module, brought up to date.
        module_context: the lowering of the caller.

    Raises:
        ExportError: names the targets, and says what to do.
    """
    if not module_head.may_name(exported.mlir_module_serialized, "custom_call"):
        return
    targets = {target for target, _ in mlir.custom_calls(module)}
    callbacks = {target for target in targets if is_callback(target)}
    missing: set[str] = set()
    if not module_context.lowering_parameters.for_export:
        missing = {t for t in targets - callbacks if any(_is_missing(t, p) for p in module_context.platforms)}
    if not callbacks and not missing:
        return
    # In a function for several platforms, these may be calls that only others of them take.
    used = set(map(mlir.target_of, _reachable_calls(module, every_case=len(exported.platforms) == 1)))
    if found := callbacks & used:
        raise ExportError(
            f"calling {exported.fun_name}: its module calls back to Python ({_list(found)}), to functions that "
            "existed only in the process that exported it. Export the function without its callbacks"
        )
    if found := missing & used:
        raise ExportRuntimeError(
            f"calling {exported.fun_name}: its module has custom calls that nothing in this process implements on "
            f"{', '.join(module_context.platforms)}: {_list(found)}. Register each with jax.ffi.register_ffi_target, "
            f"or import the library that does so, before calling; {_origin(found)}"
        )


def _list(targets: Iterable[str]) -> str:
    return ", ".join(sorted(targets))


def _origin(targets: set[str]) -> str:
    if any(target.startswith(("lapack_", "blas_", "cu", "hip")) for target in targets):
        return "those of linear algebra come with jaxlib, and need the JAX release that exported the function"
    return "if jaxlib had them, use the JAX release that exported the function"


# The targets of host callbacks in all releases; their operands or attributes are addresses in the exporting process.
_PYTHON_CALLBACK = re.compile(r"xla_(ffi_|buffer_|partitioned_)*python_\w*callback")


def is_callback(target: str) -> bool:
    """Whether a custom call calls back to Python."""
    return _PYTHON_CALLBACK.fullmatch(target) is not None


# Custom calls that are no calls when the program runs: the compiler takes them apart.
_OF_COMPILER = re.compile(
    r"""
    (stablehlo|mhlo|chlo|vhlo|sdy|xla|tf)\..*
    | __.*
    | X64.*
    | Sharding | SPMD\w+ToFullShape | SPMD\w+ToShardShape | CustomSPMDPartitioning | ShardBarrier\w+ | InspectSharding
    | annotate_device_placement | MoveTo\w+ | PinTo\w+ | Pin | Unpin | AllocateBuffer | CreateBuffer | LayoutConstraint
    | SetBound | SliceToDynamic | PadToStatic
    | TopK | ApproxTopK | PartialReduce | shape_assertion | dce_sink
    """,
    re.VERBOSE,
)

# Targets that have been seen to be there; they stay.
_present: set[tuple[str, str]] = set()


def _is_missing(target: str, platform: str) -> bool:
    """Whether nothing implements a custom call on a platform; False if that cannot be known."""
    if _OF_COMPILER.fullmatch(target) or (target, platform) in _present:
        return False
    if platform != "cpu" and (platform == "tpu" or target in STABLE_CUSTOM_CALLS):
        return False
    if platform == "cpu" and target in _jax.registered_custom_calls("cpu"):
        return False
    try:
        device = jax.local_devices(backend=platform)[0]
    except RuntimeError:
        return False
    if all(_refuses(target, device, version) for version in (_TYPED, _UNTYPED)):
        return True
    _present.add((target, platform))
    return False


_TYPED, _UNTYPED = 4, 2


def _refuses(target: str, device: Any, api_version: int) -> bool:
    """Whether the compiler does not know a custom call: the list that can be asked lacks the untyped ones."""
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((), np.float32), custom_call_api_version=api_version)
    try:
        with jax.default_device(device):
            jax.jit(call).lower(np.float32(0)).compile()
    except jax.errors.JaxRuntimeError as error:
        return str(error).startswith("NOT_FOUND")
    return False


def _reachable_calls(module: Any, *, every_case: bool) -> Iterator[Any]:
    """The custom calls that run when a module's main function does.

    Args:
        module: the module.
        every_case: whether to look into the branches of `stablehlo.case`, by which a module distinguishes platforms.
    """
    symbols = _jax.ir.SymbolTable(module.operation)
    pending, seen = [symbols["main"].operation], {"main"}
    while pending:
        operation = pending.pop()
        if operation.name == "stablehlo.custom_call":
            yield operation
        if operation.name == "stablehlo.case" and not every_case:
            continue
        for name in _references(operation):
            if name not in seen and name in symbols:
                seen.add(name)
                pending.append(symbols[name].operation)
        pending += [inner.operation for region in operation.regions for block in region for inner in block]


def _references(operation: Any) -> Sequence[str]:
    """The functions that an operation calls."""
    attributes = operation.attributes
    names = (name for name in ("callee", "called_computations", "decomposition") if name in attributes)
    return re.findall(r'@"?([^",\]]+)', " ".join(str(attributes[name]) for name in names))
