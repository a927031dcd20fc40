"""`Exported.call`: compares tree structures, and takes a fast path if nothing is being traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax, _native
from jaxexp._errors import ExportError, ExportRuntimeError
from jaxexp._function import data
from jaxexp._function.data import ExportedData
from jaxexp._module import custom_calls, mlir

from . import batching, derivatives, lowering  # noqa: F401  (they give the primitives their rules)
from .primitive import call_exported_p
from .shared import MAKING, first_of_equals, have_same_nodes

_are_plain = _native.Arguments(_jax.ArrayImpl, np.ndarray, np.number, _jax.tree_registry).are_plain


def call_exported(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _jax.trace_state_clean():
        if not _are_plain(args, kwargs):
            _refuse_misread(exported, args, kwargs)
        # JAX's own dispatch finds the compiled function, and compares trees and types, faster than Python could. What
        # `_eager_callable` keeps is looked up here: its detour takes longer than the look-up.
        try:
            return (exported.__dict__.get("_eager_call") or _eager_callable(exported))(*args, **kwargs)
        except TypeError:
            _leaves(exported, args, kwargs)  # another structure comes first: jit looks at the leaves before
            raise
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            _explain(exported, error)
            raise
    return _call_traced(exported, args, kwargs)


def lowered(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The `jax.stages.Lowered` of a call with these arguments or specs. If it is compiled, the same call uses the
    result.
    """
    return _eager_callable(exported).lower(*args, **kwargs)


def compiled(exported: ExportedData, program: Any) -> Any:
    """The `jax.stages.Compiled` of what `lowered` returned for a function."""
    try:
        return program.compile()
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        _explain(exported, error)
        raise


def _explain(exported: ExportedData, error: Exception) -> None:
    """Raises a clearer error in the place of one of JAX's, where there is more to say."""
    if isinstance(error, ValueError):
        if (reason := mlir.why_not_refined(error)) is not None:
            raise ExportError(f"calling {exported.fun_name}: its module refuses these shapes: {reason}") from error
    elif (reason := custom_calls.why_not_compiled(exported, error)) is not None:
        raise ExportRuntimeError(f"calling {exported.fun_name}: {reason}") from error


def _refuse_misread(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises JAX's own error for an argument that is no array to it.

    JAX raises it while it traces a function. But when the function is compiled, jit takes big-endian arrays, and those
    with a mask, for arrays of the numbers that their bytes would be.
    """
    for leaf in _leaves(exported, args, kwargs):
        jax.typeof(leaf)


def _eager_callable(exported: ExportedData) -> Any:
    """The function as one jitted callable; the function keeps it."""
    return data.kept(exported, "_eager_call", _shared_callable)


def _shared_callable(exported: ExportedData) -> Any:
    """The jitted callable that all equal functions share, with results in this function's own tree."""
    first = first_of_equals(exported)
    with MAKING:
        jitted = data.kept(first, "_jitted", _jitted)
    return jitted if have_same_nodes(exported.out_tree, first.out_tree) else _InOwnTree(exported.out_tree, jitted)


def _jitted(exported: ExportedData) -> Callable[..., Any]:
    # JAX keeps what it traced as long as `call`. If that led back to `call`, neither would ever be freed.
    traced = data.bare(exported)

    def call(*args: Any, **kwargs: Any) -> Any:
        return _call_traced(traced, args, kwargs)

    call.__name__ = call.__qualname__ = exported.fun_name
    jitted: Callable[..., Any] = jax.jit(call)
    return jitted


@dataclasses.dataclass(frozen=True, slots=True)
class _InOwnTree:
    """A jitted callable that returns its results in another tree structure, which is equal but not the same."""

    out_tree: Any
    jitted: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        results = jax.tree_util.tree_leaves(self.jitted(*args, **kwargs))
        return jax.tree_util.tree_unflatten(self.out_tree, results)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        return self.jitted.lower(*args, **kwargs)


def _call_traced(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves = _leaves(exported, args, kwargs)
    return jax.tree_util.tree_unflatten(exported.out_tree, call_exported_p.bind(*leaves, exported=exported))


def _leaves(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    leaves: Sequence[Any]
    leaves, in_tree = _jax.flatten_for_tracing((args, kwargs))
    if in_tree != exported.in_tree:
        raise ExportError(tree_mismatch(exported, in_tree))
    return leaves


def tree_mismatch(exported: ExportedData, in_tree: Any) -> str:
    # Any leaves will do to compare structures.
    given, expected = (tree.unflatten(range(tree.num_leaves)) for tree in (in_tree, exported.in_tree))
    differences = [
        f"  {_jax.describe_key_path(path)}: expected {theirs}, found {ours}; {why}"
        for path, ours, theirs, why in _jax.tree_equality_errors(given, expected)
    ]
    return "\n".join(
        [
            f"calling {exported.fun_name}: the arguments have another tree structure than in export. Pass each one by "
            "position or by keyword as in export, without those that jit took as static: they are part of the function",
            *differences,
        ]
    )
