"""The correctness flag: what differs between two Exporteds, or between two results of a call."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

FIELDS = (
    "fun_name",
    "in_tree",
    "out_tree",
    "nr_devices",
    "platforms",
    "ordered_effects",
    "unordered_effects",
    "calling_convention_version",
    "module_kept_var_idx",
    "uses_global_constants",
    "_in_named_shardings",
    "_out_named_shardings",
)


def _aval(aval: Any) -> tuple[Any, ...]:
    # Symbolic dimensions of two artifacts have two scopes, so they are never equal, but they print the same.
    return str(aval.shape), aval.dtype, aval.sharding if aval.sharding.mesh.shape else None, aval.memory_space


def exported_differences(found: Any, expected: Any, *, module: bool, vjp_order: int = 0, path: str = "") -> list[str]:
    """The fields, as in `vjp.in_avals`, in which two Exporteds differ; the modules' bytes count if `module` is true."""
    wrong = [path + name for name in FIELDS if getattr(found, name) != getattr(expected, name)]
    for name in ("in_avals", "out_avals"):
        if [_aval(a) for a in getattr(found, name)] != [_aval(a) for a in getattr(expected, name)]:
            wrong.append(path + name)
    if set(map(str, found.disabled_safety_checks)) != set(map(str, expected.disabled_safety_checks)):
        wrong.append(path + "disabled_safety_checks")
    if module and bytes(found.mlir_module_serialized) != bytes(expected.mlir_module_serialized):
        wrong.append(path + "mlir_module_serialized")
    if vjp_order:
        if found.has_vjp() and expected.has_vjp():
            inner = {"module": module, "vjp_order": vjp_order - 1, "path": path + "vjp."}
            wrong += exported_differences(found.vjp(), expected.vjp(), **inner)
        else:
            wrong.append(path + "vjp")
    return wrong


def result_differences(found: Any, expected: Any) -> list[str]:
    """The paths of the results that differ by more than f32 rounding, or in tree, shape or dtype."""
    if jax.tree.structure(found) != jax.tree.structure(expected):
        return ["tree of the results"]
    wrong = []
    for (path, f), e in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        if f.shape != e.shape or f.dtype != e.dtype or not np.allclose(f, e, rtol=1e-5, atol=1e-6):
            wrong.append(f"result{jax.tree_util.keystr(path)}")
    return wrong
