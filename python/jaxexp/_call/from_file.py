"""Eager calls of functions that a file of executables was given with: the first one runs code from the file, without a
trace, and the next ones have the dispatch of `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxexp._compiled import reuse
from jaxexp._function import data
from jaxexp._function.data import ExportedData

from . import trees
from .primitive import code_from_file

_Split = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Sequence[Any], Any]]


def callable_of(
    exported: ExportedData,
    shared: Callable[[ExportedData], Any],
    split: _Split,
    of_leaves: Callable[[ExportedData, Any], Any],
) -> Any:
    """The callable of a function for eager calls.

    Args:
        exported: the function.
        shared: makes the jitted callable, which is made only where a call needs it.
        split: returns the flat arguments of a call, and the structure of its results.
        of_leaves: where the signature has generic nodes, makes a callable of one that takes leaves.
    """
    # What JAX keeps of a callable must not lead back to the function.
    own = data.bare(exported)
    vars(data.kept_by(own))["executables"] = vars(exported._kept)["executables"]
    if trees.has_generic_nodes(own):
        return of_leaves(own, _dispatched(own, lambda: shared(own).jitted_leaves, _of_leaves(own)))
    return _dispatched(own, lambda: shared(own), split)


def _dispatched(exported: ExportedData, shared: Callable[[], Any], split: _Split) -> Any:
    def plain(*args: Any, **kwargs: Any) -> Any:
        return shared()(*args, **kwargs)

    def miss(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if reuse.why_not() is not None:
            return plain(*args, **kwargs), None
        leaves, out_tree = split(args, kwargs)
        try:
            code = code_from_file(exported, leaves)
        except (TypeError, ValueError):  # which the call itself explains
            code = None
        flat = None
        if code is not None:
            try:
                flat = code.unsafe_call(*leaves)
            except jax.errors.JaxRuntimeError as error:
                vars(exported._kept)["executables"].give_up(code, f"it does not run: {error}")
        if flat is None:
            code = reuse.executable_of(shared().lower(*args, **kwargs).compile())
            flat = code.unsafe_call(*leaves)
        results = jax.tree_util.tree_unflatten(out_tree, flat)
        return results, reuse.for_dispatch(code, out_tree, leaves, flat)

    if not reuse.is_possible():
        return shared()
    return reuse.dispatched(exported.fun_name, plain, miss)


def _of_leaves(exported: ExportedData) -> _Split:
    out_tree = jax.tree_util.tree_structure([0] * len(exported.out_avals))
    return lambda leaves, _: (leaves, out_tree)
