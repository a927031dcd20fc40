"""The option `--size`: sizes for the symbolic dimensions of a function."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

# Sizes by the names of dimensions.
Sizes = dict[str, int]


def option(text: str, form: str = "DIMENSION=SIZE") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option, with this help; its argument is `sized`."""
    decorated: Callable[..., Any] = click.option("--size", "sized", multiple=True, metavar=form, help=text)
    return decorated


def option_of_several(done: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option for `combinations`; `done` says what is done with them."""
    return option(
        "The sizes of a symbolic dimension, as in batch=1,8; once for each dimension. Of several dimensions, all "
        f"combinations are {done}.",
        "DIMENSION=SIZE[,SIZE...]",
    )


def parsed(given: Iterable[str]) -> Sizes:
    """One size for each dimension that is named."""
    found: Sizes = {}
    for text in given:
        name, sizes = _parsed(text, found)
        if len(sizes) > 1:
            raise click.UsageError(f"--size {text!r} is not DIMENSION=SIZE, as in batch=4")
        found[name] = sizes[0]
    return found


def combinations(given: Iterable[str]) -> list[Sizes]:
    """Every combination of the sizes that the dimensions have, in order; one without sizes if there are none."""
    found: dict[str, list[int]] = {}
    for text in given:
        name, sizes = _parsed(text, found)
        found[name] = sizes
    return [dict(zip(found, chosen, strict=True)) for chosen in itertools.product(*found.values())]


def _parsed(text: str, before: Mapping[str, Any]) -> tuple[str, list[int]]:
    found = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]{1,18}(?:\s*,\s*[0-9]{1,18})*)\s*", text)
    if found is None:
        raise click.UsageError(f"--size {text!r} is not DIMENSION=SIZE, as in batch=4")
    name, sizes = found[1], [int(size) for size in found[2].split(",")]
    if name in before:
        raise click.UsageError(f"--size gives {name} twice")
    if len(set(sizes)) < len(sizes):
        raise click.UsageError(f"--size {text!r} has a size twice")
    return name, sizes


def check(file: str, names: Sequence[str], sizes: Iterable[str], why: str, instead: str = "") -> None:
    """Compares the dimensions that have sizes with those of a function.

    Args:
        file: the artifact.
        names: the symbolic dimensions of the function.
        sizes: the dimensions that have sizes.
        why: what the sizes are needed for.
        instead: what else the user can do.

    Raises:
        click.ClickException: a dimension has no size, or a size has no dimension.
    """
    given = list(sizes)
    if unknown := [one for one in given if one not in names]:
        has = f"its symbolic dimensions are {', '.join(names)}" if names else "it has no symbolic dimensions"
        raise click.ClickException(f"{file!r} has no symbolic dimension {', '.join(unknown)}: {has}")
    if missing := [one for one in names if one not in given]:
        raise click.ClickException(
            f"{file!r} has symbolic shapes, and {why}: say how large {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'}, as in {' '.join(f'--size {one}=4' for one in missing)}{instead}"
        )


def shown(sizes: Mapping[str, int]) -> str:
    """As in "batch=4, n=2"."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
