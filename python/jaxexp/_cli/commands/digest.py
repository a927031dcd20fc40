"""`jaxexp digest`: prints what artifacts can be known by."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from jaxexp._cli import complaints, completing, headers, importing, inputs, spreading
from jaxexp._cli.page import Page
from jaxexp._cli.spreading import Spread
from jaxexp._fleet.passes.digests_many import digested

_EXAMPLE = """\b
Example:
  jaxexp digest model.jaxexp
  jaxexp digest --json fleet.zip | jq -r '.[].meaning // empty' | sort | uniq -c"""


@click.command(epilog=_EXAMPLE, short_help="Print digests of artifacts and of their meaning.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=completing.Artifact())
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, with an object for each artifact.")
@inputs.folder_options
@spreading.options("How many processes to use; by default only this one.")
@importing.option
@headers.option
def command(files: tuple[str, ...], folders: inputs.Folders, as_json: bool, spread: Spread) -> int:
    """Print two SHA-256 digests of each artifact: of its bytes, and of its meaning.

    The meaning is the program without the names and places of its source: its modules, its signature, its VJPs, and the
    content of its weights. Equal programs have equal meanings, whoever exported them, from wherever. Compare what one
    release of jaxexp prints. FILE is an artifact or a member of an archive; or a folder or an archive, for all
    artifacts in it. This imports JAX.
    """
    found = spread.results(files, folders, "digest", digested)
    failed = [(name, one) for name, one in found if isinstance(one, Exception)]
    whole = [(name, one) for name, one in found if not isinstance(one, Exception)]
    if as_json:
        facts: list[dict[str, Any]] = [{"file": name, **dataclasses.asdict(one)} for name, one in whole]
        facts += [{"file": name, "error": complaints.said(error)} for name, error in failed]
        click.echo(json.dumps(facts, indent=2))
    else:
        page = Page()
        for name, one in whole:
            page.line(name, "name")
            page.fields([("SHA-256", one.sha256), ("meaning", one.meaning)])
        page.write()
    complaints.complain_of(failed)
    return complaints.status_of(*(error for _, error in failed))
