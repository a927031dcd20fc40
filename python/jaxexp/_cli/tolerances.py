"""The option `--tolerance`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.cases import Tolerance


def option(help: str) -> Callable[..., Any]:
    """The option with this help; it makes an argument, `tolerance`."""
    return click.option("--tolerance", metavar="RELATIVE[,ABSOLUTE]", callback=_parsed, help=help)


def _parsed(ctx: click.Context, parameter: click.Parameter, text: str | None) -> Tolerance | None:
    if text is None:
        return None
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
