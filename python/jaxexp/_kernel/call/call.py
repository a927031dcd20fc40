"""`Exported.call`: takes a fast path if nothing is being traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax, _native
from jaxexp._errors import DeserializationError, ExportError, cause, shown
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.paths import argument_path
from jaxexp._kernel.module import custom_calls, mlir

from . import derivatives, lowering, trees  # noqa: F401  (these register rules)
from .callables import call_traced, callable_of_leaves, eager_callable
from .first_argument import apart, as_called, program_of
from .primitive import call_exported_p, pushforward_p

_are_plain = _native.Arguments(
    _jax.ArrayImpl, np.ndarray, np.number, _jax.tree_registry, _jax.registered_pytree_nodes
).are_plain


def call_exported(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _jax.trace_state_clean():
        if not _are_plain(args, kwargs):
            _refuse_misread(exported, args, kwargs)
        # JAX's own dispatch finds the compiled function, and compares trees and types, faster than Python could. This
        # looks up what `eager_callable` keeps, because calling it takes longer than the look-up.
        try:
            return (exported._kept.eager_call or eager_callable(exported))(*args, **kwargs)
        except TypeError:
            # Report a wrong tree structure first: jit looks at the leaves before that, and names another argument.
            _refuse_misread(exported, args, kwargs)
            raise
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            _explain(exported, error)
            raise
    return call_traced(*apart(exported, args), kwargs)


def call_leaves(program: ExportedData, leaves: Sequence[Any]) -> Sequence[Any]:
    """The flat results of a call with flat arguments, all of them, also those that are given with the function."""
    try:
        results: Sequence[Any] = callable_of_leaves(program)(*leaves)
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        _explain(program, error)
        raise
    return results


def compiled(exported: ExportedData, program: Any) -> Any:
    """The `jax.stages.Compiled` of a lowered call of a function."""
    try:
        return program.compile()
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        _explain(exported, error)
        raise


def _explain(exported: ExportedData, error: Exception) -> None:
    """Raises a clearer error in place of one of JAX's, if there is more to say; an error about the module gets the name
    of its file.
    """
    if isinstance(error, DeserializationError):
        error.file = error.file or exported._kept.file
    elif isinstance(error, ValueError):
        lowering.explain_devices(exported, error)
        if (reason := mlir.why_not_refined(error)) is not None:
            raise ExportError(f"calling {exported.fun_name}: its module refuses these shapes: {reason}") from cause(
                error
            )
    elif (reason := custom_calls.why_not_compiled(program_of(exported), error)) is not None:
        raise custom_calls.UnknownCustomCallError(f"calling {exported.fun_name}: {reason}") from cause(error)


def _refuse_misread(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises JAX's own error for an argument that is not an array for JAX, with a note that names the argument.

    JAX raises it while it traces a function. But once the function is compiled, jit misreads big-endian and masked
    arrays: it takes their bytes for plain numbers.
    """
    called = as_called(exported)
    leaves, _ = trees.leaves_and_out_tree(called, args, kwargs)
    for index, leaf in enumerate(leaves):
        try:
            jax.typeof(leaf)
        except (TypeError, ValueError) as error:
            where = argument_path(called.in_tree, index)
            error.add_note(shown(f"calling {called.fun_name}: this is {where}, exported as {called.in_avals[index]}"))
            raise


def _batching_rule(primitive: Any) -> Callable[..., Any]:
    """The rule of `jax.vmap`: a method of the function's class."""

    def rule(*mapped: Any, exported: Any, **params: Any) -> Any:
        return exported._batch(primitive, *mapped, exported=exported, **params)

    return rule


for _primitive in (call_exported_p, pushforward_p):
    _jax.fancy_primitive_batchers[_primitive] = _batching_rule(_primitive)
