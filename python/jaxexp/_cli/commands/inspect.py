"""`jaxexp inspect`: shows what an artifact says about itself."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import click

from jaxexp._cli import complaints, completing, headers, inputs
from jaxexp._cli.page import Column, Page
from jaxexp._kernel.artifact.inspection import Inspection, Value, facts_of, notes_of, type_of

_EXAMPLE = """\b
Example:
  jaxexp inspect model.jaxexp
  jaxexp inspect --jaxpr --size batch=4 model.jaxexp
  jaxexp inspect --json fleet.zip::resnet/b8 | jq '.[0].platforms'"""


@click.command(epilog=_EXAMPLE, short_help="Say what is in artifacts.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=completing.Artifact())
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, with an object for each artifact.")
@click.option("--mlir", is_flag=True, help="Print only the module, as MLIR text. This imports JAX.")
@click.option("--jaxpr", is_flag=True, help="Print only the program, as a jaxpr. This imports JAX.")
@click.option(
    "--size",
    "given",
    multiple=True,
    metavar="DIMENSION=SIZE",
    help="With --jaxpr, the size of a symbolic dimension, as in batch=4; once for each dimension.",
)
@click.option(
    "--vjp", "order", type=click.IntRange(0), default=0, metavar="ORDER", help="With --mlir or --jaxpr, print this VJP."
)
@click.option("--check", is_flag=True, help="Also compare the modules with their digests.")
@click.option("--all", "everything", is_flag=True, help="Also show what is too long for a terminal.")
@headers.option
def command(
    files: tuple[str, ...],
    as_json: bool,
    mlir: bool,
    jaxpr: bool,
    given: tuple[str, ...],
    order: int,
    check: bool,
    everything: bool,
) -> int:
    """Say what is in artifacts: signature, platforms, shardings, effects, sizes, versions, custom calls, weights.

    Nothing is run, and JAX is imported only for --mlir and --jaxpr. This shows what a file says about itself; 'verify'
    checks its bytes.
    """
    if [mlir, jaxpr, as_json].count(True) > 1:
        raise click.UsageError("--mlir, --jaxpr and --json exclude each other")
    if order and not (mlir or jaxpr):
        raise click.UsageError("--vjp chooses the VJP that --mlir or --jaxpr prints: add one of them")
    if given and not jaxpr:
        raise click.UsageError("--size chooses the sizes for --jaxpr: add it")
    sizes = _sizes_of_dimensions(given)
    status, page, found = 0, Page(everything=everything), []
    for text in files:
        try:
            for source in inputs.artifacts(text):
                if mlir or jaxpr:
                    page.lines(_mlir(source, order, everything) if mlir else _jaxpr(source, order, sizes))
                    page.write()
                    continue
                inspection = read(source, check=check)
                if as_json:
                    found.append({"file": source.name, **inspection.to_dict()})
                else:
                    show(page, source.name, inspection)
        except BrokenPipeError:
            raise
        except Exception as error:
            # If one of several cannot be read, the others are still shown.
            message = complaints.said(error)
            status = complaints.status_of(error) if len(files) == 1 else complaints.FAILED
            if as_json:
                found.append({"file": text, "error": message})
            page.write()
            complaints.complain(message)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    page.write()
    return status


def read(source: inputs.Source, *, check: bool = False) -> Inspection:
    """The inspection of an artifact; errors name it."""
    from jaxexp._kernel.artifact.inspect import described

    with source.named():
        return described(source.mapped(), check)


def show(page: Page, name: str, found: Inspection) -> None:
    """Prints an inspection as fields and two tables."""
    page.title(found.fun_name, name)
    page.fields([*facts_of(found), ("in tree", found.in_tree), ("out tree", found.out_tree)])
    if found.weights:
        page.blank()
        _show_weights(page, found)
    for heading, values in (("argument", found.arguments[len(found.weights) :]), ("result", found.results)):
        if values:
            page.blank()
            _show_values(page, heading, values)


def _show_values(page: Page, heading: str, values: Sequence[Value]) -> None:
    columns = [Column(heading, style="name"), Column("type"), Column("sharding"), Column("note")]
    page.table(columns, [(v.path, type_of(v), v.sharding or "", ", ".join(notes_of(v))) for v in values])


def _show_weights(page: Page, found: Inspection) -> None:
    total = sum(weight.bytes for weight in found.weights) or 1
    columns = [
        Column("weight", style="name"),
        Column("type"),
        Column("bytes", right=True),
        Column("share", right=True),
        Column("file"),
        Column("digest"),
        Column("also"),  # for tied weights
    ]
    rows = [
        (w.name, type_of(value), f"{w.bytes:,}", f"{w.bytes / total:.1%}", w.file, w.digest, ", ".join(w.other_names))
        for w, value in zip(found.weights, found.arguments, strict=False)
    ]
    page.table(columns, rows)


def _mlir(source: inputs.Source, order: int, everything: bool) -> str:
    """The text of a module."""
    from jaxexp._kernel.artifact.chain import chain
    from jaxexp._kernel.module import mlir
    from jaxexp._native import Artifact

    with source.named():
        link = next(itertools.islice(chain(Artifact(source.read())), order, None), None)
        if link is None:
            raise click.ClickException(f"{source.name!r} has no VJP of order {order}")
        module = link.module()
    return mlir.text_of(bytes(module), None if everything else _ELEMENTS)


def _sizes_of_dimensions(given: tuple[str, ...]) -> dict[str, int]:
    """The sizes in --size, by the names of the dimensions."""
    sizes: dict[str, int] = {}
    for text in given:
        found = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]{1,18})\s*", text)
        if found is None:
            raise click.UsageError(f"--size {text!r} is not DIMENSION=SIZE, as in batch=4")
        if found[1] in sizes:
            raise click.UsageError(f"--size gives {found[1]} twice")
        sizes[found[1]] = int(found[2])
    return sizes


def _jaxpr(source: inputs.Source, order: int, sizes: dict[str, int]) -> str:
    """The program of a function, read back from its module, with these sizes for its symbolic dimensions."""
    from jaxexp._api.load import deserialize

    with source.named():
        exported = deserialize(source.read())
        for _ in range(order):
            if not exported.has_vjp():
                raise click.ClickException(f"{source.name!r} has no VJP of order {order}")
            exported = exported.vjp()
        args, kwargs = _specs(source.name, exported, sizes)
        return str(exported.jaxpr(*args, **kwargs))


def _specs(name: str, exported: Any, sizes: dict[str, int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function whose dimensions have these sizes; none if it has no symbolic dimensions.

    Raises:
        click.ClickException: a dimension has no size, or a size has no dimension.
    """
    from jaxexp._kernel.function import specs

    names = specs.dimension_variables(exported)
    if unknown := [one for one in sizes if one not in names]:
        has = f"its symbolic dimensions are {', '.join(names)}" if names else "it has no symbolic dimensions"
        raise click.ClickException(f"{name!r} has no symbolic dimension {', '.join(unknown)}: {has}")
    if missing := [one for one in names if one not in sizes]:
        raise click.ClickException(
            f"{name!r} has symbolic shapes, and a jaxpr constant ones: say how large {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'}, as in {' '.join(f'--size {one}=4' for one in missing)}; or "
            "--mlir prints the module as it is"
        )
    return specs.of_sizes(exported, sizes) if names else ((), {})


_ELEMENTS = 16  # larger constants are cut
