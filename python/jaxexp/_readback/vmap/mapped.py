"""The primitive for a call of an exported function for each element of a batch, and its derivatives.

`jax.vmap` of a call makes it. `mapped_lowering` decides what it becomes when it is lowered. In any case, its
derivatives are the derivatives of each call, mapped over the same batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax

from jaxexp import _jax
from jaxexp._kernel.call.derivatives import as_type, cotangents_of, is_differentiable
from jaxexp._kernel.call.lowering import explaining_devices
from jaxexp._kernel.call.primitive import abstract_eval, call, call_exported_p, check, pushforward_p
from jaxexp._kernel.call.shared import first_of_equals
from jaxexp._kernel.function.data import ExportedData

mapped_p = _jax.Primitive("call_exported_mapped")
mapped_p.multiple_results = True


@dataclasses.dataclass(frozen=True, slots=True)
class Level:
    """One mapped axis of a call. It is the leading one of the arguments and results that have it.

    Attributes:
        size: its length.
        batched: which arguments have it.
        summed: which results are sums over it; the others have it.
        spmd: the mesh axes that the caller of `jax.vmap` wants it sharded over, or None.
    """

    size: Any
    batched: tuple[bool, ...]
    summed: tuple[bool, ...]
    spmd: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Element:
    """The operation for each element of a batch: a call, or the derivative of one, with some of its results.

    Attributes:
        exported: the function.
        wrt: for a pushforward, the arguments that have a tangent; None for a call.
        results: which of the function's results are wanted, or which of their tangents.
    """

    exported: ExportedData
    wrt: tuple[int, ...] | None
    results: tuple[int, ...]

    def bind(self, *arguments: Any) -> list[Any]:
        """One call."""
        if self.wrt is None:
            return call(arguments, self.exported, self.results)
        return pushforward_p.bind(*arguments, exported=self.exported, wrt=self.wrt, results=self.results)

    def types(self, avals: Sequence[Any]) -> tuple[list[Any], set[Any]]:
        """The types of the results, and the effects."""
        rule = abstract_eval if self.wrt is None else partial(pushforward_p.abstract_eval, wrt=self.wrt)
        types, effects = rule(*avals, exported=self.exported, results=self.results)
        return list(types), effects


def of_element(avals: Sequence[Any], levels: Sequence[Level]) -> list[Any]:
    """The types of an element's arguments, given the types of the whole batch's arguments."""
    avals = list(avals)
    for level in levels:
        avals = [
            _jax.mapped_aval(level.size, 0, aval) if is_batched else aval
            for aval, is_batched in zip(avals, level.batched, strict=True)
        ]
    return avals


def _abstract_eval(*avals: Any, element: Element, levels: tuple[Level, ...]) -> tuple[list[Any], set[Any]]:
    types, effects = element.types(of_element(avals, levels))
    for level in reversed(levels):
        types = [
            type_ if is_summed else _jax.unmapped_aval(level.size, 0, type_)
            for type_, is_summed in zip(types, level.summed, strict=True)
        ]
    return types, effects


def each(function: Callable[..., Sequence[Any]], levels: Sequence[Level]) -> Callable[..., Sequence[Any]]:
    """Turns a function of an element's arrays into a function of the whole batch's arrays."""
    for level in reversed(levels):
        function = _each(function, level)
    return function


def _each(function: Callable[..., Sequence[Any]], level: Level) -> Callable[..., Sequence[Any]]:
    def mapped(*arrays: Any) -> list[Any]:
        if not any(level.batched):
            return repeated(function(*arrays), level)
        in_axes = [0 if is_batched else None for is_batched in level.batched]
        named = {} if level.spmd is None else {"spmd_axis_name": level.spmd}
        results = jax.vmap(function, in_axes, axis_size=level.size, **named)(*arrays)
        return [
            lax.reduce_sum(result, (0,)) if is_summed else result
            for result, is_summed in zip(results, level.summed, strict=True)
        ]

    return mapped


def repeated(results: Sequence[Any], level: Level) -> list[Any]:
    """The results for all elements, if they are the same for each."""
    stacked = [lax.broadcast(result, (level.size,)) for result in results]
    return [lax.reduce_sum(s, (0,)) if is_summed else s for s, is_summed in zip(stacked, level.summed, strict=True)]


def _run(*arrays: Any, element: Element, levels: tuple[Level, ...]) -> Any:
    check(element.exported, of_element(list(map(jax.typeof, arrays)), levels)[: len(element.exported.in_avals)])
    shared = dataclasses.replace(element, exported=first_of_equals(element.exported))
    with explaining_devices(element.exported):
        return _jax.apply_primitive(mapped_p, *arrays, element=shared, levels=levels)


mapped_p.def_effectful_abstract_eval(_abstract_eval)
mapped_p.def_impl(_run)


# --- derivatives


def _extended(levels: Sequence[Level], batched_like: Sequence[int], results: Sequence[int]) -> tuple[Level, ...]:
    """Levels for more arguments, each mapped like an existing one, and for some of the results."""
    return tuple(
        dataclasses.replace(
            level,
            batched=(*level.batched, *(level.batched[i] for i in batched_like)),
            summed=tuple(level.summed[i] for i in results),
        )
        for level in levels
    )


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, element: Element, levels: tuple[Level, ...]
) -> tuple[Any, Any]:
    moved = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, _jax.Zero)]
    if element.wrt is not None:
        return _jvp_of_pushforward(primals, tangents, moved, element, levels)
    results = mapped_p.bind(*primals, element=element, levels=levels)
    out_tangents: list[Any] = [_jax.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    wanted = [i for i, result in enumerate(element.results) if is_differentiable(element.exported.out_avals[result])]
    if moved and wanted:
        pushforward = Element(element.exported, tuple(moved), tuple(element.results[i] for i in wanted))
        of_moved = (tangents[i] for i in moved)
        pushed = mapped_p.bind(*primals, *of_moved, element=pushforward, levels=_extended(levels, moved, wanted))
        for i, tangent in zip(wanted, pushed, strict=True):
            out_tangents[i] = tangent
    return results, out_tangents


def _jvp_of_pushforward(
    primals: Sequence[Any], tangents: Sequence[Any], moved: Sequence[int], element: Element, levels: tuple[Level, ...]
) -> tuple[Any, Any]:
    assert element.wrt is not None
    n = len(element.exported.in_avals)
    results = mapped_p.bind(*primals, element=element, levels=levels)
    if moved and moved[0] >= n:  # only directions: it is linear in them
        kept = [*range(n), *moved]
        linear = dataclasses.replace(element, wrt=tuple(element.wrt[i - n] for i in moved))
        fewer = tuple(dataclasses.replace(level, batched=tuple(level.batched[i] for i in kept)) for level in levels)
        return results, mapped_p.bind(*primals[:n], *(tangents[i] for i in moved), element=linear, levels=fewer)

    def pushed(*arrays: Any) -> Sequence[Any]:
        known = dict(zip(moved, arrays[len(primals) :], strict=True))
        values = arrays[: len(primals)]
        moves = [known.get(i, _jax.Zero(jax.typeof(value).to_tangent_aval())) for i, value in enumerate(values)]
        _, out = _jax.primitive_jvps[pushforward_p](
            values, moves, exported=element.exported, wrt=element.wrt, results=element.results
        )
        return list(map(_instantiated, out))

    over = _extended(levels, moved, range(len(element.results)))
    return results, each(pushed, over)(*primals, *(tangents[i] for i in moved))


def _instantiated(tangent: Any) -> Any:
    if not isinstance(tangent, _jax.Zero):
        return tangent
    aval: Any = tangent.aval
    return jax.numpy.zeros(aval.shape, aval.dtype)


def _transpose(cotangents: Sequence[Any], *args: Any, element: Element, levels: tuple[Level, ...]) -> list[Any]:
    exported, wrt = element.exported, element.wrt
    if wrt is None:
        return _jax.primitive_transposes[call_exported_p](cotangents, *args, exported=exported)
    n = len(exported.in_avals)
    primals, tangents = args[:n], args[n:]
    of_primals = [dataclasses.replace(level, batched=level.batched[:n]) for level in levels]
    out_avals, _ = abstract_eval(*of_element(list(map(jax.typeof, primals)), of_primals), exported=exported)
    known = {
        result: (cotangent, i)
        for i, (result, cotangent) in enumerate(zip(element.results, cotangents, strict=True))
        if not isinstance(cotangent, _jax.Zero)
    }
    given = cotangents_of(out_avals, {result: cotangent for result, (cotangent, _) in known.items()})

    def has_axis(result: int, level: Level) -> bool:
        """Whether the cotangent of a result has a mapped axis; a sum's cotangent is the same for all elements."""
        return result in known and not level.summed[known[result][1]]

    linear = [i for i, tangent in enumerate(tangents) if _jax.is_undefined_primal(tangent)]
    pulling = tuple(
        dataclasses.replace(
            level,
            batched=(*level.batched[:n], *(has_axis(result, level) for result in range(len(out_avals)))),
            # An argument that all elements share gets the sum of their cotangents.
            summed=tuple(not level.batched[n + i] for i in linear),
        )
        for level in levels
    )
    pull = Element(exported.vjp(), None, tuple(wrt[i] for i in linear))
    pulled = iter(mapped_p.bind(*primals, *given, element=pull, levels=pulling))
    of_tangents: list[Any] = [None] * len(tangents)
    for i in linear:
        of_tangents[i] = as_type(next(pulled), tangents[i].aval, exported)
    return [None] * n + of_tangents


_jax.primitive_jvps[mapped_p] = _jvp
_jax.primitive_transposes[mapped_p] = _transpose
