"""`jaxexp unpack`: members of an archive as files."""

from __future__ import annotations

import os
from pathlib import PurePosixPath, PureWindowsPath

import click

from jaxexp._cli import completing, inputs, outputs, progress
from jaxexp._cli.page import Page, counted

_EXAMPLE = """\b
Example:
  jaxexp unpack fleet.zip -d models
  jaxexp unpack fleet.zip 'resnet/*' -d models --force"""


@click.command(epilog=_EXAMPLE, short_help="Write members of an archive as files.")
@click.argument("archive", type=click.Path())
@click.argument("pattern", metavar="[GLOB]", required=False, shell_complete=completing.of_archive)
@click.option("-d", "--directory", default=".", show_default=True, type=click.Path(), help="Where to put the files.")
@click.option("--suffix", default=".jaxexp", show_default=True, help="The suffix of the files.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
def command(archive: str, pattern: str | None, directory: str, suffix: str, force: bool) -> None:
    """Write members of an archive as files, each a plain artifact.

    Each artifact is verified first. Its file appears complete or not at all. Nothing is written outside of the
    directory. JAX is not imported.
    """
    with inputs.part(archive, pattern) as opened:
        targets = {name: _inside(directory, name, suffix) for name in opened}
        if not force:  # before anything is written
            for target in targets.values():
                outputs.refuse_existing(target)
        total = 0
        with progress.bar("unpacking", len(targets)) as advance:
            for name, target in targets.items():
                data = inputs.checked(inputs.Source(f"{archive}{inputs.MEMBER}{name}", handle=opened[name])).buffer
                _make_folder(directory, target)
                outputs.write(target, data, force=force)
                total += memoryview(data).nbytes
                advance(1)
    page = Page()
    page.line(f"{directory}: {counted(len(targets), 'artifact')} unpacked, {total:,} bytes")
    page.write()


def _inside(directory: str, name: str, suffix: str) -> str:
    """The path of a member's file.

    Raises:
        click.ClickException: it would lie outside of the directory, on this or another system.
    """
    parts = PurePosixPath(name).parts
    elsewhere = PurePosixPath(name).is_absolute() or ".." in parts or os.sep in suffix or "/" in suffix
    if os.name == "nt":  # where names may be those of devices, or have a drive
        elsewhere = elsewhere or bool(PureWindowsPath(name).drive) or "\\" in name
    if elsewhere or not parts or "\0" in name:
        raise click.ClickException(f"the member {name!r} would not lie inside {directory!r}")
    return os.path.join(directory, *parts) + suffix


def _make_folder(directory: str, target: str) -> None:
    """Makes the folders that a file needs; links in the directory must not lead out of it."""
    os.makedirs(directory, exist_ok=True)
    root = os.path.realpath(directory)
    if os.path.commonpath([os.path.realpath(target), root]) != root:
        raise click.ClickException(f"{target!r} is a link out of {directory!r}, or behind one")
    os.makedirs(os.path.dirname(target), exist_ok=True)
