"""`jaxexp from-stablehlo`: writes an artifact of a module of another producer."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import click

from jaxexp._cli import options, outputs
from jaxexp._cli.options import argument, option
from jaxexp._cli.page import say
from jaxexp._kernel.io.other_files import ARTIFACT


@options.command("Make an artifact from a StableHLO module.")
def command(
    module: str = argument("MODULE", type=click.Path(exists=True, dir_okay=False)),
    output: options.File = option("-o, --output OUT", "The artifact.", required=True),
    entry: str | None = option("--entry NAME", "The function to call; by default main, or the only public function."),
    name: str | None = option(
        "--name NAME", "The name of the function in the artifact; by default the name of the module."
    ),
    platforms: tuple[str, ...] = option(
        "--platform NAME",
        "A platform to call it on, such as cuda; by default the platform of the installed JAX. May be repeated.",
    ),
    shapes: tuple[str, ...] = option(
        "--shape INDEX=SHAPE",
        "The shape of an argument with dynamic dimensions, as in 0=batch,784; the first index is 0. May be repeated.",
    ),
    allowed: tuple[str, ...] = option(
        "--allow-custom-call TARGET", "Allow this custom call, which is not known to be stable. May be repeated."
    ),
    vjp_order: int = option(
        "--vjp-order N",
        "How many VJPs to make. They differentiate the module as it is written, without custom derivatives of its "
        "source.",
    ),
    force: bool = option("--force", "Replace OUT if it exists."),
) -> None:
    """Make an artifact from a StableHLO module of another program, such as PyTorch, TensorFlow or Reactant.jl.

    MODULE is a file with StableHLO text or MLIR bytecode. This imports JAX. The exit status is 1 if the module cannot
    become an artifact.

    Example:
      jaxexp from-stablehlo model.mlir -o model.jaxexp
      jaxexp from-stablehlo model.mlirbc --vjp-order 1 -o model.jaxexp
      jaxexp from-stablehlo model.mlirbc --shape 0=batch,784 -o model.jaxexp
    """
    outputs.refuse_to_replace(output, ARTIFACT, force=force)
    from jaxexp._compat.foreign.from_stablehlo import from_stablehlo
    from jaxexp._kernel.function.safety_check import DisabledSafetyCheck

    exported = from_stablehlo(
        pathlib.Path(module),
        entry=entry,
        name=name,
        platforms=platforms or None,
        shapes=dict(map(_shape, shapes)),
        disabled_checks=[DisabledSafetyCheck.custom_call(target) for target in allowed],
        differentiable=vjp_order > 0,
    )
    exported.save(output, vjp_order=vjp_order)
    say(f"{module} -> {output}: {exported.fun_name}, {os.path.getsize(output):,} bytes")


def _shape(given: str) -> tuple[int, Any]:
    index, is_there, shape = given.partition("=")
    if not is_there or not index.strip().isdecimal():
        raise click.UsageError(f"--shape {given!r}: expected the index of an argument and its shape, as in 0=batch,3")
    return int(index), shape
