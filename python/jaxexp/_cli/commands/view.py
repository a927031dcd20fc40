"""`jaxexp view`: makes a page about an artifact."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jaxexp._cli import completing, inputs, options, outputs
from jaxexp._cli.options import argument, option
from jaxexp._cli.page import one_line
from jaxexp._fleet.places.inspect import inspected
from jaxexp._fleet.places.source import path_in
from jaxexp._kernel.artifact.words import without_secrets

from . import diff

if TYPE_CHECKING:
    from jaxexp._fleet.places.source import Opened
    from jaxexp._view.sides import Check, Side


@options.command("Make a page about an artifact.", options.IMPORTS, options.HEADERS)
def command(
    file: str = options.FILE,
    other: str | None = argument("[OTHER]", type=completing.Artifact()),
    output: str | None = option("-o, --output PAGE", "The page; - for stdout. By default, the name of FILE and .html."),
    show: bool = option("--open", "Open the page in a browser. Without -o, the page is a temporary file."),
    force: bool = option("--force", "Replace an existing file."),
) -> None:
    """Make one HTML page about an artifact, or about the differences between two.

    It shows arguments and results with their shardings, weights, the module as a graph that folds, VJPs, custom calls,
    and the releases of JAX that can load it. The page works offline. The artifact is not run; JAX is imported, to parse
    the modules.

    Example:
      jaxexp view model.jaxexp --open
      jaxexp view fleet.zip::model/2 -o model.html
      jaxexp view old.jaxexp new.jaxexp -o changes.html
    """
    if output == "-" and show:
        raise click.UsageError("--open needs a file, and -o - writes to stdout")
    if output is None:
        if show:
            handle, output = tempfile.mkstemp(prefix="jaxexp-", suffix=".html")
            os.close(handle)
        else:
            output = f"{_stem(other or file)}.html"
        force = force or show
    if output != "-":
        outputs.refuse_to_replace(output, "a page", force=force)
    page = page_of(inputs.artifact(file), None if other is None else inputs.artifact(other)).encode()
    if output == "-":
        click.echo(page, nl=False)
        return
    outputs.write(output, page, force=force)
    click.echo(one_line(output))
    if show:
        webbrowser.open(Path(output).absolute().as_uri())


def page_of(source: inputs.Source, other: inputs.Source | None = None, check: Check | None = None) -> str:
    """The page about an artifact, also about what a check of it found; or about the differences between two."""
    from jaxexp._view.page import page

    first = source.opened()
    if other is None:
        return page(_side(first, check))
    second = other.opened()
    differing = {
        section: {name: (diff.shown(a), diff.shown(b)) for name, (a, b) in rows.items()}
        for section, rows in diff.compared(first, second).items()
        if rows
    }
    return page(_side(second), _side(first), differing)


def _side(found: Opened, check: Check | None = None) -> Side:
    from jaxexp._compat.compatibility import compatibility_of, facts_of, runs_of
    from jaxexp._kernel.releases.table import RELEASES
    from jaxexp._view.sides import Readers, side

    said = inspected(found, True, whole=True)
    with found.source.named():
        read = compatibility_of(found.buffer)
        releases = tuple((release.version, read.readable_by(release.version)) for release in RELEASES)
        readers = Readers(releases=releases, spans=tuple(runs_of(read)), facts=tuple(facts_of(read)))
        return side(without_secrets(found.source.name), found.artifact, said, readers, check)


def _stem(text: str) -> str:
    """The name of a page in the current folder."""
    path, member = inputs.split(text)
    name = os.path.basename((member or path_in(path)).rstrip("/"))
    return name.removesuffix(".jaxexp").removesuffix(".bin") or "page"
