"""`jaxexp verify`: whether artifacts are whole."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path

import click

from jaxexp import _native
from jaxexp._errors import DeserializationError

from . import app, progress, sources
from .page import Column, Page, counted

_EXAMPLE = """\b
Example:
  jaxexp verify model.jaxexp fleet.zip
  jaxexp verify -r --include '*.jaxexp' models/ && echo all good"""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of one artifact.

    Attributes:
        file: its name.
        bytes: its size.
        digests: whether it has digests, by which any damage is found; None where that was not reached.
        error: what is wrong with it; None if nothing is.
    """

    file: str
    bytes: int
    digests: bool | None
    error: str | None


@click.command(epilog=_EXAMPLE, short_help="Check that artifacts are whole.")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option("-r", "--recursive", is_flag=True, help="Look into folders inside of folders.")
@click.option("--include", multiple=True, metavar="GLOB", help="Of folders, take the files with such names alone.")
@click.option("-q", "--quiet", is_flag=True, help="Name damaged artifacts alone.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with a list of all artifacts.")
@click.option("-j", "--workers", type=click.IntRange(1), help="How many threads; as many as processors by default.")
def command(
    paths: tuple[str, ...], recursive: bool, include: tuple[str, ...], quiet: bool, as_json: bool, workers: int | None
) -> int:
    """Check that artifacts are whole: structure, all digests, and the bytecode of all modules.

    FILE is an artifact, an archive (with all its members), or a folder. JAX is not imported. The exit status is 0 if
    all is well, and 1 if something is damaged, or cannot be read.
    """
    found = list(_found(paths, recursive, include))
    verdicts = _verified(found, workers)
    damaged = sum(1 for verdict in verdicts if verdict.error is not None)
    if as_json:
        _print_json(verdicts, damaged)
    else:
        _print(verdicts, quiet)
    if damaged:
        app.complain(f"{damaged:,} of {counted(len(verdicts), 'artifact')} cannot be read")
    elif not verdicts:
        raise click.ClickException("there is no artifact here")
    return app.FAILED if damaged else 0


def _found(paths: tuple[str, ...], recursive: bool, include: tuple[str, ...]) -> Iterator[sources.Source | Verdict]:
    """All artifacts that are meant; where there should be one and is none, why."""
    for path in paths:
        try:
            if os.path.isdir(path):
                for file in sources.files(Path(path), include, recursive=recursive):
                    yield from _in_file(str(file))
            else:
                yield from _in_file(path)
        except Exception as error:
            yield Verdict(path, 0, None, app.said(error))


def _in_file(path: str) -> Iterator[sources.Source]:
    if sources.split(path)[1] is None and sources.is_archive(path):
        yield from sources.members(path, None)
    else:
        yield from sources.artifacts(path)


def _verified(found: list[sources.Source | Verdict], workers: int | None) -> list[Verdict]:
    """A verdict for each, in the same order."""
    with progress.bar("verifying", len(found)) as advance:
        verdicts = []
        pool = concurrent.futures.ThreadPoolExecutor(workers or os.cpu_count())
        try:
            for verdict in pool.map(_verdict, found):
                verdicts.append(verdict)
                advance(1)
        finally:
            pool.shutdown(cancel_futures=True)
    return verdicts


def _verdict(source: sources.Source | Verdict) -> Verdict:
    if isinstance(source, Verdict):
        return source
    try:
        buffer = sources.checked(source)
        digests = _native.Artifact(buffer).trailer() is not None
    except DeserializationError as error:
        where = f"at {error.path}: " if error.path else ""
        return Verdict(source.name, source.size(), None, f"{where}expected {error.expected}, found {error.found}")
    except Exception as error:
        return Verdict(source.name, 0, None, app.said(error))
    return Verdict(source.name, memoryview(buffer).nbytes, digests, None)


def _print(verdicts: list[Verdict], quiet: bool) -> None:
    page = Page()
    rows = [
        (verdict.file, f"{verdict.bytes:,}", _state(verdict), verdict.error or "")
        for verdict in verdicts
        if verdict.error is not None or not quiet
    ]
    if rows:
        page.table(
            [
                Column("artifact", style="name"),
                Column("bytes", right=True),
                Column("state", marks={"whole": "good", "damaged": "bad"}),
                Column("why"),
            ],
            rows,
        )
    if not quiet:
        page.blank()
        total = sum(verdict.bytes for verdict in verdicts)
        good = sum(1 for verdict in verdicts if verdict.error is None)
        page.line(f"{good:,} of {counted(len(verdicts), 'artifact')} whole, {total:,} bytes", "heading")
    page.write()


def _state(verdict: Verdict) -> str:
    if verdict.error is not None:
        return "damaged"
    return "whole" if verdict.digests else "whole, without digests"


def _print_json(verdicts: list[Verdict], damaged: int) -> None:
    summary = {"artifacts": len(verdicts), "damaged": damaged, "bytes": sum(verdict.bytes for verdict in verdicts)}
    click.echo(json.dumps({**summary, "files": [dataclasses.asdict(verdict) for verdict in verdicts]}, indent=2))
