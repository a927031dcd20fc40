"""Safety checks: on the arguments of `export`, on a lowering, and on the module that goes into an artifact."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._errors import ExportError, UnsupportedError

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

# What a lowering may say about its compilation without changing what its module means or how it is called. A name
# that is not here came with a newer JAX, and is refused until somebody has looked at it.
_KNOWN_COMPILE_ARGS = frozenset(
    "all_args_info all_default_mem_kind auto_spmd_lowering backend committed context_mesh device_assignment "
    "global_in_avals global_out_avals host_callbacks in_layouts in_shardings intermediate_shardings "
    "jaxpr_debug_info keepalive kept_var_idx mesh mut num_devices ordered_effects out_layouts out_shardings "
    "pgle_profiler platforms shape_poly_state tuple_args unordered_effects".split()
)


def check_one_scope(fun_name: str, args_specs: Sequence[Any], kwargs_specs: dict[str, Any]) -> None:
    """Refuses argument specs whose symbolic dimensions come from several scopes, and so cannot be compared."""
    first: tuple[Any, Any] | None = None
    for path, spec in jax.tree_util.tree_flatten_with_path((tuple(args_specs), kwargs_specs))[0]:
        for dim in filter(_jax.is_symbolic_dim, getattr(spec, "shape", ())):
            if first is None:
                first = dim, path
            elif dim.scope is not first[0].scope:
                raise ExportError(
                    f"{fun_name} needs all symbolic dimensions in one scope, but "
                    f"{first[0]} in {_jax.describe_key_path(first[1])} and {dim} in {_jax.describe_key_path(path)} "
                    "come from two: make them with one call of symbolic_shape or symbolic_args_specs, or pass scope="
                )


def check_lowering(computation: Any) -> None:
    """Refuses a lowering that an artifact cannot hold.

    Raises:
        UnsupportedError: it is not from `jax.jit`, calls back to the host, changes its arguments (Refs), or says
            something that this version of jaxexp does not know.
    """
    if not isinstance(computation, _jax.MeshComputation):
        raise UnsupportedError(f"functions made by jax.jit can be exported, this one was lowered as {computation}")
    facts = computation.compile_args
    if facts.get("host_callbacks") or facts.get("keepalive"):
        raise UnsupportedError(
            "the function calls back to Python on the host (jax.debug.print, jax.pure_callback, jax.io_callback or "
            "the like), and Python code cannot be exported: take the callback out, or export the part around it"
        )
    if facts.get("mut"):
        raise UnsupportedError("the function reads or writes mutable arrays (Refs), which cannot be exported")
    if facts.get("auto_spmd_lowering"):
        raise UnsupportedError("shardings that are left to the compiler (AUTO) cannot be exported: state them")
    if unknown := sorted(facts.keys() - _KNOWN_COMPILE_ARGS):
        raise UnsupportedError(f"the lowering says {', '.join(unknown)}, which this version of jaxexp does not know")


def check_module(module: Any, allowed_targets: Collection[str]) -> None:
    """Refuses a module with custom calls that no one promises to keep.

    Args:
        module: the MLIR module.
        allowed_targets: custom call targets that the user allows besides the stable ones; "ALL" allows all.

    Raises:
        ExportError: names each such target, an operation that calls it, and how to allow it.
    """
    if "ALL" in allowed_targets:
        return
    refused: dict[str, Any] = {}
    for target, operation in _jax.custom_calls(module):
        if target not in STABLE_CUSTOM_CALLS and target not in allowed_targets:
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
