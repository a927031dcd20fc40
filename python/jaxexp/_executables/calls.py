"""Calls with code that was compiled earlier, and the dispatch of `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaxexp import _jax

from . import reuse

Flattened = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Sequence[Any], Any]]
# Given flat arguments, and what compiles the call to a `jax.stages.Compiled`.
CodeOf = Callable[[Sequence[Any], Callable[[], Any]], "Code | None"]


class Code(NamedTuple):
    """The code of a call.

    Attributes:
        executable: JAX's object, as `_jax.executable_of` returns it.
        give_up: called with the reason if the code fails to run; None if this process compiled it.
    """

    executable: Any
    give_up: Callable[[str], None] | None

    def unsafe_call(self, *leaves: Any) -> Any:
        return self.executable.unsafe_call(*leaves)


def callable_of(
    why_not: Callable[[str], str | None],
    name: str,
    jitted: Callable[[], Any],
    flattened: Flattened,
    code_of: CodeOf,
) -> Any:
    """A callable whose first call with arguments of some types looks for code, without a trace. Later calls use the
    dispatch of `jax.jit`.

    Args:
        why_not: why no code can be used at the moment, given the function's name; None if it can.
        name: of the function.
        jitted: makes the function's jitted callable, for calls that have no code.
        flattened: returns the flat arguments of a call, and the structure of its results.
        code_of: returns the code of a call; None if there is none.
    """

    def plain(*args: Any, **kwargs: Any) -> Any:
        why_not(name)
        return jitted()(*args, **kwargs)

    def miss(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if reuse.why_not() is not None:
            return plain(*args, **kwargs), None
        leaves, out_tree = flattened(args, kwargs)

        def compiled() -> Any:
            return reuse.lowered(jitted(), *args, **kwargs).compile()

        try:
            code = code_of(leaves, compiled)
        except (TypeError, ValueError):  # the call itself explains these
            code = None
        flat = None
        if code is not None:
            try:
                flat = code.unsafe_call(*leaves)
            except jax.errors.JaxRuntimeError as error:
                if code.give_up is None:
                    raise
                code.give_up(f"it does not run: {error}")
        if code is None or flat is None:
            code = Code(_jax.executable_of(compiled()), None)
            flat = code.unsafe_call(*leaves)
        results = jax.tree_util.tree_unflatten(out_tree, flat)
        return results, reuse.for_dispatch(code.executable, out_tree, leaves, flat)

    if _jax.missing_for_reuse is None:
        return reuse.dispatched(name, plain, miss)
    why_not(name)
    return jitted()
