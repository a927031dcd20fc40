"""Turns a block into one jaxpr: JAX traces steps that are alike once, and their equations are copied for the others.

This makes long modules fast to trace: for JAX, tracing one operation takes as long as everything else about reading it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from jaxexp import _jax

from .program import ALIAS, Block, Step

# For how many of the caller's meshes a function is kept.
_MOST_MESHES = 8


def jitted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A jitted function that JAX traces anew for each mesh that the caller sets; its own caches mix some of them up."""

    @functools.lru_cache(_MOST_MESHES)
    def traced(mesh: Any) -> Any:
        def call(*arguments: Any) -> Any:
            return function(*arguments)

        call.__name__ = call.__qualname__ = name
        return jax.jit(call)

    return lambda *arguments: traced(_jax.mesh_in_context.value)(*arguments)


def jitted_block(block: Block, name: str, *, is_staged: bool = True) -> Callable[..., Any]:
    """A block without captures as a jitted function; staged where that is possible, which is worth it for long ones."""
    whole = jitted(lambda *arguments: block(arguments), name)

    def one_equation(*arguments: Any) -> Any:
        avals = tuple(map(jax.typeof, arguments))
        equation = staged(block, avals, name, _jax.mesh_in_context.value)
        if equation is None:
            return whole(*arguments)
        primitive, params = equation
        return primitive.bind(*arguments, **params)

    return one_equation if is_staged else whole


class _Equations(NamedTuple):
    """What a step became: variables and equations, and for each result a variable or a literal."""

    inputs: Sequence[Any]
    equations: Sequence[Any]
    outputs: Sequence[Any]


@_jax.cached_with_first()
def staged(block: Block, avals: tuple[Any, ...], name: str, mesh: Any) -> tuple[Any, dict[str, Any]] | None:
    """A block without captures as one equation; cached as long as it exists and JAX's settings do not change.

    The mesh is the one that the caller has set.

    Returns:
        Its primitive and its parameters. None if types say more than shapes and dtypes: if they name meshes or are
        weak, only a trace of each step tells what it makes.

    Raises:
        RefusedError: a step cannot be run.
    """
    if any(aval != _jax.ShapedArray(aval.shape, aval.dtype) for aval in avals):
        return None
    closed, each = _traced(block, avals)
    parameters = [_jax.Variable(aval) for aval in avals]
    atoms: dict[int, Any] = dict(zip(block.parameters, parameters, strict=True))
    equations: list[Any] = []
    for step in block.steps:
        inputs = [atoms[number] for number in step.inputs]
        outputs = inputs if step.name == ALIAS else _copied(each[step.run], inputs, equations)
        if outputs is None:
            return None
        atoms.update(zip(step.outputs, outputs, strict=True))
    results = [atoms[number] for number in block.results]
    jaxpr = closed.jaxpr.replace(invars=parameters, outvars=results, eqns=equations)
    call = _call_like(avals, [result.aval for result in results], name)
    return call.primitive, {**call.params, "jaxpr": closed.replace(jaxpr=jaxpr, consts=closed.consts)}


def _copied(of_step: _Equations, inputs: Sequence[Any], equations: list[Any]) -> Sequence[Any] | None:
    """Appends a step's equations for other inputs, and returns its results; None if the inputs have other types."""
    renamed = dict(zip(of_step.inputs, inputs, strict=True))
    if any(before.aval is not now.aval and before.aval != now.aval for before, now in renamed.items()):
        return None
    for equation in of_step.equations:
        made = [type(variable)(variable.aval) for variable in equation.outvars]
        equations.append(equation.replace(invars=[_renamed(v, renamed) for v in equation.invars], outvars=made))
        renamed.update(zip(equation.outvars, made, strict=True))
    return [_renamed(v, renamed) for v in of_step.outputs]


def _renamed(atom: Any, renamed: Mapping[Any, Any]) -> Any:
    return atom if isinstance(atom, _jax.Literal) else renamed.get(atom, atom)


def _traced(block: Block, avals: Sequence[Any]) -> tuple[Any, dict[Callable[..., Any], _Equations]]:
    """The steps of a block, one of those that are alike: in one jaxpr, and as equations by what they run."""
    alike: dict[Callable[..., Any], Step] = {}
    types: dict[int, Any] = dict(zip(block.parameters, avals, strict=True))
    for step in block.steps:
        if step.name != ALIAS:
            alike.setdefault(step.run, step)
        types.update(zip(step.outputs, step.types, strict=True))
    specs = [jax.ShapeDtypeStruct(types[n].shape, types[n].dtype) for step in alike.values() for n in step.inputs]

    def all_of_them(*arrays: Any) -> list[Any]:
        rest = iter(arrays)
        return [result for step in alike.values() for result in step.results(list(islice(rest, len(step.inputs))))]

    closed: Any = jax.make_jaxpr(all_of_them)(*specs)
    inputs, outputs = iter(closed.jaxpr.invars), iter(closed.jaxpr.outvars)
    maker = {variable: index for index, equation in enumerate(closed.jaxpr.eqns) for variable in equation.outvars}
    each = {}
    for run, step in alike.items():
        own_inputs, own_outputs = list(islice(inputs, len(step.inputs))), list(islice(outputs, len(step.outputs)))
        equations = [closed.jaxpr.eqns[index] for index in sorted(_needed(own_outputs, closed.jaxpr.eqns, maker))]
        each[run] = _Equations(own_inputs, equations, own_outputs)
    return closed, each


def _needed(results: Sequence[Any], equations: Sequence[Any], maker: Mapping[Any, int]) -> set[int]:
    """The equations that some results need."""
    found: set[int] = set()
    pending = list(results)
    while pending:
        atom = pending.pop()
        if not isinstance(atom, _jax.Literal) and (index := maker.get(atom)) is not None and index not in found:
            found.add(index)
            pending += equations[index].invars
    return found


def _call_like(avals: Sequence[Any], results: Sequence[Any], name: str) -> Any:
    """The equation that JAX makes for a call of a jitted function with these types."""

    def function(*_: Any) -> list[Any]:
        return [lax.broadcast(np.zeros((), aval.dtype), aval.shape) for aval in results]

    function.__name__ = function.__qualname__ = name
    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    (equation,) = jax.make_jaxpr(jax.jit(function))(*specs).eqns
    return equation
