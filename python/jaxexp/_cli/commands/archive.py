"""`jaxexp archive`: commands that change an archive."""

from __future__ import annotations

import fnmatch
import os
from typing import TYPE_CHECKING

import click

from jaxexp._cli import completing, inputs
from jaxexp._cli.page import say
from jaxexp._kernel.artifact.words import counted

if TYPE_CHECKING:
    from jaxexp._fleet.archive.writer import ArchiveWriter

_EXAMPLE = """\b
Example:
  jaxexp archive rm fleet.zip resnet/b8 'vit/*'
  jaxexp archive compact fleet.zip"""

_EXAMPLE_OF_RM = """\b
Example:
  jaxexp archive rm fleet.zip resnet/b8
  jaxexp archive rm fleet.zip 'resnet/*' && jaxexp archive compact fleet.zip"""

_EXAMPLE_OF_COMPACT = """\b
Example:
  jaxexp archive compact fleet.zip
  jaxexp archive compact --whole fleet.zip"""


@click.group(
    epilog=_EXAMPLE,
    short_help="Remove members of an archive, and free their bytes.",
    subcommand_metavar="COMMAND [ARGS]...",
    invoke_without_command=True,
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Remove members of an archive, and free their bytes. 'jaxexp pack --append' adds members.

    Only one process at a time can change an archive. Programs that have it open keep seeing the old members.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("rm", epilog=_EXAMPLE_OF_RM, short_help="Remove members.")
@click.argument("archive", type=click.Path())
@click.argument("patterns", metavar="NAME|GLOB...", nargs=-1, required=True, shell_complete=completing.of_archive)
def remove(archive: str, patterns: tuple[str, ...]) -> None:
    """Remove members from an archive.

    Pass names, or patterns as in 'ls'. If one of them matches no member, nothing is removed. Only the index is written
    again: 'archive compact' frees the bytes. JAX is not imported.
    """
    from jaxexp._fleet.archive.archive import Archive

    with Archive.append(archive) as writer:
        names = _matching(archive, writer, patterns)
        writer.remove(*names)
        left = len(writer)
    say(f"{archive}: {counted(len(names), 'member')} removed, {left:,} left; 'archive compact' frees the bytes")


def _matching(archive: str, writer: ArchiveWriter, patterns: tuple[str, ...]) -> list[str]:
    """The members that match any of the patterns; a name is a pattern for itself."""
    names = writer.names()
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = [pattern] if pattern in writer else [n for n in names if fnmatch.fnmatchcase(n, pattern)]
        if not matching:
            raise inputs.no_member(archive, pattern, names)
        found.update(dict.fromkeys(matching))
    return list(found)


@command.command(epilog=_EXAMPLE_OF_COMPACT, short_help="Free the bytes of removed members.")
@click.argument("archive", type=click.Path())
@click.option("--whole", is_flag=True, help="Share no modules: every member is an artifact that jax.export reads.")
def compact(archive: str, whole: bool) -> None:
    """Write an archive again, without removed members and old indices.

    Every artifact is verified first; if one is damaged, nothing changes. The new file replaces the old one when it is
    complete. JAX is not imported.
    """
    from jaxexp._fleet.archive.archive import Archive

    before = os.path.getsize(archive)
    Archive.compact(archive, share_modules=not whole)
    say(f"{archive}: {before:,} bytes -> {os.path.getsize(archive):,} bytes")
