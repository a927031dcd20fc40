"""Turns errors into one line on stderr and an exit status."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Collection, Generator, Iterable

import click

from jaxexp._errors import (
    BusyError,
    DeserializationError,
    ExportError,
    FatalArtifactError,
    UnfitWorkerError,
    UnsupportedArtifactError,
    WorkerError,
    shown_lines,
)
from jaxexp._kernel.artifact.words import counted, listed

from .page import colours, one_line

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
TRY_AGAIN = 75  # EX_TEMPFAIL in sysexits.h
UNREAD = 141  # the status that shells give a program ended by SIGPIPE


def complain(text: str) -> None:
    """One line on stderr."""
    start = click.style("jaxexp:", fg="red") if colours(sys.stderr) else "jaxexp:"
    click.echo(f"{start} {one_line(text)}", err=True, color=colours(sys.stderr))


def complain_of(failed: Iterable[tuple[str, Exception]]) -> None:
    """A line for each error of an artifact, or for all errors that differ only in names, digests and large numbers."""
    found = [(name, said(error), error) for name, error in failed]
    alike: dict[str, list[tuple[str, str]]] = {}
    for (name, text, _), kind in zip(found, kinds(without_name(t, n, e) for n, t, e in found), strict=True):
        alike.setdefault(kind, []).append((name, text))
    for text, those in alike.items():
        names = listed([name for name, _ in those], repr, most=_NAMED)
        complain(those[0][1] if len(those) == 1 else f"{counted(len(those), 'artifact')} ({names}): {text}")


def ended_with(failed: Collection[tuple[str, Exception]]) -> int:
    """The same, and the exit status that they ask for."""
    complain_of(failed)
    return status_of(*(error for _, error in failed))


def in_json(failed: Iterable[tuple[str, Exception]], key: str = "file") -> list[dict[str, str]]:
    """The errors of artifacts as objects, which name the artifact by a key."""
    return [{key: name, "error": said(error)} for name, error in failed]


_NAMED = 4  # artifacts in a message
# A digest, or a number of three or more digits that is not a part of a version.
_OWN = re.compile(r"\b[0-9a-f]{32}\b|(?<![\w.])(?:[0-9]{3,}|[0-9]{1,3}(?:,[0-9]{3})+)(?!\.?\w)")


def kinds(reasons: Iterable[str]) -> list[str]:
    """The same reasons. Reasons that differ only in digests and large numbers become equal: these are left out."""
    found = [(_OWN.sub("...", reason), reason) for reason in reasons]
    different: dict[str, set[str]] = {}
    for kind, reason in found:
        different.setdefault(kind, set()).add(reason)
    return [kind if len(different[kind]) > 1 else reason for kind, reason in found]


def without_name(text: str, name: str, error: Exception) -> str:
    """The message of an error about an artifact, without the artifact's name."""
    # Workers have absolute paths.
    for known in (getattr(error, "file", None), getattr(error, "filename", None), name, os.path.abspath(name)):
        if isinstance(known, str):
            text = text.replace(f" {known!r}:", ":").removeprefix(f"{known!r}: ")
    return text


def status_of(*errors: BaseException) -> int:
    """0 if there is none; 2 if the command line makes no sense; 75 if the same command may succeed later; and 1 if
    something is damaged or missing.
    """
    if any(isinstance(error, click.UsageError) for error in errors):
        return MISUSED
    return status([is_temporary(error) for error in errors])


def status(temporary: Collection[bool]) -> int:
    """The same, given of each error whether it is temporary."""
    return (TRY_AGAIN if all(temporary) else FAILED) if temporary else 0


def is_temporary(error: BaseException) -> bool:
    """Whether the same may succeed later, without a change of what was asked: somebody is busy or cannot be reached."""
    if isinstance(error, click.ClickException) and error.__cause__ is not None:  # what a command adds to an error
        return is_temporary(error.__cause__)
    busy = isinstance(error, (BusyError, ConnectionError, TimeoutError))
    return busy or (isinstance(error, WorkerError) and not isinstance(error, UnfitWorkerError))


DAMAGED, UNREADABLE, REFUSED = "damaged", "unreadable", "refused"


def state_of(error: Exception) -> str:
    """What an error says about its artifact. "Damaged" means that the bytes are wrong, "unreadable" that they cannot be
    read, and "refused" that they are whole, but not for this process.
    """
    if isinstance(error, (FatalArtifactError, OSError, ImportError)):
        return UNREADABLE
    is_damaged = isinstance(error, DeserializationError) and not isinstance(error, UnsupportedArtifactError)
    return DAMAGED if is_damaged else REFUSED


def said(error: BaseException) -> str:
    """The message of an expected error; an unexpected one is raised again."""
    context = click.get_current_context(silent=True)
    if context is not None and context.find_root().obj["traceback"]:
        # What an error was raised from may be JAX's, with a name as it is in the artifact.
        click.echo(shown_lines("".join(traceback.format_exception(error))), err=True, nl=False)
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
    if isinstance(error, MemoryError):  # as for the sizes that somebody named; NumPy says for which array
        return f"there is not enough memory: {error}" if str(error) else "there is not enough memory"
    raise error


@contextlib.contextmanager
def misused(option: str = "") -> Generator[None]:
    """Raises expected errors as errors of the command line, after the name of an option."""
    try:
        yield
    except (ExportError, OSError) as error:
        raise click.UsageError(f"{option}{_message(error)}") from error


def said_of_any(error: Exception, command: str | None) -> str:
    """The message of any error of a command; None if that is not known."""
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else f"jaxexp {command or ''}".strip()
        message = error.format_message()
        if isinstance(error, click.NoSuchOption):
            message = _GONE.get(error.option_name, message)
        message = _RANGE.sub("is not a whole number", message)
        return f"{message}{'' if message.endswith(('.', '?', '?)')) else '.'} '{command} --help' has examples"
    try:
        return said(error)
    except Exception:
        return f"{type(error).__name__}: {error} (not expected here; 'jaxexp --traceback ...' shows where it is from)"


_RANGE = re.compile(r"is not a valid integer(?: range)?(?=\.|$)")  # as click says it of a text without a number
_EXECUTOR = (
    "--dask and --wait-for-workers are now --executor MODULE:FUNCTION, whose function returns an executor, as in "
    "distributed.Client('tcp://scheduler:8786').get_executor(), and --timeout SECONDS"
)
_GONE = {
    "--dask": _EXECUTOR,
    "--headers-also-to": "--headers-also-to is gone: headers go to no other server. Name the URL that the server "
    "redirects to, with --header for that one",
    "--staging": "There is no option '--staging' any more: in Python, SignedBy and sign(sigstore=) have it",
    "--suffix": "There is no option '--suffix' any more: files of members end in .jaxexp",
    "--trust-config": "There is no option '--trust-config' any more: in Python, SignedBy and sign(sigstore=) have it",
    "--wait-for-workers": _EXECUTOR,
}
