"""The paths of weights: where they are in the trees that a function takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from .facts import STEP

T = TypeVar("T")

# The steps to a weight, as in ("args[0]", "blocks", "[0]", "kernel").
Path = tuple[str, ...]

_FLAT = re.compile(r"[./]")


def of_labels(labels: Sequence[tuple[str, str]]) -> list[Path | None]:
    """The paths of arguments that are weights, or look like weights: they are in a tree."""
    paths: list[Path | None] = []
    for name, kind in labels:
        first, second, *rest = [*STEP.findall(name), "", ""]
        if kind == "weight":
            steps = [step for part in _steps([second, *rest]) for step in _FLAT.split(part)]
        else:
            steps = [first + second, *_steps(rest)]
        steps = [f"[{step}]" if step.isdecimal() else step for step in steps]
        if len(steps) > 1 and steps[-1] in ("value", "raw_value"):  # of a variable of Flax
            del steps[-1]
        is_tree = kind == "weight" or (kind == "argument" and len(steps) > 1)
        paths.append(tuple(steps) if is_tree else None)
    return paths


def _steps(parts: Iterable[str]) -> list[str]:
    """Steps as short as they can be told apart: "blocks", "[0]"."""
    found = []
    for part in filter(None, parts):
        inner = part.strip("[]'\"<>").lstrip(".")
        found.append(inner or part)
    return found


def common(sequences: Iterable[tuple[T, ...]]) -> tuple[T, ...] | None:
    """What sequences begin with; None if there are no sequences."""
    found: tuple[T, ...] | None = None
    for one in sequences:
        found = one if found is None else both(found, one)
    return found


def both(a: tuple[T, ...], b: tuple[T, ...]) -> tuple[T, ...]:
    if a == b[: len(a)]:
        return a
    return a[: next(i for i, (one, other) in enumerate(zip((*a, None), (*b, None), strict=False)) if one != other)]


def dotted(path: Path) -> str:
    """As in "blocks[0].attention"."""
    return "".join(step if step.startswith("[") else f".{step}" for step in path).removeprefix(".")
