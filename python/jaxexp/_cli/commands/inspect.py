"""`jaxexp inspect`: shows what an artifact says about itself."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from jaxexp._cli import complaints, functions, inputs, options
from jaxexp._cli.options import option
from jaxexp._cli.page import Column, Page, print_json
from jaxexp._errors import ExportError
from jaxexp._fleet.places.inspect import inspected as read
from jaxexp._fleet.places.verify import executables_in, tensors_in
from jaxexp._kernel.artifact.inspection import Inspection, facts_of, in_tree_of, notes_of, type_of
from jaxexp._kernel.artifact.words import counted
from jaxexp._kernel.io.files import kind_at
from jaxexp._kernel.io.other_files import CODE

if TYPE_CHECKING:
    from jaxexp._fleet.places.verify import Executable
    from jaxexp._weights.files.reading import TensorFiles


@options.command("Show the contents of artifacts.", options.IMPORTS, options.HEADERS)
def command(
    files: tuple[str, ...] = options.FILES,
    as_json: bool = option("--json", "Print a JSON list, with an object for each artifact."),
    mlir: bool = option("--mlir", "Print only the module, as MLIR text. This imports JAX."),
    jaxpr: bool = option("--jaxpr", "Print only the program, as a jaxpr. This imports JAX."),
    sized: tuple[str, ...] = options.size("With --jaxpr"),
    order: int = option("--vjp ORDER", "With --mlir or --jaxpr, print this VJP."),
    check: bool = option("--check", "Also compare the modules, or the code of executables, with their digests."),
    digests: bool = option(
        "--digests",
        "Also print two SHA-256 digests: of the bytes, and of the meaning, which equal programs share. This imports "
        "JAX.",
    ),
    everything: bool = option("--all", "Also show lists that are too long for a terminal."),
    folders: inputs.Folders = options.FOLDERS,
) -> int:
    """Show the contents of artifacts: signature, platforms, shardings, effects, sizes, versions, custom calls, weights.

    FILE is an artifact or a member of an archive; or a folder or an archive, for a table of its artifacts. FILE may
    also be a file of executables (then JAX is imported, to say whether they fit here), or a safetensors file or index,
    for a list of its tensors. These are a file's statements about itself; 'verify' checks its bytes. Nothing is run,
    and JAX is imported only for --mlir, --jaxpr, --digests and --import.

    Example:
      jaxexp inspect model.jaxexp
      jaxexp inspect models/
      jaxexp inspect --digests fleet.zip
      jaxexp inspect --jaxpr --size batch=4 model.jaxexp
      jaxexp inspect --json fleet.zip::resnet/b8 | jq '.[0].platforms'
    """
    if [mlir, jaxpr, as_json].count(True) > 1:
        raise click.UsageError("--mlir, --jaxpr and --json exclude each other")
    if order and not (mlir or jaxpr):
        raise click.UsageError("--vjp chooses the VJP that --mlir or --jaxpr prints: add one of them")
    if sized and not jaxpr:
        raise click.UsageError("--size chooses the sizes for --jaxpr: add it")
    with_sizes = options.parsed_sizes(sized)
    page, objects, failed = Page(everything=everything), list[Any](), list[tuple[str, Exception]]()

    def add(to_dict: Callable[..., Any], show: Callable[..., None], name: str, found: Any) -> None:
        if as_json:
            objects.append(to_dict(name, found))
        else:
            show(page, name, found)

    def fail(*errors: tuple[str, Exception]) -> None:
        objects.extend(complaints.in_json(errors) if as_json else ())
        failed.extend(errors)

    for text in files:
        # If one of several cannot be read, the others are still shown.
        try:
            if mlir or jaxpr:
                if inputs.stands_for_all(text):
                    raise click.UsageError(f"{text!r} holds several artifacts: --mlir and --jaxpr print one")
                for source in inputs.artifacts(text):
                    page.lines(_mlir(source, order, everything) if mlir else _jaxpr(source, order, with_sizes))
            elif inputs.stands_for_all(text):
                sources = inputs.in_folder(text, folders, "inspect")
                found = list(inputs.read_each(sources, lambda one: read(one.opened(), check, digests)))
                inspected = [(name, one) for name, one in found if not isinstance(one, Exception)]
                if as_json:
                    objects += (_to_dict(name, one) for name, one in inspected)
                elif inspected:
                    _show_several(page, inspected, folders, digests)
                fail(*((name, one) for name, one in found if isinstance(one, Exception)))
            elif kind_at(text) == CODE:
                add(_executables_to_dict, _show_executables, text, executables_in(text, check=check))
            elif (held := tensors_in(text)) is not None:
                add(_tensors_to_dict, _show_tensors, text, held)
            else:
                for source in inputs.artifacts(text):
                    add(_to_dict, show, source.name, read(source.opened(), check, digests))
        except Exception as error:
            fail((text, error))
    if as_json:
        print_json(objects)
    page.write()
    return complaints.ended_with(failed)


_MOST_WRITTEN = 1 << 26  # characters of shapes


def _to_dict(name: str, found: Inspection) -> dict[str, Any]:
    """An inspection as JSON has it, where each value has its own shape, also one that many values share."""
    values = (*found.arguments, *found.results)
    shapes = {id(value.shape): value.shape for value in values}
    lengths = {key: sum(len(str(size)) for size in shape) for key, shape in shapes.items()}
    written = sum(lengths[id(value.shape)] for value in values)
    if written > _MOST_WRITTEN:
        raise ExportError(
            f"{name!r} has shapes of {written:,} characters, and --json writes at most {_MOST_WRITTEN:,}: "
            "jaxexp.inspect in Python has all of them"
        )
    return {"file": name, **found.to_dict()}


def _show_several(page: Page, inspected: list[tuple[str, Inspection]], folders: inputs.Folders, digests: bool) -> None:
    """Prints a row for each artifact in a folder or an archive."""
    artifact = Column("artifact", style="name")
    rows: list[tuple[str, ...]]
    if digests:
        columns = [artifact, Column("SHA-256"), Column("meaning")]
        rows = [(name, one.sha256 or "", one.meaning or "") for name, one in inspected]
    else:
        columns = [
            artifact,
            Column("function", cut=True),
            Column("platforms", cut=True),
            Column("bytes", right=True),
            Column("operations", right=True, optional=True),
            Column("custom calls", cut=True, optional=True),
            Column("VJPs", right=True, optional=True),
            Column("written by JAX", optional=True),
        ]
        rows = [_row(name, one) for name, one in inspected]
    page.blank()
    page.table(columns, rows)
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
            (w.name, kind, f"{w.bytes:,}", f"{w.bytes / total:.1%}", w.file, w.digest, ", ".join(w.other_names))
            for w, kind in zip(found.weights, map(type_of, found.arguments), strict=False)
        ]
        page.table(columns, rows)
    for heading, values in (("argument", found.arguments[len(found.weights) :]), ("result", found.results)):
        if values:
            page.blank()
            columns = [Column(heading, style="name"), Column("type"), Column("sharding"), Column("note")]
            shown = ((v, (v.sharding or "").removesuffix(where)) for v in values)
            page.table(columns, [(v.path, type_of(v), on, ", ".join(notes_of(v))) for v, on in shown])


_ON = " on "


def _where_all_are(found: Inspection) -> str:
    """The end of all shardings, from the mesh on, if there are several and they agree; it is then said once."""
    texts = [value.sharding for value in (*found.arguments, *found.results) if value.sharding]
    ends = {text[text.find(_ON) :] if _ON in text else "" for text in texts}
    return ends.pop() if len(texts) > 1 and len(ends) == 1 else ""


def _mlir(source: inputs.Source, order: int, everything: bool) -> str:
    """The text of a module."""
    from jaxexp._kernel.artifact.chain import chain
    from jaxexp._kernel.module import mlir

    with source.named():
        link = next(itertools.islice(chain(source.opened().artifact), order, None), None)
        if link is None:
            raise click.ClickException(f"{source.name!r} has no VJP of order {order}")
        module = link.module()
    return mlir.text_of(bytes(module), None if everything else _ELEMENTS)


def _jaxpr(source: inputs.Source, order: int, given: options.Sizes) -> str:
    """The program of a function, read back from its module, with these sizes for its symbolic dimensions."""
    from jaxexp._api.load import deserialize

    with source.named():
        exported = deserialize(source.read())
        for _ in range(order):
            if not exported.has_vjp():
                raise click.ClickException(f"{source.name!r} has no VJP of order {order}")
            exported = exported.vjp()
        why, instead = "a jaxpr constant ones", "; or --mlir prints the module as it is"
        args, kwargs = functions.arguments(source.name, exported, given, why, instead)
        return str(exported.make_jaxpr(*args, **kwargs) if given else exported.make_jaxpr())


_ELEMENTS = 16  # larger constants are cut


# Conditions that the table has; the others are those of a machine.
_OF_CALL = ("function", "module", "signature", "results", "arguments", "placement", "devices")
_SHOWN = ("function", "module", "results", "devices")
_DIGITS = 12  # of a digest, on a terminal: arguments need the room, because they tell executables apart


def _show_executables(page: Page, path: str, given: tuple[tuple[Executable, ...], int]) -> None:
    """Prints the conditions of each machine, and a table of the code for it."""
    page.title("executables", path)
    found, unfinished = given
    usable, others = sum(one.why is None for one in found), sum("jaxlib" not in one.conditions for one in found)
    said = f"{os.path.getsize(path):,} bytes: {counted(len(found), 'executable')}"
    said += f", {usable:,} usable here" if others < len(found) or not found else ""
    said += f", {others:,} for sessions (jaxexp.runtime)" if others else ""
    page.fields([("size", said)])
    if unfinished:
        page.fields([("damage", f"{counted(unfinished, 'byte')} of an unfinished record, which is not used")])
    machines: dict[tuple[tuple[str, str], ...], list[Executable]] = {}
    for one in found:
        machine = tuple((name, text) for name, text in one.conditions.items() if name not in _OF_CALL)
        machines.setdefault(machine, []).append(one)
    columns = [
        Column("function", style="name"),
        Column("module", words=True),
        Column("arguments", cut=True, both_ends=True),
        Column("results"),
        Column("devices"),
        Column("bytes", right=True),
        Column("here", marks={"usable": "good", "for sessions (jaxexp.runtime) on this": "good"}, style="bad"),
    ]
    for machine, code in machines.items():
        page.blank()
        page.fields([(name, text or "none") for name, text in machine])
        page.blank()
        rows: list[tuple[str, ...]] = []
        for one in code:
            function, module, results, devices = (one.conditions.get(name, "") for name in _SHOWN)
            module, results = module[:_DIGITS] if page.is_terminal else module, "" if results == "all" else results
            rows.append((function, module, one.arguments, results, devices, f"{one.size:,}", one.why or "usable"))
        page.table(columns, rows)


def _executables_to_dict(path: str, given: tuple[tuple[Executable, ...], int]) -> dict[str, Any]:
    """The same in JSON."""
    found, unfinished = given
    code = [
        {"bytes": one.size, "usable": one.why is None, "why": one.why, "conditions": dict(one.conditions)}
        for one in found
    ]
    return {"file": path, "executables": code, "unfinished_bytes": unfinished}


def _show_tensors(page: Page, path: str, found: TensorFiles) -> None:
    """Prints a table of the tensors, in the order of their names."""
    page.title("tensors", path)
    page.fields([("size", f"{sum(file.size for file in found.files):,} bytes: {counted(len(found), 'tensor')}")])
    if not found:
        return
    page.blank()
    columns = [Column("tensor", style="name"), Column("type"), Column("bytes", right=True), Column("file")]
    where = {name: os.path.basename(found[name].file) if len(found.files) > 1 else "" for name in found}
    page.table(columns, [(name, str(found[name]), f"{found[name].size:,}", where[name]) for name in sorted(found)])


def _tensors_to_dict(path: str, found: TensorFiles) -> dict[str, Any]:
    """The same in JSON."""
    tensors = [
        {
            "name": name,
            "dtype": found[name].dtype,
            "shape": list(found[name].shape),
            "bytes": found[name].size,
            "file": os.path.basename(found[name].file),
        }
        for name in sorted(found)
    ]
    return {"file": path, "tensors": tensors}
