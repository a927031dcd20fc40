"""`jaxexp ls`: lists the members of an archive, or the artifacts in a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import itertools
import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jaxexp import _native
from jaxexp._cli import complaints, completing, inputs, options
from jaxexp._cli.options import argument, option
from jaxexp._cli.page import Column, Page
from jaxexp._fleet.archive.summary import of_artifact
from jaxexp._fleet.archive.summary import signature as signature_of
from jaxexp._kernel.artifact.words import counted, listed

if TYPE_CHECKING:
    from jaxexp._fleet.archive.summary import Summary


@options.command("List the members of an archive, or the artifacts in a folder.", options.HEADERS)
def command(
    place: options.File = argument("PLACE"),
    pattern: str | None = argument("[GLOB]", shell_complete=completing.of_archive),
    long: bool = option("-l, --long", "Also show devices, VJPs, writer, digest and metadata."),
    signature: str | None = option("-s, --signature TEXT", "List only signatures with this text."),
    group: bool = option("-g, --group", "Print a row for each signature, with the members that have it."),
    as_json: bool = option("--json", "Print a JSON list, with an object for each member."),
    folders: inputs.Folders = options.FOLDERS,
) -> int:
    """List the members of an archive, or the artifacts in a folder, with their signatures.

    PLACE is an archive or a folder. GLOB chooses members by their names, or artifacts by their paths in the folder, as
    they are printed. JAX is not imported.

    Example:
      jaxexp ls fleet.zip
      jaxexp ls --long fleet.zip 'resnet/*'
      jaxexp ls models/ '*/v2.*' --signature 'float32[batch,4]'
      jaxexp ls --group fleet.zip
    """
    if group and (long or as_json):
        raise click.UsageError("--group prints no more than signatures and names: leave out --long and --json")
    with contextlib.ExitStack() as stack:
        if inputs.is_folder(place):
            start = f"{place.rstrip('/')}/"
            sources = (
                source
                for source in inputs.in_folder(place, folders, "ls")
                if pattern is None or fnmatch.fnmatchcase(source.name.removeprefix(start), pattern)
            )
            read = list(inputs.read_each(sources, lambda source: _of_source(source, long or as_json)))
            found: list[Any] = [one for _, one in read if not isinstance(one, Exception)]
            failed = [(name, one) for name, one in read if isinstance(one, Exception)]
            if pattern is not None and not read:
                raise click.ClickException(f"no artifact in {place!r} matches {pattern!r}")
            what, more, size = "artifact", folders.said(), sum(one.size for one in found)
        else:
            start, failed = "", []
            opened = stack.enter_context(inputs.part(place, pattern))
            found, what, size = list(opened.values()), "member", opened._opened.source.size
            weights = opened.weight_bytes if pattern is signature is None else 0
            more = f", and {weights:,} bytes of weights" if weights else ""
        if signature is not None:
            found = [one for one in found if signature in signature_of(one.summary)]
            if not (found or failed):
                raise click.ClickException(
                    f"nothing in {place!r} has {signature!r} in its signature: 'jaxexp ls {place}' shows them"
                )
        if as_json:
            # Rendered as texts, because members can share a long text of metadata, whose values take much more memory.
            objects = itertools.chain(map(_facts, found), complaints.in_json(failed, "name"))
            rendered = ((textwrap.indent(json.dumps(one, indent=2), "  "),) for one in objects)
            texts = [text for (text,) in _in_proportion(rendered, place, size)]
            click.echo("[\n" + ",\n".join(texts) + "\n]" if texts else "[]")
        elif found or not failed:
            rows = list(_in_proportion((_row(one, one.name.removeprefix(start), long) for one in found), place, size))
            page = Page()
            if group:
                names: dict[str, list[str]] = {}
                for name, _, _, _, text in rows:
                    names.setdefault(text, []).append(name)
                columns = [Column(f"{what}s", right=True), Column("names", style="name"), _COLUMNS[-1]]
                groups = sorted(names.items(), key=lambda one: (-len(one[1]), one[0]))
                page.table(columns, [(f"{len(those):,}", listed(those, most=_NAMED), text) for text, those in groups])
            elif long:
                page.table([*(dataclasses.replace(one, optional=False) for one in _COLUMNS), *_LONG], rows)
            else:
                page.table(_COLUMNS, rows)
            page.blank()
            page.line(f"{counted(len(found), what)}, {sum(one.size for one in found):,} bytes{more}", "heading")
            page.write()
    return complaints.ended_with(failed)


# How many characters a list may have: so many, and some for each byte of what is listed.
_MOST_TEXT, _MOST_TEXT_PER_BYTE = 1 << 26, 256


def _in_proportion(rows: Iterable[tuple[str, ...]], place: str, size: int) -> Iterator[tuple[str, ...]]:
    """What is printed, which may be long: members can share metadata, which is printed for each."""
    left = _MOST_TEXT + _MOST_TEXT_PER_BYTE * size
    for row in rows:
        left -= sum(map(len, row))
        if left < 0:
            raise click.ClickException(f"the list of {place!r} would be too long: choose members by a GLOB")
        yield row


class _Listed(NamedTuple):
    """An artifact in a folder, with what a `Handle` says about a member."""

    name: str
    size: int
    digest: str
    metadata: dict[str, Any]
    summary: Summary


def _of_source(source: inputs.Source, with_digest: bool) -> _Listed:
    from jaxexp._kernel.artifact.metadata import from_json

    if (handle := source.handle) is not None:
        return _Listed(source.name, handle.size, handle.digest, handle.metadata, handle.summary)
    with source.named():
        found = source.opened()
        buffer, artifact = found.buffer, found.artifact
        digest = _native.digest(buffer).hex() if with_digest else ""  # which reads all of the file
        return _Listed(source.name, len(buffer), digest, from_json(artifact.metadata() or {}), of_artifact(artifact))


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


def _row(handle: Any, name: str, long: bool) -> tuple[str, ...]:
    summary = handle.summary
    row = (name, f"{handle.size:,}", ", ".join(summary.platforms), summary.fun_name, signature_of(summary))
    if not long:
        return row
    numbers = f"{summary.nr_devices:,}", f"{summary.vjp_order:,}"
    metadata = json.dumps(handle.metadata) if handle.metadata else ""
    return (*row, *numbers, f"JAX {summary.jax_version or summary.writer}", handle.digest, metadata)


def _facts(handle: Any) -> dict[str, Any]:
    facts = {"name": handle.name, "bytes": handle.size, "digest": handle.digest, "metadata": handle.metadata}
    return {**facts, **handle.summary.to_dict()}
