"""`jaxexp ls`: lists the members of an archive, or the artifacts in a folder."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from jaxexp import _native
from jaxexp._cli import complaints, completing, headers, inputs
from jaxexp._cli.page import Column, Page
from jaxexp._kernel.artifact.words import counted, listed

if TYPE_CHECKING:
    from jaxexp._fleet.archive.archive import Archive
    from jaxexp._fleet.archive.summary import Summary

_EXAMPLE = """\b
Example:
  jaxexp ls fleet.zip
  jaxexp ls --long fleet.zip 'resnet/*'
  jaxexp ls models/ '*/v2.*' --signature 'float32[batch,4]'
  jaxexp ls --group fleet.zip"""


@click.command(epilog=_EXAMPLE, short_help="List the members of an archive, or the artifacts in a folder.")
@click.argument("place", metavar="PLACE", type=click.Path())
@click.argument("pattern", metavar="[GLOB]", required=False, shell_complete=completing.of_archive)
@click.option("-l", "--long", is_flag=True, help="Also show devices, VJPs, writer, digest and metadata.")
@click.option("-s", "--signature", metavar="TEXT", help="Only those with this text in their signatures.")
@click.option("-g", "--group", is_flag=True, help="Print a row for each signature, with those that have it.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, with an object for each member.")
@inputs.folder_options
@headers.option
def command(
    place: str,
    pattern: str | None,
    long: bool,
    signature: str | None,
    group: bool,
    as_json: bool,
    folders: inputs.Folders,
) -> int:
    """List the members of an archive, or the artifacts in a folder, with their signatures.

    PLACE is an archive, whose index says all this, or a folder. GLOB chooses members by their names, or artifacts by
    their paths in the folder, as they are printed. JAX is not imported.
    """
    if group and (long or as_json):
        raise click.UsageError("--group prints no more than signatures and names: leave out --long and --json")
    if inputs.is_folder(place):
        return _list_folder(place, pattern, long, signature, group, as_json, folders)
    with inputs.part(place, pattern) as opened:
        handles = _with_signature(opened.values(), signature, place)
        if as_json:
            # Rendered as texts, because members can share a long text of metadata, whose values take much more memory.
            rendered = ((textwrap.indent(json.dumps(_facts(handle), indent=2), "  "),) for handle in handles)
            texts = [text for (text,) in _in_proportion(rendered, opened)]
            for i, text in enumerate(texts):
                click.echo(f"{',' if i else '['}\n{text}", nl=False)
            click.echo("\n]" if texts else "[]")
            return 0
        weights = opened.weight_bytes if pattern is signature is None else 0
        rows = list(_in_proportion((_row(handle, long) for handle in handles), opened))
        _print(handles, rows, long, group, "member", f", and {weights:,} bytes of weights" if weights else "")
        return 0


def _with_signature(given: Iterable[Any], text: str | None, place: str, failed: Sequence[object] = ()) -> list[Any]:
    """Those with a text in their signatures.

    Raises:
        click.ClickException: there are none, nor any whose signature cannot be read.
    """
    from jaxexp._fleet.archive.summary import signature

    found = [one for one in given if text is None or text in signature(one.summary)]
    if text is not None and not (found or failed):
        raise click.ClickException(
            f"nothing in {place!r} has {text!r} in its signature: 'jaxexp ls {place}' shows them"
        )
    return found


# How many characters a list may have: so many, and some for each byte of the archive.
_MOST_TEXT, _MOST_TEXT_PER_BYTE = 1 << 26, 256


def _in_proportion(rows: Iterable[tuple[str, ...]], archive: Archive) -> Iterator[tuple[str, ...]]:
    """What is printed, which may be long: members can share metadata, which is printed for each."""
    left = _MOST_TEXT + _MOST_TEXT_PER_BYTE * archive._opened.source.size
    for row in rows:
        left -= sum(map(len, row))
        if left < 0:
            raise click.ClickException(f"the list of {archive.name!r} would be too long: choose members by a GLOB")
        yield row


def _list_folder(
    folder: str,
    pattern: str | None,
    long: bool,
    signature: str | None,
    group: bool,
    as_json: bool,
    folders: inputs.Folders,
) -> int:
    start = folder.rstrip("/") + "/"
    sources = (
        source
        for source in inputs.in_folder(folder, folders, "ls")
        if pattern is None or fnmatch.fnmatchcase(source.name.removeprefix(start), pattern)
    )
    found, failed = inputs.read_each(sources, lambda source: _of_source(source, long or as_json))
    if pattern is not None and not (found or failed):
        raise click.ClickException(f"no artifact in {folder!r} matches {pattern!r}")
    found = _with_signature(found, signature, folder, failed)
    if as_json:
        facts = [_facts(one) for one in found]
        facts += [{"name": name, "error": complaints.said(error)} for name, error in failed]
        click.echo(json.dumps(facts, indent=2))
    elif found:
        inside = [dataclasses.replace(one, name=one.name.removeprefix(start)) for one in found]
        _print(inside, [_row(one, long) for one in inside], long, group, "artifact", folders.said())
    complaints.complain_of(failed)
    return complaints.status_of(*(error for _, error in failed))


@dataclasses.dataclass(frozen=True)
class _Listed:
    """An artifact in a folder, with what a `Handle` says about a member."""

    name: str
    size: int
    digest: str
    metadata: dict[str, Any]
    summary: Summary


def _of_source(source: inputs.Source, with_digest: bool) -> _Listed:
    from jaxexp._fleet.archive.summary import of_artifact
    from jaxexp._kernel.artifact.metadata import from_json
    from jaxexp._kernel.artifact.opened import opened

    if (handle := source.handle) is not None:
        return _Listed(source.name, handle.size, handle.digest, handle.metadata, handle.summary)
    with source.named():
        buffer = source.read()
        artifact = opened(buffer)
        digest = _native.digest(buffer).hex() if with_digest else ""  # which reads all of the file
        return _Listed(source.name, len(buffer), digest, from_json(artifact.metadata() or {}), of_artifact(artifact))


def _print(
    found: Sequence[Any], rows: Sequence[tuple[str, ...]], long: bool, group: bool, what: str, more: str
) -> None:
    page = Page()
    every = [*(dataclasses.replace(column, optional=False) for column in _COLUMNS), *_LONG]
    if group:
        names: dict[str, list[str]] = {}
        for name, _, _, _, signature in rows:
            names.setdefault(signature, []).append(name)
        columns = [Column(f"{what}s", right=True), Column("names", style="name"), _COLUMNS[-1]]
        groups = sorted(names.items(), key=lambda one: (-len(one[1]), one[0]))
        page.table(columns, [(f"{len(those):,}", listed(those, most=_NAMED), text) for text, those in groups])
    else:
        page.table(every if long else _COLUMNS, rows)
    page.blank()
    page.line(f"{counted(len(found), what)}, {sum(one.size for one in found):,} bytes{more}", "heading")
    page.write()


_NAMED = 3  # artifacts of a signature
_COLUMNS = [
    Column("name", style="name"),
    Column("bytes", right=True, optional=True),
    Column("platforms", cut=True, optional=True),
    Column("function", cut=True),
    Column("signature", cut=True, least=40),
]
_LONG = [
    Column("devices", right=True),
    Column("VJPs", right=True),
    Column("written by"),
    Column("digest", words=True),
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
