"""`jaxexp inspect`: shows what an artifact says about itself."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import click

from jaxexp._cli import compiled, complaints, completing, headers, importing, inputs, sizes, tensors
from jaxexp._cli.page import Column, Page
from jaxexp._errors import ExportError
from jaxexp._fleet.places import executables
from jaxexp._fleet.places.inspect import inspected as read
from jaxexp._fleet.places.other_files import tensors_in
from jaxexp._kernel.artifact.inspection import Inspection, Value, facts_of, in_tree_of, notes_of, type_of
from jaxexp._kernel.artifact.words import counted

_EXAMPLE = """\b
Example:
  jaxexp inspect model.jaxexp
  jaxexp inspect models/
  jaxexp inspect --jaxpr --size batch=4 model.jaxexp
  jaxexp inspect --json fleet.zip::resnet/b8 | jq '.[0].platforms'"""


@click.command(epilog=_EXAMPLE, short_help="Say what is in artifacts.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=completing.Artifact())
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, with an object for each artifact.")
@click.option("--mlir", is_flag=True, help="Print only the module, as MLIR text. This imports JAX.")
@click.option("--jaxpr", is_flag=True, help="Print only the program, as a jaxpr. This imports JAX.")
@sizes.option("With --jaxpr, the size of a symbolic dimension, as in batch=4; once for each dimension.")
@click.option(
    "--vjp", "order", type=click.IntRange(0), default=0, metavar="ORDER", help="With --mlir or --jaxpr, print this VJP."
)
@click.option("--check", is_flag=True, help="Also compare the modules, or the code of executables, with their digests.")
@click.option("--digests", is_flag=True, help="Also print what 'digest' prints. This imports JAX.")
@click.option("--all", "everything", is_flag=True, help="Also show what is too long for a terminal.")
@inputs.folder_options
@importing.option
@headers.option
def command(
    files: tuple[str, ...],
    folders: inputs.Folders,
    as_json: bool,
    mlir: bool,
    jaxpr: bool,
    sized: tuple[str, ...],
    order: int,
    check: bool,
    digests: bool,
    everything: bool,
) -> int:
    """Say what is in artifacts: signature, platforms, shardings, effects, sizes, versions, custom calls, weights.

    FILE is an artifact or a member of an archive; or a folder or an archive, in which each artifact gets a row in a
    table. Nothing is run, and JAX is imported only for --mlir, --jaxpr and --import. This shows what a file says about
    itself; 'verify' checks its bytes. FILE may also be a file of executables; JAX is then imported, to say whether they
    fit here. Of a safetensors file or index, this lists the tensors.
    """
    if [mlir, jaxpr, as_json].count(True) > 1:
        raise click.UsageError("--mlir, --jaxpr and --json exclude each other")
    if order and not (mlir or jaxpr):
        raise click.UsageError("--vjp chooses the VJP that --mlir or --jaxpr prints: add one of them")
    if sized and not jaxpr:
        raise click.UsageError("--size chooses the sizes for --jaxpr: add it")
    with_sizes = sizes.parsed(sized)
    page, found = Page(everything=everything), []
    errors: list[Exception] = []
    for text in files:
        try:
            if inputs.stands_for_all(text):
                if mlir or jaxpr:
                    raise click.UsageError(f"{text!r} holds several artifacts: --mlir and --jaxpr print one")
                inspected, failed = inputs.read_each(
                    inputs.in_folder(text, folders, "inspect"), lambda one: (one.name, read(one, check, digests))
                )
                if as_json:
                    found += [_to_dict(name, one) for name, one in inspected]
                    found += [{"file": name, "error": complaints.said(error)} for name, error in failed]
                elif inspected:
                    _show_folder(page, inspected, folders)
                page.write()
                complaints.complain_of(failed)
                errors += (error for _, error in failed)
                continue
            if not (mlir or jaxpr) and executables.is_file_of_executables(text):
                code = executables.executables_in(text, check=check)
                found.append(compiled.to_dict(text, code))
                if not as_json:
                    compiled.show(page, text, code)
                continue
            if not (mlir or jaxpr) and (held := tensors_in(text)) is not None:
                found.append(tensors.to_dict(text, held))
                if not as_json:
                    tensors.show(page, text, held)
                continue
            for source in inputs.artifacts(text):
                if mlir or jaxpr:
                    page.lines(_mlir(source, order, everything) if mlir else _jaxpr(source, order, with_sizes))
                    page.write()
                    continue
                inspection = read(source, check, digests)
                if as_json:
                    found.append(_to_dict(source.name, inspection))
                else:
                    show(page, source.name, inspection)
        except BrokenPipeError:
            raise
        except Exception as error:
            # If one of several cannot be read, the others are still shown.
            message = complaints.said(error)
            errors.append(error)
            if as_json:
                found.append({"file": text, "error": message})
            page.write()
            complaints.complain(message)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    page.write()
    return complaints.status_of(*errors)


_MOST_WRITTEN = 1 << 26  # characters of shapes


def _to_dict(name: str, found: Inspection) -> dict[str, Any]:
    """An inspection as JSON has it, where each value has its own shape, also one that many values share."""
    lengths: dict[int, int] = {}
    written = 0
    for value in (*found.arguments, *found.results):
        shape = value.shape
        if id(shape) not in lengths:
            lengths[id(shape)] = sum(len(str(size)) for size in shape)
        written += lengths[id(shape)]
    if written > _MOST_WRITTEN:
        raise ExportError(
            f"{name!r} has shapes of {written:,} characters, and --json writes at most {_MOST_WRITTEN:,}: "
            "jaxexp.inspect in Python has all of them"
        )
    return {"file": name, **found.to_dict()}


_Inspected = tuple[str, Inspection]


def _show_folder(page: Page, inspected: list[_Inspected], folders: inputs.Folders) -> None:
    """Prints a row for each artifact in a folder."""
    columns = [
        Column("artifact", style="name"),
        Column("function", cut=True),
        Column("platforms", cut=True),
        Column("bytes", right=True),
        Column("operations", right=True, optional=True),
        Column("custom calls", cut=True, optional=True),
        Column("VJPs", right=True, optional=True),
        Column("written by JAX", optional=True),
    ]
    page.blank()
    page.table(columns, [_row(name, one) for name, one in inspected])
    page.blank()
    size = sum(one.total_bytes for _, one in inspected)
    page.line(f"{counted(len(inspected), 'artifact')}, {size:,} bytes{folders.said()}", "heading")


def _row(name: str, found: Inspection) -> tuple[str, ...]:
    operations, calls = found.operation_counts[0], found.custom_calls[0]
    return (
        name,
        found.fun_name,
        ", ".join(found.platforms),
        f"{found.total_bytes:,}",
        "not known" if operations is None else f"{sum(operations.values()):,}",
        ", ".join(calls or ()),
        f"{found.vjp_order:,}" if found.vjp_order else "",
        found.jax_version or found.writer,
    )


def show(page: Page, name: str, found: Inspection) -> None:
    """Prints an inspection as fields and two tables."""
    page.title(found.fun_name, name)
    where = _where_all_are(found)
    shardings = [("shardings", f"all{where}")] if where else []
    page.fields([*facts_of(found), *shardings, ("in tree", in_tree_of(found)), ("out tree", found.out_tree)])
    if found.weights:
        page.blank()
        _show_weights(page, found)
    for heading, values in (("argument", found.arguments[len(found.weights) :]), ("result", found.results)):
        if values:
            page.blank()
            _show_values(page, heading, values, where)


_ON = " on "


def _where_all_are(found: Inspection) -> str:
    """The end of all shardings, from the mesh on, if there are several and they agree; it is then said once."""
    texts = [value.sharding for value in (*found.arguments, *found.results) if value.sharding]
    ends = {text[text.find(_ON) :] if _ON in text else "" for text in texts}
    return ends.pop() if len(texts) > 1 and len(ends) == 1 else ""


def _show_values(page: Page, heading: str, values: Sequence[Value], where: str) -> None:
    columns = [Column(heading, style="name"), Column("type"), Column("sharding"), Column("note")]
    rows = [(v.path, type_of(v), (v.sharding or "").removesuffix(where), ", ".join(notes_of(v))) for v in values]
    page.table(columns, rows)


def _show_weights(page: Page, found: Inspection) -> None:
    total = sum(weight.bytes for weight in found.weights) or 1
    columns = [
        Column("weight", style="name"),
        Column("type"),
        Column("bytes", right=True),
        Column("share", right=True),
        Column("file"),
        Column("digest", cut=True),
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


def _jaxpr(source: inputs.Source, order: int, given: sizes.Sizes) -> str:
    """The program of a function, read back from its module, with these sizes for its symbolic dimensions."""
    from jaxexp._api.load import deserialize

    with source.named():
        exported = deserialize(source.read())
        for _ in range(order):
            if not exported.has_vjp():
                raise click.ClickException(f"{source.name!r} has no VJP of order {order}")
            exported = exported.vjp()
        args, kwargs = _specs(source.name, exported, given)
        return str(exported.make_jaxpr(*args, **kwargs))


def _specs(name: str, exported: Any, given: sizes.Sizes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function whose dimensions have these sizes; none if it has no symbolic dimensions.

    Raises:
        click.ClickException: a dimension has no size, or a size has no dimension.
    """
    from jaxexp._kernel.function import specs

    names = specs.dimension_variables(exported)
    sizes.check(name, names, given, "a jaxpr constant ones", "; or --mlir prints the module as it is")
    return specs.of_sizes(exported, given) if names else ((), {})


_ELEMENTS = 16  # larger constants are cut
