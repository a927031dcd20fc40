"""The option `--import`: modules that a command and its workers import first, because these register types."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import click

_KEY = "jaxexp.imports"


def option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option, for a command that decodes the trees of artifacts."""
    decorate = click.option(
        "--import",
        multiple=True,
        metavar="MODULE",
        expose_value=False,
        callback=_take,
        help="Import this module first, as `python -m` finds it: also from the current folder. It has or registers the "
        "classes in the trees. May be repeated.",
    )
    decorated: Callable[..., Any] = decorate(command)
    return decorated


def imported() -> tuple[str, ...]:
    """The modules that the running command has imported."""
    context = click.get_current_context(silent=True)
    return () if context is None else context.meta.get(_KEY, ())


def _take(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> None:
    if not given or ctx.resilient_parsing:
        return
    for name in given:
        import_module("--import", name)
    ctx.meta[_KEY] = given


def import_module(option: str, name: str) -> ModuleType:
    """The module that an option names.

    Raises:
        click.UsageError: there is none of this name.
        click.ClickException: it cannot be imported.
    """
    here = os.getcwd()
    if not sys.flags.safe_path and here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = (
            isinstance(error, ModuleNotFoundError)
            and error.name is not None
            and f"{name}.".startswith(f"{error.name}.")
        )
        if missing or not all(part.isidentifier() for part in name.split(".")):
            hint = f": say {option} {name.removesuffix('.py')}" if name.endswith(".py") and "/" not in name else ""
            raise click.UsageError(f"{option} {name}: there is no module of this name{hint}") from error
        raise click.ClickException(f"{option} {name}: {type(error).__name__}: {error}") from error
