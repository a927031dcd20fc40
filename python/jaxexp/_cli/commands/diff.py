"""`jaxexp diff`: shows the differences between two artifacts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jaxexp._cli import completing, inputs, options
from jaxexp._cli.options import argument, option
from jaxexp._cli.page import Column, Page, print_json
from jaxexp._fleet.places.inspect import inspected
from jaxexp._kernel.artifact import words
from jaxexp._kernel.artifact.chain import chain
from jaxexp._kernel.artifact.inspection import where_recorded

if TYPE_CHECKING:
    from jaxexp._fleet.places.source import Opened
    from jaxexp._kernel.artifact.inspection import Inspection
    from jaxexp._native import Artifact


SECTIONS = ("signature", "operations", "sizes", "weights", "origin", "members")


@options.command("Compare two artifacts.", options.HEADERS)
def command(
    old: str = argument("A", type=completing.Artifact()),
    new: str = argument("B", type=completing.Artifact()),
    only: tuple[str, ...] = option(
        "--only", "Compare only this section. May be repeated.", type=click.Choice(SECTIONS)
    ),
    as_json: bool = option("--json", "Print a JSON object."),
) -> int:
    """Compare two artifacts: signature, operations by kind, sizes, weights by digest, and origin.

    For two archives, compare the names and digests of their members. Only differences are shown. JAX is not imported.
    As with diff(1), the exit status is 0 if nothing differs, 1 if something differs, and 2 if the comparison failed.

    Example:
      jaxexp diff old.jaxexp new.jaxexp
      jaxexp diff --only signature old.jaxexp new.jaxexp || echo 'callers change'
    """
    if folder := next(filter(inputs.is_folder, (old, new)), None):
        raise click.UsageError(
            f"{folder!r} is a folder: diff compares two artifacts, or two archives. 'jaxexp pack A.zip {folder}' makes "
            "an archive of a folder"
        )
    if all(inputs.split(text)[1] is None and inputs.is_archive(text) for text in (old, new)):
        a, b = ({name: handle.digest for name, handle in inputs.opened(path).items()} for path in (old, new))
        differing = {"members": dict(sorted(_differing(a, b).items()))}
    else:
        differing = compared(inputs.artifact(old).opened(), inputs.artifact(new).opened())
    differing = {name: rows for name, rows in differing.items() if rows and (not only or name in only)}
    if as_json:
        changes = {
            section: {name: {"a": a, "b": b} for name, (a, b) in rows.items()} for section, rows in differing.items()
        }
        print_json({"a": old, "b": new, "same": not differing, "changes": changes})
    else:
        _print(old, new, differing)
    return 1 if differing else 0


_Rows = dict[str, tuple[Any, Any]]


def compared(old: Opened, new: Opened) -> dict[str, _Rows]:
    """The differences in each section: a name, and its values in both artifacts; None if one lacks it."""
    both = [(inspected(one, whole=True), one) for one in (old, new)]
    orders = min(len(found.module_bytes) for found, _ in both)
    a, b = (_facts(found, one.artifact, one.buffer, orders) for found, one in both)
    return {section: _differing(a[section], b[section]) for section in a}


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> _Rows:
    return {name: (a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)}


def _facts(found: Inspection, artifact: Artifact, buffer: Any, orders: int) -> dict[str, dict[str, Any]]:
    """The facts to compare, by section and name. Operations are those of the first `orders` modules, which both
    artifacts have.
    """
    signature: dict[str, Any] = {
        "name": found.fun_name,
        "platforms": ", ".join(found.platforms),
        "devices": found.nr_devices,
        "in tree": found.in_tree,
        "out tree": found.out_tree,
        "constraints": ", ".join(found.constraints),
        "effects": ", ".join(found.unordered_effects),
        "ordered effects": ", ".join(found.ordered_effects),
        "not checked": ", ".join(found.disabled_checks),
        "VJPs": found.vjp_order,
        "calling convention": found.calling_convention_version,
        **{value.path: str(value) for value in found.arguments},
        **{value.path: str(value) for value in found.results},
    }
    operations: dict[str, Any] = {}
    sizes: dict[str, Any] = {"artifact": found.total_bytes}
    for order, size in enumerate(found.module_bytes):
        whose = "" if order == 0 else f"VJP {order}: "
        kinds, calls = found.operation_counts[order], found.custom_calls[order]
        if order < orders:
            for name, count in (kinds or {}).items():
                kind = f"{whose}{words.kind(name)}"
                operations[kind] = operations.get(kind, 0) + count
            operations |= {f"{whose}custom call of {target}": count for target, count in (calls or {}).items()}
        sizes[f"{whose}module"] = size
    # Of the actual bytes, not those in the trailer: modules may have equal operations and other constants.
    digests = {"all bytes": buffer}
    for order, link in enumerate(chain(artifact)):
        digests["module" if order == 0 else f"VJP {order}: module"] = link.unchecked_module()
    origin = {
        "JAX": found.jax_version or found.writer,
        "serialization version": found.serialization_version,
        "StableHLO": found.stablehlo,
        "trailer": found.trailer,
        "metadata": None if found.metadata is None else json.dumps(found.metadata, sort_keys=True),
        **{f"case {case.name}": f"{case.bytes:,} bytes, with {where_recorded(case)}" for case in found.cases},
        **{name: f"SHA-256 {hashlib.sha256(data).hexdigest()[:16]}" for name, data in digests.items()},
    }
    weights = {weight.name: f"{weight.bytes:,} bytes, {weight.digest[:16]}" for weight in found.weights}
    return {"signature": signature, "operations": operations, "sizes": sizes, "weights": weights, "origin": origin}


def _print(old: str, new: str, differing: dict[str, _Rows]) -> None:
    page = Page()
    for section, rows in differing.items():
        page.blank()
        columns = [Column(section, style="name"), Column(old, style="less"), Column(new, style="more")]
        if section in ("operations", "sizes"):
            columns = [columns[0], *(Column(c.name, right=True) for c in columns[1:]), Column("change", right=True)]
            counts = ((name, a or 0, b or 0) for name, (a, b) in rows.items())
            page.table(columns, [(name, shown(a), shown(b), f"{b - a:+,}") for name, a, b in counts])
        else:
            page.table(columns, [(name, shown(a), shown(b)) for name, (a, b) in rows.items()])
    page.write()


def shown(value: Any) -> str:
    return "none" if value is None or value == "" else f"{value:,}" if isinstance(value, int) else str(value)
