"""`Exported.call`: takes a fast path if nothing is being traced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxexp import _jax, _native
from jaxexp._errors import ExportError, ExportRuntimeError
from jaxexp._function import data
from jaxexp._function.data import ExportedData
from jaxexp._module import custom_calls, mlir

from . import rules, trees  # noqa: F401  (rules are what calls are traced with)
from .primitive import call_exported_p, code_from_file
from .shared import MAKING, first_of_equals, have_same_nodes

are_plain = _native.Arguments(
    _jax.ArrayImpl, np.ndarray, np.number, _jax.tree_registry, _jax.registered_pytree_nodes
).are_plain


def call_exported(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _jax.trace_state_clean():
        if not are_plain(args, kwargs):
            refuse_misread(exported, args, kwargs)
        # JAX's own dispatch finds the compiled function, and compares trees and types, faster than Python could. What
        # `_eager_callable` keeps is looked up here: its detour takes longer than the look-up.
        try:
            return (exported._kept.eager_call or _eager_callable(exported))(*args, **kwargs)
        except TypeError:
            # Another tree structure comes first: jit looks at the leaves before.
            trees.leaves_and_out_tree(exported, args, kwargs)
            raise
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            explain(exported, error)
            raise
    return _call_traced(exported, args, kwargs)


def lowered(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The `jax.stages.Lowered` of a call with these arguments or specs. If it is compiled, the same call uses the
    result.
    """
    return shared(exported).lower(*args, **kwargs)


def compiled(exported: ExportedData, program: Any) -> Any:
    """The `jax.stages.Compiled` of what `lowered` returned for a function."""
    try:
        return program.compile()
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        explain(exported, error)
        raise


def explain(exported: ExportedData, error: Exception) -> None:
    """Raises a clearer error in the place of one of JAX's, where there is more to say."""
    if isinstance(error, ValueError):
        if (reason := mlir.why_not_refined(error)) is not None:
            raise ExportError(f"calling {exported.fun_name}: its module refuses these shapes: {reason}") from error
    elif (reason := custom_calls.why_not_compiled(exported, error)) is not None:
        raise ExportRuntimeError(f"calling {exported.fun_name}: {reason}") from error


def refuse_misread(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises JAX's own error for an argument that is no array to it.

    JAX raises it while it traces a function. But when the function is compiled, jit takes big-endian arrays, and those
    with a mask, for arrays of the numbers that their bytes would be.
    """
    leaves, _ = trees.leaves_and_out_tree(exported, args, kwargs)
    for leaf in leaves:
        jax.typeof(leaf)


def _eager_callable(exported: ExportedData) -> Any:
    """The function as one jitted callable; the function keeps it."""
    return data.kept(exported, "eager_call", _callable_of)


def _callable_of(exported: ExportedData) -> Any:
    if "executables" not in vars(exported._kept):
        return shared(exported)
    from . import from_file  # which few functions need

    split = functools.partial(trees.leaves_and_out_tree, data.bare(exported))
    return from_file.callable_of(exported, shared, split, _OfLeaves)


def shared(exported: ExportedData) -> Any:
    """The function as a jitted callable, which all equal functions share."""
    return shared_callable(exported, "jitted", _jitted, _flat, lambda leaves: _OfLeaves(data.bare(exported), leaves))


def shared_callable(
    exported: ExportedData,
    name: str,
    make: Callable[[ExportedData], Any],
    flat: Callable[[ExportedData, Any], Callable[..., Any]],
    of_leaves: Callable[[Any], Any],
) -> Any:
    """The jitted callable that all equal functions share, with results in this function's own tree.

    Args:
        exported: the function.
        name: the name under which the first of equal functions keeps the callable.
        make: makes the callable of that function.
        flat: makes one that takes and returns leaves, of a function without custom nodes and that callable.
        of_leaves: where the signature has generic nodes, makes a callable of the jitted function of leaves.
    """
    first = first_of_equals(exported)
    has_generic_nodes = trees.has_generic_nodes(exported)
    with MAKING:
        if has_generic_nodes:
            return of_leaves(data.kept(first, "jitted_leaves", _jitted_leaves))
        jitted = data.kept(first, name, make)
        data.kept(first, "flat", lambda first: functools.partial(flat, first, jitted))
    return jitted if have_same_nodes(exported.out_tree, first.out_tree) else _InOwnTree(exported.out_tree, jitted)


def _jitted(exported: ExportedData) -> Callable[..., Any]:
    return jitted_as(exported, _call_traced)


def _flat(exported: ExportedData, jitted: Any) -> Callable[..., Any]:
    in_tree = exported.in_tree

    def of_leaves(*leaves: Any) -> Any:
        args, kwargs = jax.tree_util.tree_unflatten(in_tree, leaves)
        return jax.tree_util.tree_leaves(jitted(*args, **kwargs))

    return of_leaves


def _jitted_leaves(exported: ExportedData) -> Callable[..., Any]:
    """The function of the leaves of its arguments, as one jitted callable that returns those of its results."""
    return jitted_as(exported, lambda traced, leaves, _: call_exported_p.bind(*leaves, exported=traced))


def jitted_as(exported: ExportedData, apply: Callable[..., Any]) -> Callable[..., Any]:
    """A jitted callable under the function's name; `apply` is given a function, positional and keyword arguments."""
    # JAX keeps what it traced as long as `call`. If that led back to `call`, neither would ever be freed.
    traced = data.bare(exported)

    def call(*args: Any, **kwargs: Any) -> Any:
        return apply(traced, args, kwargs)

    call.__name__ = call.__qualname__ = exported.fun_name
    jitted: Callable[..., Any] = jax.jit(call)
    return jitted


class _InOwnTree:
    """A jitted callable that returns its results in another tree structure, which is equal but not the same."""

    __slots__ = ("jitted", "out_tree")

    def __init__(self, out_tree: Any, jitted: Any) -> None:
        self.out_tree, self.jitted = out_tree, jitted

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        results = jax.tree_util.tree_leaves(self.jitted(*args, **kwargs))
        return jax.tree_util.tree_unflatten(self.out_tree, results)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        return self.jitted.lower(*args, **kwargs)


class _OfLeaves:
    """A callable in whose signature are generic nodes. How arguments fit, and which classes results have, may change
    when a module is imported, so it looks at each call.
    """

    __slots__ = ("exported", "jitted_leaves")

    def __init__(self, exported: ExportedData, jitted_leaves: Any) -> None:
        self.exported, self.jitted_leaves = exported, jitted_leaves

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, out_tree = trees.leaves_and_out_tree(self.exported, args, kwargs)
        return jax.tree_util.tree_unflatten(out_tree, self.jitted_leaves(*leaves))

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        leaves, _ = trees.leaves_and_out_tree(self.exported, args, kwargs)
        return self.jitted_leaves.lower(*leaves)


def _call_traced(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves, out_tree = trees.leaves_and_out_tree(exported, args, kwargs)
    return jax.tree_util.tree_unflatten(out_tree, call_exported_p.bind(*leaves, exported=exported))


def _run(*args: Any, exported: ExportedData, **results: tuple[int, ...]) -> Any:
    """Runs the primitive outside of jit, as a gradient does: with the code that eager calls use, where that can be."""
    if (code := code_from_file(exported, args, **results)) is not None:
        return code.unsafe_call(*args)
    first = first_of_equals(exported)
    # The Python code of the callable would lead back here.
    if not results and not any(mode.value for mode in _jax.python_modes):
        of_leaves = data.kept(first, "of_leaves", _of_leaves)
        if of_leaves is not None:
            return of_leaves(*args)
    return _jax.apply_primitive(call_exported_p, *args, exported=first, **results)


def _of_leaves(first: ExportedData) -> Callable[..., Any] | None:
    """What takes and returns leaves, with the code that eager calls use. None where classes of users would be made of
    arrays for it, which none expects during a gradient.
    """
    if trees.has_generic_nodes(first):
        return data.kept(first, "jitted_leaves", _jitted_leaves)
    if not trees.has_only_containers(first):
        return None
    flat: Callable[[], Callable[..., Any]] | None = vars(first._kept).get("flat")
    return _flat(first, shared(first)) if flat is None else flat()


call_exported_p.def_impl(_run)
