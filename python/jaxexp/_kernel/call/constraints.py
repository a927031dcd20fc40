"""What symbolic dimensions, and constraints on them, ask of the arguments of a call, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jaxexp._errors import in_one_line
from jaxexp._kernel.function.paths import argument_path

_BROKEN = re.compile(r"do not match the symbolic shape constraint (.*)\. Expected '")
_DIFFERS = re.compile(r"between dimension size (.+?) \(= (.+?)\) and the specification '(.+?)' \(= (.+?)\)\. Using")
_TOO_SMALL = re.compile(r"Expected value >= 1 for dimension variable '(\w+)'\.")
_NOT_WHOLE = re.compile(r"Division had remainder .+? when computing the value of '(\w+)'\.")
_VARIABLE = re.compile(r"'(\w+)' = (.+?) from specification '(.+?)' for dimension (.+?) \(= (.+?)\), ")

# The forms that say something about the size of one dimension.
_FORMS = [
    (re.compile(r"(\w+) *<= *([0-9]+)"), "at most {}"),
    (re.compile(r"(\w+) *>= *([0-9]+)"), "at least {}"),
    (re.compile(r"mod\((\w+), *([0-9]+)\) *== *0"), "a multiple of {}"),
    (re.compile(r"([0-9]+)\*floordiv\((\w+), *\1\) *== *\2"), "a multiple of {}"),  # what JAX makes of mod
]


def is_about_a_constraint(error: Exception) -> bool:
    """Whether JAX's error about sizes is about a constraint, which JAX checks after everything else."""
    return _BROKEN.search(in_one_line(error)) is not None


def broken(error: Exception, exported: Any, in_avals: Sequence[Any]) -> str:
    """What JAX's error about the sizes of arguments says, in our words if its form is known."""
    message = in_one_line(error)
    variables: list[tuple[str, ...]] = _VARIABLE.findall(message)
    if found := _NOT_WHOLE.search(message):
        return f"{found[1]} must be a whole number, found {_sizes_with(found[1], exported, in_avals)}"
    if not variables:
        return message
    if found := _TOO_SMALL.search(message):
        return (
            _must_be(found[1], "at least 1", variables)
            or f"{found[1]} must be at least 1, found {_said(variables, found[1])}"
        )
    if found := _DIFFERS.search(message):
        place, size, specification, expected = found.groups()
        return (
            f"{place} must have size {expected}, found size {size} (exported with {specification}, here "
            f"{_said(variables, specification)})"
        )
    if found := _BROKEN.search(message):
        constraint = found[1]
        for form, words in _FORMS:
            if match := form.fullmatch(constraint):
                number, name = sorted(match.groups(), key=str.isidentifier)
                if said := _must_be(name, words.format(number), variables):
                    return f"{said} (exported with the constraint {constraint})"
        return f"the sizes of the arguments must satisfy {constraint}, found {_said(variables, constraint)}"
    return message


def _must_be(name: str, what: str, variables: Sequence[tuple[str, ...]]) -> str | None:
    """The end of a message, if a variable is the size of a dimension by itself."""
    for variable, value, size, place, _ in variables:
        if variable == size == name:
            return f"{place} must be {what}, found {value}"
    return None


def _said(variables: Sequence[tuple[str, ...]], formula: str) -> str:
    """The values of the variables in a formula, and the dimensions that they come from."""
    return ", ".join(
        f"{variable} = {value} ({place}{'' if size == variable else f' is {size} = {whole}'})"
        for variable, value, size, place, whole in variables
        if re.search(rf"\b{variable}\b", formula)
    )


def _sizes_with(variable: str, exported: Any, in_avals: Sequence[Any]) -> str:
    """The sizes of the dimensions in which a variable is."""
    return ", ".join(
        f"{wanted} = {size} ({argument_path(exported.in_tree, index, axis)})"
        for index, (expected, actual) in enumerate(zip(exported.in_avals, in_avals, strict=True))
        for axis, (wanted, size) in enumerate(zip(expected.shape, actual.shape, strict=True))
        if re.search(rf"\b{variable}\b", str(wanted))
    )
