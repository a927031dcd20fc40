"""The option `--tolerance`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.cases import Tolerance


def option(help: str, *words: str) -> Callable[..., Any]:
    """The option with this help, which also takes some words; it makes an argument, `tolerance`."""
    metavar = "|".join(("RELATIVE[,ABSOLUTE]", *words))
    return click.option("--tolerance", metavar=metavar, callback=functools.partial(_parsed, words), help=help)


def _parsed(
    words: Sequence[str], ctx: click.Context, parameter: click.Parameter, text: str | None
) -> Tolerance | str | None:
    if text is None or text in words:
        return text
    from jaxexp._errors import ExportError
    from jaxexp._kernel.artifact.cases import Tolerance

    try:
        return Tolerance.of(tuple(map(float, text.split(","))))
    except (ExportError, ValueError):
        raise click.UsageError(
            f"--tolerance takes one number or two, such as 1e-5 or 1e-5,1e-8, that are not negative, not {text!r}"
        ) from None


def text(tolerance: Tolerance) -> str:
    """What the option takes for it."""
    return f"{tolerance.relative!r},{tolerance.absolute!r}"
