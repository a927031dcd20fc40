"""`Exported.call`: takes a fast path if nothing is being traced."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxexp import _jax, _native
from jaxexp._errors import ExportError, ExportRuntimeError
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.module import custom_calls, mlir

from . import rules, trees  # noqa: F401  (rules are what calls are traced with)
from .callables import call_traced, eager_callable, shared_callable
from .first_argument import apart, as_called, program_of

_are_plain = _native.Arguments(
    _jax.ArrayImpl, np.ndarray, np.number, _jax.tree_registry, _jax.registered_pytree_nodes
).are_plain


def call_exported(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _jax.trace_state_clean():
        if not _are_plain(args, kwargs):
            _refuse_misread(exported, args, kwargs)
        # JAX's own dispatch finds the compiled function, and compares trees and types, faster than Python could. What
        # `eager_callable` keeps is looked up here: its detour takes longer than the look-up.
        try:
            return (exported._kept.eager_call or eager_callable(exported))(*args, **kwargs)
        except TypeError:
            # Another tree structure comes first: jit looks at the leaves before.
            trees.leaves_and_out_tree(as_called(exported), args, kwargs)
            raise
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            _explain(exported, error)
            raise
    return call_traced(*apart(exported, args), kwargs)


def lowered(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The `jax.stages.Lowered` of a call with these arguments or specs. If it is compiled, the same call uses the
    result. Nothing is read of what is given with the function.
    """
    program, is_apart, args = apart(exported, args, as_specs=True)
    return shared_callable(program, is_apart).lower(*args, **kwargs)


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
    elif (reason := custom_calls.why_not_compiled(program_of(exported), error)) is not None:
        raise ExportRuntimeError(f"calling {exported.fun_name}: {reason}") from error


def _refuse_misread(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises JAX's own error for an argument that is no array to it.

    JAX raises it while it traces a function. But when the function is compiled, jit takes big-endian arrays, and those
    with a mask, for arrays of the numbers that their bytes would be.
    """
    leaves, _ = trees.leaves_and_out_tree(as_called(exported), args, kwargs)
    for leaf in leaves:
        jax.typeof(leaf)
