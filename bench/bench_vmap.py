"""How long does `jax.vmap` of a loaded function take, beside that of the live function and other ways to have it?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from bench.agree import result_differences
from bench.batches import BATCHES
from bench.cases import Case
from bench.measure import Rival
from bench.program import Program
from bench.question import Question, Trial

Function = Callable[..., Any]


def _is_batch(case: Case) -> bool:
    return case.family == "batch"


def _kind(case: Case) -> str:
    return case.name.split(",")[0]


def _axes(case: Case) -> list[int | None]:
    _, _, mapped = BATCHES[_kind(case)]
    return [0 if is_mapped else None for is_mapped in mapped]


def _rows(case: Case, program: Program) -> tuple[Any, ...]:
    """The arguments of a batch, no two elements of which are alike."""

    def rows(x: Any) -> Any:
        scale = jnp.linspace(0.5, 1.5, case.size, dtype=x.dtype)
        return x[None] * scale.reshape(-1, *[1] * x.ndim)

    return tuple(
        arg if axis is None else jax.tree.map(rows, arg) for arg, axis in zip(program.args, _axes(case), strict=True)
    )


def _of_each(case: Case, function: Function) -> Function:
    """What is done for each element: a call, or its gradient."""
    return jax.grad(function) if case.vjp_order else function


def _mapped(case: Case, function: Function) -> Function:
    return jax.vmap(_of_each(case, function), _axes(case))


def _in_a_loop(case: Case, function: Function) -> Function:
    """jax.export has no rule for jax.vmap: what its users write instead."""
    axes, one = _axes(case), _of_each(case, function)

    def loop(*args: Any) -> Any:
        rows = [arg for arg, axis in zip(args, axes, strict=True) if axis is not None]

        def step(row: list[Any]) -> Any:
            rest = iter(row)
            return one(*(arg if axis is None else next(rest) for arg, axis in zip(args, axes, strict=True)))

        return jax.lax.map(step, rows)

    return loop


def _one_call(case: Case, program: Program, library: Any) -> Function:
    """The function exported for batches of any size, and mapped over that: one call with a longer batch."""
    axes = _axes(case)
    (b,) = library.symbolic_shape("b")

    def symbolic(spec: Any) -> Any:
        return jax.ShapeDtypeStruct((b, *spec.shape), spec.dtype)

    specs = [
        spec if axis is None else jax.tree.map(symbolic, spec) for spec, axis in zip(program.specs, axes, strict=True)
    ]
    exported = library.export(jax.jit(jax.vmap(program.function, axes)), batch_dim="b")(*specs)
    loaded = library.deserialize(bytes(exported.serialize()))

    def mapped(*args: Any) -> Any:
        inner = [
            arg if axis is None else jax.tree.map(lambda x: x[:, None], arg)
            for arg, axis in zip(args, axes, strict=True)
        ]
        return jax.tree.map(lambda x: x[:, 0], jax.vmap(loaded.call, axes)(*inner))

    return mapped


def _trial(
    case: Case, program: Program, subject: ModuleType, oracle: ModuleType, *, prepared: Callable[[Function], Function]
) -> Trial:
    artifact, rows = program.artifact(oracle, case.vjp_order), _rows(case, program)
    ours = prepared(_mapped(case, subject.deserialize(artifact).call))
    theirs = jax.jit(_in_a_loop(case, oracle.deserialize(artifact).call))
    live = prepared(_mapped(case, program.function))
    functions = {"live": live}
    if not case.vjp_order and hasattr(subject, "load_many"):
        functions["batch_dim"] = prepared(_one_call(case, program, subject))
    else:  # there is nothing to declare for gradients
        functions["batch_dim"] = live
    return Trial(
        subject=Rival(lambda: ours(*rows), jax.block_until_ready),
        oracle=Rival(lambda: theirs(*rows), jax.block_until_ready),
        wrong=lambda: result_differences(ours(*rows), live(*rows)),
        beside={
            name: Rival(lambda function=function: function(*rows), jax.block_until_ready)
            for name, function in functions.items()
        },
    )


def _first(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    artifact, rows = program.artifact(oracle, case.vjp_order), _rows(case, program)

    def rival(function: Callable[[], Function]) -> Rival:
        def prepare() -> None:
            jax.clear_caches()

        return Rival(lambda _: function()(*rows), jax.block_until_ready, prepare=prepare)

    def ours() -> Function:
        return jax.jit(_mapped(case, subject.deserialize(artifact).call))

    def live() -> Function:
        return jax.jit(_mapped(case, lambda *args: program.function(*args)))

    return Trial(
        subject=rival(ours),
        oracle=rival(lambda: jax.jit(_in_a_loop(case, oracle.deserialize(artifact).call))),
        wrong=lambda: result_differences(ours()(*rows), live()(*rows)),
        beside={"live": rival(live)},
    )


_LOOP = "jax.export has no rule for `jax.vmap`: `jax.lax.map` of calls is measured instead."
_LIVE = "`jax.vmap` of the live function"
_BATCH_DIM = (
    "the function exported with `batch_dim` for batches of any size, so that the batch is one call; for gradients, "
    "which have no batch dimension, the live function again"
)

QUESTIONS = (
    Question(
        "vmap",
        "`jax.jit(jax.vmap(exported.call))` of a loaded function, compiled before, until the results are ready. "
        f"{_LOOP}",
        partial(_trial, prepared=jax.jit),
        beside={"live": _LIVE, "batch_dim": _BATCH_DIM},
        applies=_is_batch,
    ),
    Question(
        "eager vmap",
        "`jax.vmap(exported.call)` of a loaded function without `jax.jit`, without the first call. For jax.export, a "
        "compiled `jax.lax.map` of calls is measured instead.",
        partial(_trial, prepared=lambda function: function),
        beside={"live": _LIVE, "batch_dim": _BATCH_DIM},
        applies=_is_batch,
        patience=2.0,
    ),
    Question(
        "first vmap",
        "The first result of `jax.jit(jax.vmap(exported.call))`: reading the artifact, reading its module back, "
        f"tracing, compiling, running. {_LOOP}",
        _first,
        beside={"live": _LIVE},
        applies=_is_batch,
        patience=2.0,
    ),
)
