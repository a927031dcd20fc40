"""Lowers a mapped call: to the function raised and mapped as a whole, or to a loop of calls."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._errors import ExportError, shown
from jaxexp._kernel.call.derivatives import pushforward_call
from jaxexp._kernel.call.lowering import check_call
from jaxexp._kernel.call.primitive import abstract_eval
from jaxexp._kernel.call.shared import first_of_equals
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._readback.newest import Newest
from jaxexp._readback.refused import RefusedError

from .looped import loop
from .mapped import Element, Level, each, mapped_p

logger = logging.getLogger(__name__)

# How many mapped forms of one function are kept.
_MOST = 32


def _lower(ctx: Any, *operands: Any, element: Element, levels: tuple[Level, ...]) -> Sequence[Any]:
    check_call(ctx.module_context, element.exported)
    # The compiler shards raised code as it likes, whatever the outer types and the current mesh say.
    plain = ctx.replace(avals_in=list(map(_plain, ctx.avals_in)), avals_out=list(map(_plain, ctx.avals_out)))
    # Equal functions are raised and traced once.
    element = dataclasses.replace(element, exported=first_of_equals(element.exported))
    results: Sequence[Any]
    try:
        with jax.sharding.use_abstract_mesh(_jax.empty_abstract_mesh):
            batch = _raised(plain.avals_in, element, levels, ctx.module_context.platforms)
            results = _jax.lower_as_function(batch)(plain, *operands)
    except RefusedError as refused:
        _say_once(element.exported, refused)
        results = _jax.lower_as_function(_looped(element, levels))(ctx, *operands)
    return results


_jax.register_lowering(mapped_p, _lower)


def _plain(aval: Any) -> Any:
    """The type without its facts about devices."""
    return _jax.ShapedArray(aval.shape, aval.dtype, memory_space=aval.memory_space)


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
    known = data.kept(element.exported, "mapped", lambda _: Newest(_MOST))
    key = element.wrt, element.results, levels, tuple(avals), tuple(platforms)
    jitted: Any = known.get(key)
    if jitted is None:
        jitted = _named(each(_one(element, platforms), levels), element.exported.fun_name)
        try:
            jitted.trace(*(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals))
        except ExportError:  # a RefusedError among them
            raise
        except Exception as error:  # JAX's errors for things that it cannot map have any type
            raise RefusedError("an operation", f"{type(error).__name__}: {error}") from error
        known.put(key, jitted)
    mapped: Callable[..., Sequence[Any]] = jitted
    return mapped


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
    out_avals, _ = abstract_eval(*in_avals, exported=exported)
    if len(exported.platforms) == 1 or len(platforms) == 1:
        return raised(exported, in_avals, out_avals, platforms[0]).inline(*arrays)
    choices = {platform: raised(exported, in_avals, out_avals, platform).inline for platform in platforms}
    results: Sequence[Any] = jax.lax.platform_dependent(*arrays, **choices)
    return results


def _say_once(exported: ExportedData, refused: RefusedError) -> None:
    """Logs why a function is mapped by a loop, once for each function and reason."""
    said = data.kept(exported, "reasons_logged", lambda _: set[str]())
    text = str(refused)
    if text not in said:
        said.add(text)
        logger.warning("jax.vmap of %s is a loop, one call after the other: %s", shown(data.described(exported)), text)
