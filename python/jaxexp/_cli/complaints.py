"""Turns errors into one line on stderr and an exit status."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Generator, Iterable

import click

from jaxexp._errors import ExportError, shown
from jaxexp._kernel.artifact.words import counted, listed

from .page import colours, one_line

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
UNREAD = 141  # the status that shells give a program ended by SIGPIPE


def complain(text: str) -> None:
    """One line on stderr."""
    start = click.style("jaxexp:", fg="red") if colours(sys.stderr) else "jaxexp:"
    click.echo(f"{start} {one_line(text)}", err=True, color=colours(sys.stderr))


def complain_of(failed: Iterable[tuple[str, Exception]]) -> None:
    """A line for each error of an artifact, or for all errors that differ only in the name of the artifact."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for name, error in failed:
        text = said(error)
        alike.setdefault(without_name(text, name, error), []).append((name, text))
    for text, found in alike.items():
        names = listed([name for name, _ in found], repr, most=_NAMED)
        complain(found[0][1] if len(found) == 1 else f"{counted(len(found), 'artifact')} ({names}): {text}")


_NAMED = 4  # artifacts in a message


def without_name(text: str, name: str, error: Exception) -> str:
    """The message of an error about an artifact, without the artifact's name."""
    for known in (getattr(error, "file", None), getattr(error, "filename", None), name):
        if isinstance(known, str):
            text = text.replace(f" {known!r}:", ":").removeprefix(f"{known!r}: ")
    return text


def status_of(error: BaseException) -> int:
    """2 if the command line makes no sense; 1 if it does, but something is damaged or missing."""
    return MISUSED if isinstance(error, click.UsageError) else FAILED


def said(error: BaseException) -> str:
    """The message of an expected error; an unexpected one is raised again."""
    context = click.get_current_context(silent=True)
    if context is not None and context.find_root().obj["traceback"]:
        # What an error was raised from may be JAX's, with a name as it is in the artifact.
        click.echo("\n".join(map(shown, "".join(traceback.format_exception(error)).split("\n"))), err=True, nl=False)
    return _message(error)


def _message(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError):
        # Errors of jaxexp and of file systems alike; some have only a text.
        name = error.filename
        return f"{os.fsdecode(name)!r}: {error.strerror}" if name is not None else error.strerror or str(error)
    if isinstance(error, (ExportError, ImportError)):
        return str(error)
    raise error


@contextlib.contextmanager
def misused(option: str = "") -> Generator[None]:
    """Raises expected errors as errors of the command line, after the name of an option."""
    try:
        yield
    except (ExportError, OSError) as error:
        raise click.UsageError(f"{option}{_message(error)}") from error


def said_of_any(error: Exception) -> str:
    """The message of any error."""
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "jaxexp"
        message = error.format_message()
        return f"{message}{'' if message.endswith(('.', '?', '?)')) else '.'} '{command} --help' has examples"
    try:
        return said(error)
    except Exception:
        return f"{type(error).__name__}: {error} (not expected here; 'jaxexp --traceback ...' shows where it is from)"
