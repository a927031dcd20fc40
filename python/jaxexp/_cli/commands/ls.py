"""`jaxexp ls`: lists the members of an archive."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import click

from jaxexp._cli import completing, headers, inputs
from jaxexp._cli.page import Column, Page
from jaxexp._kernel.artifact.words import counted

_EXAMPLE = """\b
Example:
  jaxexp ls fleet.zip
  jaxexp ls --long fleet.zip 'resnet/*'"""


@click.command(epilog=_EXAMPLE, short_help="List the members of an archive.")
@click.argument("archive", type=click.Path())
@click.argument("pattern", metavar="[GLOB]", required=False, shell_complete=completing.of_archive)
@click.option("-l", "--long", is_flag=True, help="Also show devices, VJPs, writer, digest and metadata.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, with an object for each member.")
@headers.option
def command(archive: str, pattern: str | None, long: bool, as_json: bool) -> None:
    """List the members of an archive with their signatures. Only its index is read, and JAX is not imported."""
    with inputs.part(archive, pattern) as opened:
        handles = list(opened.values())
        if as_json:
            # Rendered as texts, because members can share a long text of metadata, whose values take much more memory.
            texts = [textwrap.indent(json.dumps(_facts(handle), indent=2), "  ") for handle in handles]
            for i, text in enumerate(texts):
                click.echo(f"{',' if i else '['}\n{text}", nl=False)
            click.echo("\n]" if texts else "[]")
            return
        page = Page()
        page.table([*_COLUMNS, *_LONG] if long else _COLUMNS, [_row(handle, long) for handle in handles])
        page.blank()
        total = sum(handle.size for handle in handles)
        weights = opened.weight_bytes if pattern is None else 0
        beside = f", and {weights:,} bytes of weights" if weights else ""
        page.line(f"{counted(len(handles), 'member')}, {total:,} bytes{beside}", "heading")
        page.write()


_COLUMNS = [
    Column("name", style="name"),
    Column("bytes", right=True),
    Column("platforms"),
    Column("function", cut=True),
    Column("signature", cut=True),
]
_LONG = [
    Column("devices", right=True),
    Column("VJPs", right=True),
    Column("written by"),
    Column("digest"),
    Column("metadata"),
]


def _row(handle: Any, long: bool) -> tuple[str, ...]:
    from jaxexp._fleet.archive.summary import signature

    summary = handle.summary
    row = (handle.name, f"{handle.size:,}", ", ".join(summary.platforms), summary.fun_name, signature(summary))
    if not long:
        return row
    return (
        *row,
        f"{summary.nr_devices:,}",
        f"{summary.vjp_order:,}",
        f"JAX {summary.jax_version or summary.writer}",
        handle.digest,
        json.dumps(handle.metadata) if handle.metadata else "",
    )


def _facts(handle: Any) -> dict[str, Any]:
    facts = {"name": handle.name, "bytes": handle.size, "digest": handle.digest, "metadata": handle.metadata}
    return {**facts, **handle.summary.to_dict()}
