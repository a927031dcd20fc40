"""`jaxexp verify`: whether artifacts are whole."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from jaxexp import _native
from jaxexp._artifact.words import counted
from jaxexp._cli import complaints, completing, inputs, progress
from jaxexp._cli.page import Column, Page
from jaxexp._errors import DeserializationError
from jaxexp._io.workers import worker_count
from jaxexp._sources.verify import weights_beside

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
@click.option(
    "-j", "--workers", type=click.IntRange(1), help="How many threads work; by default one for each processor."
)
def command(paths: tuple[str, ...], folders: inputs.Folders, quiet: bool, as_json: bool, workers: int | None) -> int:
    """Check that artifacts are whole: their structure, all digests, and for files also the bytecode of the modules.

    FILE is an artifact, an archive (index, directory and all members), or a folder. Of a folder, files are skipped that
    are neither by their names nor by their beginnings; the last line says how many. Weights in files beside an artifact
    are read and compared with their digests, too. JAX is not imported. The exit status is 0 if everything is whole, and
    1 if something is damaged or cannot be read.
    """
    found = list(_found(paths, folders))
    if not found:
        raise click.ClickException(f"there is no artifact here{folders.said()}")
    verdicts = _verified(found, workers)
    folders.used(file for verdict in verdicts for file in verdict.weights)
    bad = sum(1 for verdict in verdicts if verdict.error is not None)
    if as_json:
        _print_json(verdicts, folders)
    else:
        _print(verdicts, folders, quiet)
    if bad:
        complaints.complain(f"{bad:,} of {counted(len(verdicts), 'artifact')} {'is' if bad == 1 else 'are'} not whole")
    return complaints.FAILED if bad else 0


@dataclasses.dataclass(frozen=True)
class _Members:
    """The members of an archive, or of a slice of one."""

    path: str
    archive: Archive


_Job = inputs.Source | _Members | Verdict


def _found(paths: tuple[str, ...], folders: inputs.Folders) -> Iterator[_Job]:
    """All artifacts to verify; a verdict in the place of those that are missing."""
    for path in paths:
        inside = [path]
        try:
            if os.path.isdir(path):
                inside = [str(file) for file, _ in folders.files(path)]
        except OSError as error:
            yield Verdict(path, "unreadable", 0, None, complaints.said(error))
            continue
        for file in inside:
            try:
                yield _in_file(file)
            except DeserializationError as error:  # in the index of an archive
                yield _damaged(file, os.path.getsize(file) if os.path.isfile(file) else 0, error)
            except Exception as error:
                yield Verdict(file, "unreadable", 0, None, complaints.said(error))


def _in_file(path: str) -> _Job:
    file, member = inputs.split(path)
    if member is None and not inputs.is_archive(file):
        return inputs.Source(path, path)
    return _Members(file, inputs.part(file, member))


def _verified(found: list[_Job], workers: int | None) -> list[Verdict]:
    """A verdict for each artifact, in the same order."""
    threads = worker_count(workers)
    steps = sum(len(job.archive) if isinstance(job, _Members) else 1 for job in found)
    verdicts: list[Verdict] = []
    with progress.bar("verifying", steps) as advance:
        for in_archives, jobs in itertools.groupby(found, key=lambda job: isinstance(job, _Members)):
            if in_archives:
                verdicts += _of_members(jobs, threads, advance)
            else:
                verdicts += _of_files(jobs, threads, advance)
    return verdicts


def _of_files(jobs: Iterable[Any], threads: int, advance: Callable[[int], None]) -> Iterator[Verdict]:
    for batch in _batches(jobs):
        paths = [job.path for job in batch if isinstance(job, inputs.Source) and job.path is not None]
        said = iter(_native.verify_files(paths, threads))
        for job in batch:
            if isinstance(job, Verdict):
                yield job
                continue
            size, digests, has_weights, wrong = next(said)
            verdict = _verdict(job.name, size, digests, wrong)
            yield _with_weights(job.path, verdict) if has_weights and wrong is None else verdict
        advance(len(batch))


def _batches(jobs: Iterable[Any]) -> Iterator[list[Any]]:
    """Files that are verified in one step, without progress: a number of small ones, or a large one."""
    batch: list[Any] = []
    size = 0
    for job in jobs:
        batch.append(job)
        with contextlib.suppress(OSError):
            size += job.size() if isinstance(job, inputs.Source) else 0
        if len(batch) >= _FILES or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


_FILES, _BYTES = 256, 1 << 28


def _with_weights(path: str, verdict: Verdict) -> Verdict:
    """The verdict about a whole artifact together with the files of weights beside it."""
    try:
        beside = weights_beside(path)
    except DeserializationError as error:
        return dataclasses.replace(verdict, state="damaged", error=str(error))
    except OSError as error:
        return dataclasses.replace(verdict, state="unreadable", error=complaints.said(error))
    return dataclasses.replace(
        verdict,
        bytes=verdict.bytes + sum(size for _, size in beside),
        weights=tuple(os.path.join(os.path.dirname(path), name) for name, _ in beside),
    )


def _verdict(name: str, size: int, digests: bool, wrong: Any) -> Verdict:
    if wrong is None:
        return Verdict(name, "whole", size, digests, None)
    if isinstance(wrong, int):
        return Verdict(name, "unreadable", 0, None, f"{name!r}: {os.strerror(wrong)}")
    return _damaged(name, size, DeserializationError(*wrong))


def _of_members(jobs: Iterable[Any], threads: int, advance: Callable[[int], None]) -> Iterator[Verdict]:
    """The verdicts for archives. Threads verify one archive after the other; digests cover every byte."""
    from jaxexp._archive.archive import verify_in_steps

    for job in jobs:
        left = job.archive.unfinished_bytes
        errors: dict[str, DeserializationError] = {}
        names: Iterable[str] = ()
        try:
            for count, damaged in verify_in_steps(job.archive, threads):
                errors.update(damaged)
                advance(count)
            names = job.archive
        except DeserializationError as error:
            yield _damaged(job.path, 0, error)
        except Exception as error:
            yield Verdict(job.path, "unreadable", 0, None, complaints.said(error))
        for name in names:
            wrong, shown = errors.get(name), f"{job.path}{inputs.MEMBER}{name}"
            size = job.archive[name].size
            verdict = Verdict(shown, "whole", size, True, None) if wrong is None else _damaged(shown, size, wrong)
            yield dataclasses.replace(verdict, archive=job.path, unfinished_bytes=left)


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
