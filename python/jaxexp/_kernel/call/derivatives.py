"""Derivatives of exported functions: the pushforward, and its transpose, which is a call of the VJP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportTypeError, UnsupportedError
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.vjps import chain_up_to

from . import lowering
from .primitive import abstract_eval, call, call_exported_p, pushforward_p
from .shared import first_of_equals


def is_differentiable(aval: Any) -> bool:
    return bool(aval.to_tangent_aval().dtype != _jax.float0)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, exported: ExportedData, results: Sequence[int] | None = None
) -> tuple[Any, Any]:
    wanted = range(len(exported.out_avals)) if results is None else results
    values = call(primals, exported, results)
    wrt = tuple(i for i, tangent in enumerate(tangents) if not isinstance(tangent, _jax.Zero))
    out_tangents: list[Any] = [_jax.Zero(jax.typeof(value).to_tangent_aval()) for value in values]
    moving = tuple(i for i in wanted if is_differentiable(exported.out_avals[i]))
    if wrt and moving:
        directions = (tangents[i] for i in wrt)
        pushed = pushforward_p.bind(*primals, *directions, exported=exported, wrt=wrt, results=moving)
        by_result = dict(zip(moving, pushed, strict=True))
        out_tangents = [by_result.get(i, tangent) for i, tangent in zip(wanted, out_tangents, strict=True)]
    return values, out_tangents


def _transpose(cotangents: Any, *args: Any, exported: ExportedData, **_: Any) -> Any:
    raise UnsupportedError(
        f"jax.linear_transpose of {exported.fun_name}: an exported function is not known to be linear. If this one is, "
        "jax.vjp at any point gives its transpose"
    )


_jax.primitive_jvps[call_exported_p] = _jvp
_jax.primitive_transposes[call_exported_p] = _transpose


def _pushforward(
    *primals_and_tangents: Any, exported: ExportedData, wrt: tuple[int, ...], results: tuple[int, ...]
) -> Any:
    """The tangents of some differentiable results, given the tangents of the arguments `wrt`."""
    n = len(exported.in_avals)
    function, operands = pushforward_call(primals_and_tangents[:n], primals_and_tangents[n:], exported, wrt)
    return call(operands, function, [n + i for i in results])


def pushforward_call(
    primals: Sequence[Any], tangents: Sequence[Any], exported: ExportedData, wrt: tuple[int, ...]
) -> tuple[ExportedData, list[Any]]:
    """The function that computes a pushforward, and its arguments.

    It is the VJP of the VJP. After one result for each primal argument come the tangents, one for each cotangent
    argument of the VJP. They do not depend on the values of these, and are linear in the directions, which come last.
    """
    in_avals = list(map(jax.typeof, primals))
    out_avals, _ = abstract_eval(*in_avals, exported=exported)
    cotangents = cotangents_of(out_avals, {})
    # Cotangents of cotangents are tangents.
    directions = _filled([a.to_tangent_aval() for a in in_avals], dict(zip(wrt, tangents, strict=True)))
    return _vjp_of_vjp(exported), [*primals, *cotangents, *directions]


def _vjp_of_vjp(exported: ExportedData) -> ExportedData:
    def error(found: int) -> ExportError:
        name, order = data.origin(exported)
        return ExportTypeError(  # jax.export has no forward mode, and JAX says so with a TypeError
            f"forward-mode differentiation of {name} needs its VJPs up to order {order + 2}, but it was serialized "
            f"with vjp_order={order + found}: export it again from its code, and serialize it with "
            f"vjp_order={order + 2} or more. Each derivative in forward mode needs two orders; each one in reverse "
            "mode, such as jax.grad, needs one"
        )

    return chain_up_to(exported, 2, error)[-1]


def cotangents_of(avals: Sequence[Any], known: dict[int, Any]) -> list[Any]:
    """A cotangent for each primal value: the known one at its index, otherwise zero."""
    return _filled([aval.to_ct_aval() for aval in avals], known)


def _filled(avals: Sequence[Any], known: dict[int, Any]) -> list[Any]:
    return [known[i] if i in known else _zeros(aval) for i, aval in enumerate(avals)]


def _zeros(aval: Any) -> Any:
    if aval.dtype == _jax.float0:
        return np.zeros(aval.shape, _jax.float0)
    # Without a mesh, even if the type has one: an eager call may not reach its devices. The call places it.
    return jax.numpy.zeros(aval.shape, aval.dtype)


def _pushforward_abstract_eval(
    *avals: Any, exported: ExportedData, wrt: tuple[int, ...], results: tuple[int, ...]
) -> Any:
    out_avals, effects = abstract_eval(*avals[: len(exported.in_avals)], exported=exported, results=results)
    return tuple(aval.to_tangent_aval() for aval in out_avals), effects


def _pushforward_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    exported: ExportedData,
    wrt: tuple[int, ...],
    results: tuple[int, ...],
) -> tuple[Any, Any]:
    n = len(exported.in_avals)
    moved = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, _jax.Zero)]
    if moved and moved[0] >= n:  # only directions, and it is linear in these
        values = pushforward_p.bind(*primals, exported=exported, wrt=wrt, results=results)
        moved_wrt = tuple(wrt[i - n] for i in moved)
        directions = [tangents[i] for i in moved]
        return values, pushforward_p.bind(*primals[:n], *directions, exported=exported, wrt=moved_wrt, results=results)
    function, operands = pushforward_call(primals[:n], primals[n:], exported, wrt)
    moves = [_jax.Zero(jax.typeof(operand).to_tangent_aval()) for operand in operands]
    moves[:n] = tangents[:n]
    for i, tangent in zip(wrt, tangents[n:], strict=True):
        moves[len(operands) - n + i] = tangent
    values, pushed = _jvp(operands, moves, exported=function, results=[n + i for i in results])
    return values, pushed


def _pushforward_transpose(
    cotangents: Sequence[Any],
    *primals_and_tangents: Any,
    exported: ExportedData,
    wrt: tuple[int, ...],
    results: tuple[int, ...],
) -> list[Any]:
    n = len(exported.in_avals)
    primals, tangents = primals_and_tangents[:n], primals_and_tangents[n:]
    out_avals, _ = abstract_eval(*map(jax.typeof, primals), exported=exported)
    given = zip(results, cotangents, strict=True)
    known = {i: cotangent for i, cotangent in given if not isinstance(cotangent, _jax.Zero)}
    wanted = {i: t.aval for i, t in zip(wrt, tangents, strict=True) if _jax.is_undefined_primal(t)}
    pulled = call([*primals, *cotangents_of(out_avals, known)], exported.vjp(), sorted(wanted))
    found = dict(zip(sorted(wanted), pulled, strict=True))
    of_tangents = [as_type(found[i], wanted[i], exported) if i in wanted else None for i in wrt]
    return [None] * n + of_tangents


def as_type(cotangent: Any, aval: Any, exported: ExportedData) -> Any:
    """A cotangent with the sharding that JAX expects, if that is part of its type (Explicit axes)."""
    found = jax.typeof(cotangent)
    if _jax.same_type(found, aval):
        return cotangent
    if found.sharding.mesh != aval.sharding.mesh or found.memory_space != aval.memory_space:
        raise ExportError(
            f"differentiating {exported.fun_name}: a cotangent comes out as {found} on {found.sharding.mesh}, and has "
            f"to be {aval} on {aval.sharding.mesh}, like the argument. Place the arguments as in_shardings_jax(mesh) "
            "says, on a mesh with the axis types of the export"
        )
    return jax.sharding.reshard(cotangent, aval.sharding)


pushforward_p.def_effectful_abstract_eval(_pushforward_abstract_eval)
_jax.primitive_jvps[pushforward_p] = _pushforward_jvp
_jax.primitive_transposes[pushforward_p] = _pushforward_transpose
_jax.register_lowering(pushforward_p, _jax.lower_as_function(_pushforward))


def _run_pushforward(*args: Any, exported: ExportedData, **params: tuple[int, ...]) -> Any:
    with lowering.explaining_devices(exported):
        return _jax.apply_primitive(pushforward_p, *args, exported=first_of_equals(exported), **params)


pushforward_p.def_impl(_run_pushforward)
