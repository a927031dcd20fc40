"""Lowers a mapped call: to the function raised and mapped as a whole, or to a loop of calls."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._errors import ExportError, cause, shown
from jaxexp._kernel.call.derivatives import pushforward_call
from jaxexp._kernel.call.lowering import check_call
from jaxexp._kernel.call.shared import first_of_equals
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._readback.array_type import plain
from jaxexp._readback.placement import without_meshes
from jaxexp._readback.refused import RefusedError

from .looped import loop
from .mapped import Element, Level, each, mapped_p

logger = logging.getLogger(__name__)

# How many mapped forms of one function are kept.
_MOST = 32


def _lower(ctx: Any, *operands: Any, element: Element, levels: tuple[Level, ...]) -> Sequence[Any]:
    check_call(ctx.module_context, element.exported)
    # The compiler shards raised code as it likes, whatever the outer types and the current mesh say.
    inner = ctx.replace(avals_in=tuple(map(plain, ctx.avals_in)), avals_out=list(map(plain, ctx.avals_out)))
    # Equal functions are raised and traced once.
    element = dataclasses.replace(element, exported=first_of_equals(element.exported))
    raised = data.kept(element.exported, "mapped", lambda _: functools.lru_cache(_MOST)(_raised))
    try:
        with without_meshes():
            batch = raised(inner.avals_in, element, levels, tuple(ctx.module_context.platforms))
            return _jax.lower_as_function(batch)(inner, *operands)
    except RefusedError as refused:
        _say_once(element.exported, refused)
        return _jax.lower_as_function(_looped(element, levels))(ctx, *operands)


_jax.register_lowering(mapped_p, _lower)


def _looped(element: Element, levels: Sequence[Level]) -> Callable[..., Sequence[Any]]:
    """A loop of calls; for several axes, a loop of loops."""
    call: Callable[..., Sequence[Any]] = element.bind
    for level in reversed(levels):
        call = _loop_over(level, call)
    return call


def _loop_over(level: Level, call: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    return lambda *arrays: loop(call, level, arrays)


def _raised(
    avals: Sequence[Any], element: Element, levels: tuple[Level, ...], platforms: Sequence[str]
) -> Callable[..., Sequence[Any]]:
    """The mapped element, raised; a jitted function, so that JAX traces it once and finds it again.

    Raises:
        RefusedError: it cannot be raised, or JAX cannot map it.
    """
    jitted = _named(each(_one(element, platforms), levels), element.exported.fun_name)
    try:
        jitted.trace(*(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals))
    except ExportError:  # a RefusedError among them
        raise
    except Exception as error:  # JAX's errors for things that it cannot map have any type
        raise RefusedError("an operation", f"{type(error).__name__}: {error}") from cause(error)
    return jitted


def _named(function: Callable[..., Sequence[Any]], name: str) -> Any:
    def mapped(*arrays: Any) -> Sequence[Any]:
        return function(*arrays)

    mapped.__name__ = mapped.__qualname__ = f"mapped_{name}"
    return jax.jit(mapped)


def _one(element: Element, platforms: Sequence[str]) -> Callable[..., Sequence[Any]]:
    """The operation for one element, raised when it is traced."""
    exported, wrt = element.exported, element.wrt
    n = len(exported.in_avals)

    def called(*arrays: Any) -> Sequence[Any]:
        results = _call_raised(exported, arrays, platforms)
        return [results[i] for i in element.results]

    def pushed(*arrays: Any) -> Sequence[Any]:
        assert wrt is not None
        function, operands = pushforward_call(arrays[:n], arrays[n:], exported, wrt)
        results = _call_raised(function, operands, platforms)
        return [results[n + i] for i in element.results]

    return called if wrt is None else pushed


def _call_raised(exported: ExportedData, arrays: Sequence[Any], platforms: Sequence[str]) -> Sequence[Any]:
    from jaxexp._readback.function import raised  # only batches need it

    in_avals = list(map(jax.typeof, arrays))
    if len(exported.platforms) == 1 or len(platforms) == 1:
        return raised(exported, in_avals, platforms[0]).inline(*arrays)
    choices = {platform: raised(exported, in_avals, platform).inline for platform in platforms}
    return jax.lax.platform_dependent(*arrays, **choices)


def _say_once(exported: ExportedData, refused: RefusedError) -> None:
    """Logs why a function is mapped by a loop, once for each function and reason."""
    said = data.kept(exported, "reasons_logged", lambda _: set[str]())
    text = str(refused)
    if text not in said:
        said.add(text)
        logger.warning("jax.vmap of %s is a loop, one call after the other: %s", shown(data.described(exported)), text)
