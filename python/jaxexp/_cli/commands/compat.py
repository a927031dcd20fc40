"""`jaxexp compat`: who can load an artifact."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from jaxexp._cli import complaints, inputs, progress
from jaxexp._cli.page import Column, Page, listed
from jaxexp._io.files import named_in_errors
from jaxexp._releases.table import number

if TYPE_CHECKING:
    from jaxexp._compat.compatibility import Compatibility

_EXAMPLE = """\b
Example:
  jaxexp compat model.jaxexp
  jaxexp compat --reader 0.6.2 models/*.jaxexp || echo 'migrate some of these first'"""


@click.command(epilog=_EXAMPLE, short_help="Say which releases of JAX load an artifact.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--reader",
    metavar="RELEASE",
    help="Ask only about this release of JAX. The exit status is 0 if it loads all artifacts, else 1.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, with an object for each artifact.")
def command(files: tuple[str, ...], reader: str | None, as_json: bool) -> int:
    """Say what artifacts are and which releases of JAX can load them.

    Nothing is run. JAX is imported, to parse the modules.
    """
    found = [source for text in files for source in inputs.artifacts(text)]
    described: list[tuple[str, Compatibility]] = []
    with progress.bar("reading", len(found)) as advance:
        for source in found:
            described.append((source.name, _read(source)))
            advance(1)
    refused = [name for name, found in described if reader is not None and not found.readable_by(reader)]
    if as_json:
        facts = [{"file": name, **_facts(found)} for name, found in described]
        click.echo(json.dumps(facts, indent=2))
    else:
        page = Page()
        if reader is not None:
            _show_for(page, reader, described)
        for name, compatibility in described if reader is None else ():
            _show(page, name, compatibility)
        page.write()
    if refused:
        complaints.complain(f"JAX {reader} does not load {listed(map(repr, refused))}")
    return complaints.FAILED if refused else 0


def _read(source: inputs.Source) -> Compatibility:
    from jaxexp._compat.compatibility import compatibility

    with named_in_errors(source.name):
        return compatibility(source.read())


def _facts(found: Compatibility) -> dict[str, object]:
    until = found.promised_until
    return {**dataclasses.asdict(found), "promised_until": None if until is None else until.isoformat()}


def _show_for(page: Page, reader: str, described: list[tuple[str, Compatibility]]) -> None:
    """Prints for each artifact whether one release loads it."""
    asked = number(reader)
    rows = []
    for name, found in described:
        reasons = [r.reason for r in found.refusals if number(r.first) <= asked <= number(r.last)]
        rows.append((name, "refused" if reasons else "loaded", *reasons[:1], *[""] * (not reasons)))
    state = Column(f"by JAX {reader}", marks={"loaded": "good", "refused": "bad"})
    page.table([Column("artifact", style="name"), state, Column("because of")], rows)


def _show(page: Page, name: str, found: Compatibility) -> None:
    page.title(found.fun_name, name)
    page.fields((name, text) for name, text in fields(found) if text)
    page.blank()
    rows = [(span(first, last), "loads it", "") for first, last in found.readers]
    rows += [(span(refusal.first, refusal.last), "refuses it", refusal.reason) for refusal in found.refusals]
    rows.sort(key=lambda row: number(row[0].partition(" ")[0]))
    page.table(
        [
            Column("jax.export of", style="name"),
            Column("", marks={"loads": "good", "refuses": "bad"}),
            Column("because of"),
        ],
        rows,
    )


def fields(found: Compatibility) -> list[tuple[str, str]]:
    calls = found.custom_calls
    installed = f"does not load it: {found.jax_export_refuses}" if found.jax_export_refuses else "loads it"
    if found.expired_flag_helps:
        installed += "; with jax_export_deserialize_expired_versions it does"
    return [
        ("written by", f"JAX {found.jax_version or span(*found.writers)}, version {found.serialization_version}"),
        ("layout", found.layout),
        ("StableHLO", found.stablehlo or "not a portable artifact"),
        ("dtypes", ", ".join(found.dtypes)),
        ("custom nodes", ", ".join(found.custom_nodes)),
        (
            "custom calls",
            "not known: the module cannot be parsed here"
            if calls is None
            else listed(f"{target} ({count})" for target, count in calls.items()),
        ),
        ("jaxexp here", f"cannot load it: {found.unreadable_here}" if found.unreadable_here else "loads it"),
        (f"JAX {found.jax_export_version}", installed),
        ("promised until", "" if found.promised_until is None else found.promised_until.isoformat()),
    ]


def span(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"
