"""`jaxexp compat`: tells who can load an artifact."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from jaxexp._cli import complaints, completing, headers, inputs, progress, spreading
from jaxexp._cli.page import Column, Page
from jaxexp._cli.spreading import Spread
from jaxexp._errors import ExportError
from jaxexp._fleet.passes.compatibility_many import described
from jaxexp._fleet.places.source import source
from jaxexp._kernel.artifact.words import counted, listed, span
from jaxexp._kernel.releases.table import number

if TYPE_CHECKING:
    from jaxexp._compat.compatibility import Compatibility

_MARKS = {"loaded": "good", "refused": "bad"}

_EXAMPLE = """\b
Example:
  jaxexp compat model.jaxexp
  jaxexp compat --reader 0.6.2 fleet.zip *.jaxexp || echo 'migrate first'
  jaxexp compat --reader 12w 'fleet.zip::resnet/*'"""


@click.command(epilog=_EXAMPLE, short_help="Say which releases of JAX load an artifact.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=completing.Artifact())
@click.option(
    "--reader",
    metavar="READER",
    help="Ask only about one release of JAX: 0.6.2, or 12w for the newest one of twelve weeks ago. The exit status is "
    "0 if it loads all artifacts, else 1.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, with an object for each artifact.")
@inputs.folder_options
@spreading.options("How many processes to use; by default only this one.")
@headers.option
def command(files: tuple[str, ...], reader: str | None, as_json: bool, folders: inputs.Folders, spread: Spread) -> int:
    """Say what artifacts are and which releases of JAX can load them.

    FILE is an artifact, or an archive or a folder, which stands for all artifacts in it. For several artifacts, each
    gets a row with the most important facts. Nothing is run. JAX is imported, to parse the modules. If some releases
    refuse a single artifact, the last line says how 'migrate' helps: this is tried, but nothing is written.
    """
    from jaxexp._compat.compatibility import to_json

    asked = None if reader is None else _release(reader)
    found, unreadable = _described(files, folders, spread)
    refused = [name for name, one in found if asked is not None and not one.readable_by(asked)]
    if as_json:
        facts = [{"file": name, **to_json(one)} for name, one in found]
        facts += [{"file": name, "error": complaints.said(error)} for name, error in unreadable]
        click.echo(json.dumps(facts, indent=2))
    else:
        page = Page()
        if asked is not None:
            _show_for(page, asked, found)
        elif len(found) == 1:
            _show(page, *found[0])
            if remedy := "; ".join(_remedies(*found[0])):
                page.blank()
                page.fields([("remedy", remedy)])
        else:
            _show_all(page, found)
        page.write()
    if asked is not None and refused:
        remedy = f"; {_remedy_for(asked, *found[0])}" if len(found) == 1 else ""
        complaints.complain(f"JAX {asked} does not load {listed(refused, repr, most=_NAMED)}{remedy}")
    for _, error in unreadable[:_NAMED]:
        complaints.complain(complaints.said(error))
    if more := unreadable[_NAMED:]:
        complaints.complain(f"{counted(len(more), 'artifact')} more cannot be read")
    return complaints.FAILED if refused or unreadable else 0


def _described(
    files: tuple[str, ...], folders: inputs.Folders, spread: Spread
) -> tuple[list[tuple[str, Compatibility]], list[tuple[str, Exception]]]:
    """The facts about the artifacts, and the errors of those that cannot be read, both in the order of the files.

    Raises:
        Exception: there is only one artifact, and it cannot be read.
    """
    given, steps = inputs.given(files, folders, "compat")
    found: list[tuple[int, str, Compatibility | Exception]] = []
    with progress.bar("reading", steps) as advance, spread.means(processes=True) as means:
        for place, name, one in described(given, means):
            found.append((place.order, name, one))
            advance(1)
    found.sort(key=lambda one: one[:2])
    unreadable = [(name, one) for _, name, one in found if isinstance(one, Exception)]
    if len(found) == len(unreadable) == 1:
        raise unreadable[0][1]
    return [(name, one) for _, name, one in found if not isinstance(one, Exception)], unreadable


def _release(reader: str) -> str:
    """The release that the words on the command line stand for."""
    from jaxexp._compat.compatibility import release_of

    try:
        return release_of(reader, "--reader").version
    except ExportError as error:
        raise click.UsageError(str(error)) from error


_NAMED = 8  # artifacts in a message


def _show_for(page: Page, reader: str, described: list[tuple[str, Compatibility]]) -> None:
    """Prints for each artifact whether one release loads it."""
    asked = number(reader)
    rows = []
    for name, found in described:
        reasons = [r.reason for r in found.refusals if number(r.first) <= asked <= number(r.last)]
        rows.append((name, "refused" if reasons else "loaded", *reasons[:1], *[""] * (not reasons)))
    state = Column(f"by JAX {reader}", marks=_MARKS)
    page.table([Column("artifact", style="name"), state, Column("because of")], rows)


def _show_all(page: Page, described: list[tuple[str, Compatibility]]) -> None:
    """Prints a row for each artifact."""
    columns = [
        Column("artifact", style="name"),
        Column("written by"),
        Column("jax.export of"),
        Column("here", marks=_MARKS),
        Column("promised until"),
    ]
    rows = []
    for name, found in described:
        here = "refused" if found.unreadable_here else "loaded" if not found.jax_export_refuses else "by jaxexp only"
        until = "" if found.promised_until is None else found.promised_until.isoformat()
        readers = listed(found.readers, lambda one: span(*one))
        rows.append((name, f"JAX {found.jax_version or span(*found.writers)}", readers, here, until))
    page.table(columns, rows)


def _show(page: Page, name: str, found: Compatibility) -> None:
    from jaxexp._compat.compatibility import facts_of, runs_of

    page.title(found.fun_name, name)
    page.fields(facts_of(found))
    page.blank()
    rows = [(releases, "refuses it" if why else "loads it", why) for releases, why in runs_of(found)]
    page.table(
        [
            Column("jax.export of", style="name"),
            Column("", marks={"loads": "good", "refuses": "bad"}),
            Column("because of"),
        ],
        rows,
    )


def _remedies(name: str, found: Compatibility) -> Iterator[str]:
    """How `migrate` helps releases that refuse an artifact, and jaxexp on releases where it cannot load it."""
    from jaxexp._compat.remedy import rewritten, rewritten_for_oldest

    if not found.refusals or found.unreadable_here is not None:
        return
    at = source(name, "compat")
    with at.named():
        buffer = at.read()
    with contextlib.suppress(ExportError):
        if found.jax_export_refuses and rewritten(buffer, None).jax_export_refuses is None:
            yield f"{_migrate(name, None)} writes one that JAX {found.jax_export_version} loads"
    with contextlib.suppress(ExportError):
        to, new = rewritten_for_oldest(buffer)
        if new.readable_by(to) and not found.readable_by(to):
            yield f"{_migrate(name, to)} writes one that JAX {to} loads; newer releases can be named, too"
        elif _is_in(to, new.jaxexp_readers) and not _is_in(to, found.jaxexp_readers):
            yield f"{_migrate(name, to)} writes one that jaxexp loads on JAX {to}"


def _remedy_for(asked: str, name: str, found: Compatibility) -> str:
    """What `migrate` does for one release that refuses an artifact."""
    from jaxexp._compat.remedy import rewritten

    at = source(name, "compat")
    try:
        with at.named():
            new = rewritten(at.read(), asked)
    except ExportError as error:
        return f"'jaxexp migrate' cannot write it for that release: {error}"
    if new.readable_by(asked):
        return f"{_migrate(name, asked)} writes one that it loads"
    reason = next(r.reason for r in new.refusals if number(r.first) <= number(asked) <= number(r.last))
    if _is_in(asked, new.jaxexp_readers) and not _is_in(asked, found.jaxexp_readers):
        return f"{_migrate(name, asked)} writes one that jaxexp loads there; jax.export would still refuse {reason}"
    return f"'jaxexp migrate' does not help: it would still have {reason}"


def _migrate(name: str, to: str | None) -> str:
    """A command line."""
    return f"'jaxexp migrate {'' if to is None else f'--to {to} '}{shlex.quote(name)} NEW'"


def _is_in(version: str, spans: tuple[tuple[str, str], ...]) -> bool:
    return any(number(first) <= number(version) <= number(last) for first, last in spans)
