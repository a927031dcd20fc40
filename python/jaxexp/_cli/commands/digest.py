"""`jaxexp digest`: prints what artifacts can be known by."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from jaxexp._cli import complaints, completing, headers, importing, inputs
from jaxexp._cli.page import Page
from jaxexp._fleet.places.digests import digests_of

_EXAMPLE = """\b
Example:
  jaxexp digest model.jaxexp
  jaxexp digest --json fleet.zip | jq -r '.[].meaning // empty' | sort | uniq -c"""


@click.command(epilog=_EXAMPLE, short_help="Print digests of artifacts and of their meaning.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=completing.Artifact())
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, with an object for each artifact.")
@inputs.folder_options
@importing.option
@headers.option
def command(files: tuple[str, ...], folders: inputs.Folders, as_json: bool) -> int:
    """Print two SHA-256 digests of each artifact: of its bytes, and of its meaning.

    The meaning is the program without the names and places of its source: its modules, its signature, its VJPs, and the
    content of its weights. Equal programs have equal meanings, whoever exported them, from wherever. Compare what one
    release of jaxexp prints. FILE is an artifact or a member of an archive; or a folder or an archive, for all
    artifacts in it. This imports JAX.
    """
    found: list[dict[str, Any]] = []
    failed: list[tuple[str, Exception]] = []
    page = Page()
    for text in files:
        sources = inputs.in_folder(text, folders, "digest") if inputs.stands_for_all(text) else inputs.artifacts(text)
        digested, errors = inputs.read_each(sources, lambda one: (one.name, digests_of(one)))
        failed += errors
        for name, digests in digested:
            found.append({"file": name, **dataclasses.asdict(digests)})
            page.line(name, "name")
            page.fields([("SHA-256", digests.sha256), ("meaning", digests.meaning)])
    if as_json:
        found += [{"file": name, "error": complaints.said(error)} for name, error in failed]
        click.echo(json.dumps(found, indent=2))
    else:
        page.write()
    complaints.complain_of(failed)
    return complaints.status_of(*(error for _, error in failed))
