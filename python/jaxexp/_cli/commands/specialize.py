"""`jaxexp specialize`: writes a function with constant shapes."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import click

from jaxexp._cli import functions, inputs, options, outputs
from jaxexp._cli.options import option
from jaxexp._cli.page import progress, say
from jaxexp._fleet.places.source import path_in
from jaxexp._kernel.artifact.words import counted, listed
from jaxexp._kernel.io.other_files import ARCHIVE, ARTIFACT

if TYPE_CHECKING:
    pass


@options.command("Fix the symbolic dimensions of a function.", options.IMPORTS, options.HEADERS)
def command(
    file: str = options.FILE,
    sized: tuple[str, ...] = options.sizes("made"),
    output: options.File = option(
        "-o, --output OUT",
        "An archive, NAME.zip, for any number of sizes; or an artifact for one combination.",
        required=True,
    ),
    to: str | None = option(
        "--to READER",
        "The reader to write for, as in 'migrate': a release such as 0.8.1, 12w, or max; by default the installed "
        "JAX, even if FILE was written for another release.",
    ),
    append: bool = option("--append", "Add to an archive that exists."),
    force: bool = option("--force", "Replace OUT, or with --append its members, if they exist."),
) -> None:
    """Fix the symbolic dimensions of a function, so that it compiles to faster code and runs where shapes must be
    constant.

    Each combination of sizes gives one function. In an archive, its name is the name of FILE with the sizes, as in
    model-batch-8, and all functions share the weights. VJPs and metadata are kept. OUT appears when everything is
    written. This imports JAX.

    Example:
      jaxexp specialize model.jaxexp --size batch=8 -o model_8.jaxexp
      jaxexp specialize model.jaxexp --size batch=8 --to 0.8.1 -o model_8.jaxexp
      jaxexp specialize model.jaxexp --size batch=1,8 --size n=64 -o fleet.zip
    """
    chosen = options.combinations(sized)
    functions.check_reader(to)
    is_archive = append or output.endswith(".zip")
    if not is_archive and len(chosen) > 1:
        raise click.UsageError(f"{len(chosen):,} functions need an archive: name one, as in -o fleet.zip")
    if not append:
        outputs.refuse_to_replace(output, ARCHIVE if is_archive else ARTIFACT, force=force)
    from jaxexp._kernel.function import data, vjps  # imports JAX

    source = inputs.artifact(file)
    exported = functions.loaded(source)
    program, weights = exported.unbound, exported.weights
    order = vjps.stored_orders(program)
    if to is not None:
        program = dataclasses.replace(program, _facts=data.facts_of(program)._replace(compatibility=to))
        exported = type(exported).of(program, weights) if weights else program  # type: ignore[attr-defined]
    if not is_archive:
        _save(functions.specialized(source.name, exported, chosen[0]), output, order, force)
        say(f"{source.name} -> {output}: {os.path.getsize(output):,} bytes")
        return
    first = PurePath(path_in(source.path)).stem if source.path is not None else source.name.rpartition(inputs.MEMBER)[2]
    made = {"-".join([first, *(f"{name}-{size}" for name, size in one.items())]): one for one in chosen}
    with progress("specializing", len(made)) as advance, outputs.archive(output, append) as writer:
        if not force:
            outputs.refuse_members(output, made, writer)
        for name, one in made.items():
            specialized = functions.specialized(source.name, exported, one)
            if name in writer:
                writer.remove(name)
            writer.add(name, specialized, vjp_order=order)
            advance(1)
    did = f"{counted(len(made), 'artifact')} {'added' if append else 'packed'}, {os.path.getsize(output):,} bytes"
    say(f"{output}: {did}: {listed(made, most=8)}")


def _save(exported: Any, path: str, order: int, force: bool) -> None:
    """Saves a function. Weights that are in files in the same folder stay in these files."""
    stored = exported.weights.stored if exported.weights else None
    if stored is not None and os.path.samefile(os.path.dirname(stored.path), os.path.dirname(os.path.abspath(path))):
        weights = re.sub(r"-[0-9]{5}-of-[0-9]{5}(?=\.safetensors$)", "", stored.table.files[0].name)
        exported.save(path, vjp_order=order, weights=weights)
        return
    if exported.weights and not force:
        outputs.refuse_existing(f"{os.path.splitext(path)[0]}.safetensors")
    exported.save(path, vjp_order=order)
