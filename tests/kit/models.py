"""A model to export."""

from __future__ import annotations

import jaxexp
from kit.corpus import CASES, export_with

KEYWORDS = (
    "fun_name", "in_tree", "in_avals", "out_tree", "out_avals", "_in_named_shardings", "_out_named_shardings",
    "in_shardings_hlo", "out_shardings_hlo", "nr_devices", "platforms", "ordered_effects", "unordered_effects",
    "disabled_safety_checks", "mlir_module_serialized", "calling_convention_version", "module_kept_var_idx",
    "uses_global_constants", "_get_vjp",
)  # fmt: skip


def exported_case(name: str, library=jaxexp):
    return export_with(library, CASES[name].build())
