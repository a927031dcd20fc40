"""The specs that stand for arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._errors import ExportError


def check_one_scope(fun_name: str, args_specs: Sequence[Any], kwargs_specs: dict[str, Any]) -> None:
    """Refuses argument specs whose symbolic dimensions come from several scopes, which cannot be compared."""
    first: tuple[Any, Any] | None = None
    for path, spec in jax.tree_util.tree_flatten_with_path((tuple(args_specs), kwargs_specs))[0]:
        for dim in filter(_jax.is_symbolic_dim, getattr(spec, "shape", ())):
            if first is None:
                first = dim, path
            elif dim.scope is not first[0].scope:
                raise ExportError(
                    f"{fun_name} needs all symbolic dimensions in one scope, but "
                    f"{first[0]} in {_jax.describe_key_path(first[1])} and {dim} in {_jax.describe_key_path(path)} "
                    "come from two scopes: make them with one call of symbolic_shape or symbolic_args_specs, or pass "
                    "scope="
                )
