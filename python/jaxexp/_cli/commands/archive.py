"""`jaxexp archive`: commands that change an archive."""

from __future__ import annotations

import fnmatch
import os
from typing import TYPE_CHECKING

import click

from jaxexp._cli import completing, inputs, options
from jaxexp._cli.options import argument, option
from jaxexp._cli.page import say
from jaxexp._kernel.artifact.words import counted

if TYPE_CHECKING:
    pass


@options.command("Remove members.")
def remove(
    archive: options.File = argument("ARCHIVE"),
    patterns: tuple[str, ...] = argument("NAME|GLOB...", shell_complete=completing.of_archive),
) -> None:
    """Remove members from an archive.

    Pass names, or patterns as in 'ls'. If one of them matches no member, nothing is removed. Only the index is written
    again: 'archive compact' frees the bytes. JAX is not imported.

    Example:
      jaxexp archive rm fleet.zip resnet/b8
      jaxexp archive rm fleet.zip 'resnet/*' && jaxexp archive compact fleet.zip
    """
    from jaxexp._fleet.archive.archive import Archive

    with Archive.append(archive) as writer:
        names = writer.names()
        found: dict[str, None] = {}
        for pattern in patterns:  # a name is a pattern for itself
            matching = [pattern] if pattern in writer else [n for n in names if fnmatch.fnmatchcase(n, pattern)]
            if not matching:
                raise inputs.no_member(archive, pattern, names)
            found.update(dict.fromkeys(matching))
        writer.remove(*found)
        left = len(writer)
    say(f"{archive}: {counted(len(found), 'member')} removed, {left:,} left; 'archive compact' frees the bytes")


@options.command("Free the bytes of removed members.")
def compact(
    archive: options.File = argument("ARCHIVE"),
    whole: bool = option("--whole", "Share no modules: every member is an artifact that jax.export reads."),
) -> None:
    """Write an archive again, without removed members and old indices.

    Every artifact is verified first; if one is damaged, nothing changes. The new file replaces the old one when it is
    complete. JAX is not imported.

    Example:
      jaxexp archive compact fleet.zip
      jaxexp archive compact --whole fleet.zip
    """
    from jaxexp._fleet.archive.archive import Archive

    before = os.path.getsize(archive)
    Archive.compact(archive, share_modules=not whole)
    say(f"{archive}: {before:,} bytes -> {os.path.getsize(archive):,} bytes")


@options.command(
    "Remove members of an archive, and free their bytes.",
    cls=click.Group,
    commands={"rm": remove, "compact": compact},
    subcommand_metavar="COMMAND [ARGS]...",
    invoke_without_command=True,
)
def command() -> None:
    """Remove members of an archive, and free their bytes. 'jaxexp pack --append' adds members.

    Only one process at a time can change an archive. Programs that have it open keep seeing the old members.

    Example:
      jaxexp archive rm fleet.zip resnet/b8 'vit/*'
      jaxexp archive compact fleet.zip
    """
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
