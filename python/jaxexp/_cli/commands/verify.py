"""`jaxexp verify`: whether artifacts are whole."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from jaxexp._artifact.words import counted
from jaxexp._bulk.work import Unusable
from jaxexp._cli import complaints, completing, inputs, progress, spreading
from jaxexp._cli.page import Column, Page
from jaxexp._cli.spreading import Spread
from jaxexp._errors import DeserializationError, FatalArtifactError, WeightsError
from jaxexp._sources.given import Place, places
from jaxexp._sources.verified import Verified, verified

if TYPE_CHECKING:
    from jaxexp._archive.archive import Archive

_EXAMPLE = """\b
Example:
  jaxexp verify model.jaxexp fleet.zip
  jaxexp verify --include '*.bin' models/ && echo all good"""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result for one artifact.

    Attributes:
        file: its name.
        state: "whole", "damaged", or "unreadable" if there is no such file or it cannot be opened.
        bytes: its size, with the files of weights beside it.
        digests: whether it has digests, by which any damage is found; None if that is not known.
        error: what is wrong with it; None if nothing is.
        archive: the archive that it is a member of, or None.
        unfinished_bytes: how many bytes an interrupted append left after the end of that archive; they do no harm.
        weights: the files of weights beside it, which were read, too.
    """

    file: str
    state: str
    bytes: int
    digests: bool | None
    error: str | None
    archive: str | None = None
    unfinished_bytes: int = 0
    weights: tuple[str, ...] = ()


@click.command(epilog=_EXAMPLE, short_help="Check that artifacts are whole.")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=completing.Artifact())
@inputs.folder_options
@click.option("-q", "--quiet", is_flag=True, help="Show only the artifacts that are not whole.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with a list of all artifacts.")
@spreading.options(
    "How many threads work; by default one for each processor. With --dask, the threads of each worker, by default 1."
)
def command(paths: tuple[str, ...], folders: inputs.Folders, quiet: bool, as_json: bool, spread: Spread) -> int:
    """Check that artifacts are whole: their structure, all digests, and for files also the bytecode of the modules.

    FILE is an artifact, an archive (index, directory and all members), or a folder. Of a folder, files are skipped that
    are neither by their names nor by their beginnings; the last line says how many. Weights in files beside an artifact
    are read and compared with their digests, too. JAX is not imported. The exit status is 0 if everything is whole, and
    1 if something is damaged or cannot be read.
    """
    found = list(places(paths, folders, "verify"))
    if not found:
        raise inputs.none_in(paths, folders)
    verdicts = _verified(found, spread)
    folders.used(file for verdict in verdicts for file in verdict.weights)
    bad = sum(1 for verdict in verdicts if verdict.error is not None)
    if as_json:
        _print_json(verdicts, folders)
    else:
        _print(verdicts, folders, quiet)
    if bad:
        complaints.complain(f"{bad:,} of {counted(len(verdicts), 'artifact')} {'is' if bad == 1 else 'are'} not whole")
    return complaints.FAILED if bad else 0


def _verified(found: list[Place | Unusable], spread: Spread) -> list[Verdict]:
    """A verdict for each artifact, in the same order."""
    steps = sum(1 if isinstance(one, Unusable) or one.archive is None else len(one.archive) for one in found)
    verdicts: dict[int, list[Verdict]] = {}
    errors: dict[int, dict[str, Exception]] = {}
    with progress.bar("verifying", steps) as advance, spread.executor(processes=False) as executor:
        done = verified(found, executor=executor, workers=spread.workers, journal=spread.journal, policy=None)
        for one in done:
            advance(one.count)
            order = one.place.order
            if one.place.archive is None:
                verdicts[order] = [_of_file(one)]
                continue
            errors.setdefault(order, {}).update(one.errors)
            if one.is_last:
                verdicts[order] = list(_of_members(one.place.archive, errors.pop(order)))
    return [verdict for order in sorted(verdicts) for verdict in verdicts[order]]


def _of_file(found: Verified) -> Verdict:
    """The verdict for a file, with the files of weights beside it; or for an archive that cannot be opened."""
    name = found.place.name
    (error,) = found.errors.values() if found.errors else (None,)
    if error is not None:
        return _wrong(name, found.size or (os.path.getsize(name) if os.path.isfile(name) else 0), error)
    size = found.size + sum(size for _, size in found.weights)
    return Verdict(name, "whole", size, found.has_digests, None, weights=tuple(name for name, _ in found.weights))


def _of_members(archive: Archive, errors: dict[str, Exception]) -> Iterator[Verdict]:
    """The verdicts for the members of an archive; digests cover every byte."""
    if archive.name in errors:
        yield _wrong(archive.name, 0, errors[archive.name])
        return
    left = archive.unfinished_bytes
    for name, handle in archive.items():
        shown = f"{archive.name}{inputs.MEMBER}{name}"
        wrong, size = errors.get(shown), handle.size
        verdict = Verdict(shown, "whole", size, True, None) if wrong is None else _wrong(shown, size, wrong)
        yield dataclasses.replace(verdict, archive=archive.name, unfinished_bytes=left)


def _wrong(name: str, size: int, error: Exception) -> Verdict:
    if isinstance(error, FatalArtifactError):
        return Verdict(name, "unreadable", size, None, f"expected {error.expected}, found {error.found}")
    if isinstance(error, WeightsError):
        return Verdict(name, "damaged", size, None, str(error))
    if isinstance(error, DeserializationError):
        return _damaged(name, size, error)
    return Verdict(name, "unreadable", 0, None, complaints.said(error))


def _damaged(name: str, size: int, error: DeserializationError) -> Verdict:
    where = f"at {error.path}: " if error.path else ""
    return Verdict(name, "damaged", size, None, f"{where}expected {error.expected}, found {error.found}")


def _print(verdicts: list[Verdict], folders: inputs.Folders, quiet: bool) -> None:
    page = Page()
    rows = [row for row in _rows(verdicts) if not quiet or row[2] in ("damaged", "unreadable")]
    if rows:
        state = Column("state", marks={"whole": "good", "damaged": "bad", "unreadable": "bad"})
        page.table([Column("artifact", style="name"), Column("bytes", right=True), state, Column("note")], rows)
    if not quiet:
        page.blank()
        total = sum(verdict.bytes for verdict in verdicts)
        good = sum(1 for verdict in verdicts if verdict.error is None)
        page.line(f"{good:,} of {counted(len(verdicts), 'artifact')} whole, {total:,} bytes{folders.said()}", "heading")
    page.write()


def _rows(verdicts: list[Verdict]) -> Iterator[tuple[str, str, str, str]]:
    """A row for each artifact, and a single one for those in an archive that are whole."""
    for archive, group in itertools.groupby(verdicts, key=lambda verdict: verdict.archive):
        found = list(group)
        if archive is not None:
            whole = [verdict for verdict in found if verdict.error is None]
            found = [verdict for verdict in found if verdict.error is not None]
            size = sum(verdict.bytes for verdict in whole)
            if whole:
                left = whole[0].unfinished_bytes
                note = f"{left:,} bytes after its end are from an append that was not finished" if left else ""
                yield archive, f"{size:,}", f"whole: {counted(len(whole), 'member')}", note
        for verdict in found:
            yield verdict.file, f"{verdict.bytes:,}", _state(verdict), verdict.error or ""


def _state(verdict: Verdict) -> str:
    return "whole, without digests" if verdict.digests is False else verdict.state


def _print_json(verdicts: list[Verdict], folders: inputs.Folders) -> None:
    states = collections.Counter(verdict.state for verdict in verdicts)
    summary = {
        "artifacts": len(verdicts),
        **{state: states[state] for state in ("whole", "damaged", "unreadable")},
        "bytes": sum(verdict.bytes for verdict in verdicts),
        "skipped": folders.skipped,
    }
    click.echo(json.dumps({**summary, "files": [dataclasses.asdict(verdict) for verdict in verdicts]}, indent=2))
