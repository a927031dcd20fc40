"""`Exported.call`: compares tree structures, and takes the short way where nothing is being traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from . import _jax
from ._errors import ExportError
from ._primitive import call_exported_p

if TYPE_CHECKING:
    from ._exported import Exported


def call_exported(exported: Exported, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _jax.trace_state_clean():
        # JAX's own dispatch finds the compiled function, and compares trees and types, faster than Python could.
        return exported._eager_call(*args, **kwargs)
    return _call_traced(exported, args, kwargs)


def eager_callable(exported: Exported) -> Callable[..., Any]:
    """The function as one jitted callable; `Exported` keeps it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _call_traced(exported, args, kwargs)

    call.__name__ = call.__qualname__ = exported.fun_name
    jitted: Callable[..., Any] = jax.jit(call)
    return jitted


def _call_traced(exported: Exported, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves, in_tree = _jax.flatten_for_tracing((args, kwargs))
    if in_tree != exported.in_tree:
        raise ExportError(_tree_mismatch(exported, in_tree))
    return jax.tree_util.tree_unflatten(exported.out_tree, call_exported_p.bind(*leaves, exported=exported))


def _tree_mismatch(exported: Exported, in_tree: Any) -> str:
    # Any leaves will do to compare structures.
    given, expected = (tree.unflatten(range(tree.num_leaves)) for tree in (in_tree, exported.in_tree))
    differences = [
        f"  {_jax.describe_key_path(path)}: expected {theirs}, found {ours}; {why}"
        for path, ours, theirs, why in _jax.tree_equality_errors(given, expected)
    ]
    return "\n".join(
        [f"calling {exported.fun_name}: the arguments have another tree structure than in export", *differences]
    )
