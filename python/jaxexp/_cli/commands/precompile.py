"""`jaxexp precompile`: compiles functions, and keeps their code in a file."""

from __future__ import annotations

import os

import click

from jaxexp._cli import functions, inputs, options
from jaxexp._cli.options import option
from jaxexp._cli.page import Column, Page, say
from jaxexp._kernel.artifact.words import counted
from jaxexp._kernel.io.files import is_url


@options.command("Compile functions, and keep their code in a file.", options.IMPORTS, options.HEADERS)
def command(
    file: str = options.FILE,
    sized: tuple[str, ...] = options.sizes("compiled"),
    output: options.File | None = option(
        "-o, --output EXE",
        "The file of executables; by default FILE with the suffix .exe. If it exists, code is added.",
    ),
    order: int = option("--vjp ORDER", "Also compile this many VJPs."),
) -> None:
    """Compile functions for this machine, and keep the code in a file, so that later processes need not compile.

    load(FILE, executables=EXE) and 'run --executables EXE' use the code if the machine, the releases and the flags are
    the same; 'inspect EXE' shows them. Code that EXE already has is not compiled again. EXE is native code: trust it as
    you trust a program. Without --size, code is compiled for the sizes that FILE was saved with. This imports JAX.

    Example:
      jaxexp precompile model.jaxexp
      jaxexp precompile model.jaxexp --size batch=1,8 --vjp 1 -o model.exe
      jaxexp precompile 'fleet.zip::resnet/*'
    """
    chosen = options.combinations(sized) if sized else None
    path, _ = inputs.split(file)
    if output is None and is_url(path):
        raise click.UsageError(f"say where the code of {file!r} goes, as in -o model.exe")
    into = output if output is not None else f"{os.path.splitext(path)[0]}.exe"
    import jax

    before = os.path.getsize(into) if os.path.exists(into) else 0
    rows: list[tuple[str, ...]] = []
    for source in inputs.artifacts(file):
        exported, shardings = functions.on_devices(source.name, functions.loaded(source))
        for sizes in chosen or [*map(dict, exported.sizes)] or [{}]:
            why = "code is compiled for constant ones"
            specs, tree = jax.tree_util.tree_flatten(functions.arguments(source.name, exported, sizes, why))
            placed = [
                jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)
                for spec, sharding in zip(specs, shardings, strict=True)
            ]
            args, kwargs = jax.tree_util.tree_unflatten(tree, placed)
            with functions.with_dtypes_of(exported):
                for one in exported.precompile(args, kwargs, into=into, vjp_order=order):
                    of = one.conditions["function"], options.shown_sizes(sizes), one.arguments
                    rows.append((*of, f"{one.size:,}"))
    page, columns = Page(), [Column("function", style="name"), Column("sizes"), Column("arguments", cut=True)]
    page.table([*columns, Column("bytes", right=True)], rows)
    page.write()
    added = os.path.getsize(into) - before
    more = f"{added:,} bytes{' more' if before else ''}" if added else "nothing was compiled: the file had them all"
    say(f"{into}: {counted(len(rows), 'executable')}, {more}")
