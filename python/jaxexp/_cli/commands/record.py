"""`jaxexp record`: makes a call, and keeps what it took and returned in the artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jaxexp._cli import functions, inputs, options
from jaxexp._cli.functions import CallArguments
from jaxexp._cli.options import argument, option
from jaxexp._cli.page import progress, say
from jaxexp._kernel.artifact.words import counted

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.cases import Drawn


@options.command("Record a call in an artifact, for 'check'.", options.IMPORTS)
def command(
    file: str = options.FILE,
    given: tuple[options.File, ...] = argument("[ARG]..."),
    is_random: bool = option(
        "--random", "Use random numbers for all other arguments. The artifact has only their seeds."
    ),
    seed: int = option(
        "--seed SEED", "With --random, the seed of the numbers; by default 0.", type=click.IntRange(0, (1 << 31) - 1)
    ),
    sized: tuple[str, ...] = options.size(),
    name: str | None = option("--name NAME", "The name of the case; by default a number."),
    vjp_order: int = option("--vjp-order", "Record a call of the VJP of this order, with random cotangents."),
    tolerance: Any = options.tolerance(
        "The tolerance of the results. 'dtype', the default, depends only on their dtypes. 'measured' measures the "
        "effect of rounding, with several calls.",
        "dtype",
        "measured",
    ),
    trace: bool = option(
        "--trace",
        "Record fingerprints of the results of all operations, so that 'check' can name the first operation that "
        "differs.",
    ),
    replace: bool = option("--replace", "Replace the old cases of the artifact."),
) -> int:
    """Call a function, and add the arguments and results to its file as a case, so that 'check' can repeat the call.

    ARGs are as in 'run'. Only the trailer of the file is written again, and jax.export reads the file as before. If
    arrays take more than 64 KiB, the largest go to a file beside it, NAME.cases.safetensors. This imports JAX, and runs
    the function: record only functions that you trust.

    Example:
      jaxexp record model.jaxexp inputs.npz --name first
      jaxexp record model.jaxexp --random --size batch=4 --tolerance 1e-4 --trace
      jaxexp check model.jaxexp
    """
    from jaxexp._fleet.places.load import record
    from jaxexp._kernel.artifact.cases import MEASURED_BY, UNSTABLE

    if sized and not is_random:
        raise click.UsageError("--size is for random numbers: add --random")
    source = inputs.artifact(file)
    if source.path is None:
        raise click.UsageError(
            f"{file!r} is a member of an archive, and record changes no archive: record the case before you pack"
        )
    exported = functions.loaded(source)
    arguments = CallArguments(source.name, functions.as_called(exported))
    with functions.with_dtypes_of(exported):
        arguments.take(given)
        if is_random:
            arguments.fill(options.parsed_sizes(sized), seed, _drawn)
        args, kwargs = arguments.all()
    case = {"name": name, "tolerance": tolerance, "vjp_order": vjp_order, "trace": trace}
    with progress("recording", 1) as advance:
        cases = record(source.path, [{"args": args, "kwargs": kwargs, **case}], replace=replace)
        advance(1)
    new = cases[-1]
    said = f"{new.name!r}, {counted(len(new.results), 'result')}"
    if new.trace is not None:
        said += f", {counted(new.trace.shape[0] - 1, 'fingerprint')} of operations"
    say(f"{file}: {counted(len(cases), 'case')}; recorded {said}")
    how = new.recorded.get(MEASURED_BY, "float64")
    notes = [] if how.startswith("float64") else [f"tolerances measured by {how}"]
    for line in filter(None, (*notes, *new.recorded.get(UNSTABLE, "").split("; "))):
        say(f"  {line}")
    return 0


def _drawn(spec: Any, seed: int, index: int) -> Drawn:
    from jaxexp._kernel.artifact.cases import Drawn
    from jaxexp._kernel.write.fitting import name_of

    return Drawn(tuple(spec.shape), name_of(spec.dtype), seed=(seed << 32) + index)
