"""The option `--header`: headers, such as a token, that HTTP servers get with every request of a command.

The option works as in curl. No message shows any of the text, which may be a secret. If the server redirects to another
one, which gets no headers, that is an error.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

import click

_FORM = "'NAME: VALUE', or @FILE with such lines"
# These protocols share one file system in fsspec, which uses what is set for either; the last one counts.
_PROTOCOLS = ("http", "https")


def option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option, for a command that reads URLs."""
    decorated: Callable[..., Any] = click.option(
        "--header",
        multiple=True,
        metavar="HEADER",
        expose_value=False,
        callback=_take,
        help="Send this with each request for an http URL: 'NAME: VALUE', @FILE for a file with such lines, or @- for "
        "stdin. Other users of this machine can see a command line, so use @FILE or @- for secrets.",
    )(command)
    return decorated


def _take(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> None:
    """Adds headers to the requests of this process, and of processes that it starts, until the command ends."""
    if not given or ctx.resilient_parsing:
        return
    headers = dict(header for text in given for header in _headers(text))
    try:
        from fsspec import config
    except ImportError:  # opening a URL will say so
        return
    said = {name.lower() for name in headers}
    options: dict[str, Any] = {}
    for protocol in _PROTOCOLS:
        options |= config.conf.get(protocol, {})
    known = options.get("headers")
    others = {k: v for k, v in known.items() if k.lower() not in said} if isinstance(known, dict) else {}
    options["headers"] = {**others, **headers}
    for protocol in _PROTOCOLS:
        _set(ctx, config.conf, protocol, options)
        # Where fsspec looks for them when a process starts.
        _set(ctx, os.environ, f"FSSPEC_{protocol.upper()}", json.dumps(options))


def _set(ctx: click.Context, known: MutableMapping[str, Any], name: str, value: Any) -> None:
    """Changes a value until the command ends."""
    before = known.get(name)

    def restore() -> None:
        if before is None:
            known.pop(name, None)
        else:
            known[name] = before

    ctx.call_on_close(restore)
    known[name] = value


def _headers(text: str) -> list[tuple[str, str]]:
    """The headers in the option, or in a file; at least one."""
    if not text.startswith("@"):
        return [_header(text, "--header")]
    try:
        if text == "@-":
            lines = sys.stdin.read().splitlines()
        else:
            with open(text[1:], encoding="utf-8") as file:
                lines = file.read().splitlines()
    except OSError as error:
        raise click.UsageError(f"--header {text}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"--header {text}: the file is not UTF-8 text") from None
    found = [_header(line, f"--header {text}: line {i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise click.UsageError(f"--header {text}: the file has no header")
    return found


def _header(text: str, where: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):  # RFC 9110, section 5.6.2
        raise click.UsageError(f"{where} is not {_FORM} (its text is not shown)")
    if not value.strip().replace("\t", " ").isprintable():
        raise click.UsageError(f"{where} has a character that no header can have (it is not shown)")
    return name, value.strip()
