"""What a constraint on symbolic dimensions asks of the arguments of a call, in words."""

from __future__ import annotations

import re

from jaxexp._errors import in_one_line

_BROKEN = re.compile(r"do not match the symbolic shape constraint (.*)\. Expected '")
_VARIABLE = re.compile(r"'(\w+)' = (.+?) from specification '(.+?)' for dimension (.+?) \(= (.+?)\), ")

# The forms that say something about the size of one dimension.
_FORMS = [
    (re.compile(r"(\w+) *<= *([0-9]+)"), "at most {}"),
    (re.compile(r"(\w+) *>= *([0-9]+)"), "at least {}"),
    (re.compile(r"mod\((\w+), *([0-9]+)\) *== *0"), "a multiple of {}"),
    (re.compile(r"([0-9]+)\*floordiv\((\w+), *\1\) *== *\2"), "a multiple of {}"),  # what JAX makes of mod
]


def broken(error: Exception) -> str:
    """What JAX's error about the sizes of arguments says: in our words if it is about a constraint."""
    message = in_one_line(error)
    if (found := _BROKEN.search(message)) is None or not (variables := _VARIABLE.findall(message)):
        return message
    constraint = found[1]
    exported_with = f" (exported with the constraint {constraint})"
    for form, words in _FORMS:
        if (match := form.fullmatch(constraint)) is None:
            continue
        number, name = sorted(match.groups(), key=str.isidentifier)
        for variable, value, size, place, _ in variables:
            if variable == size == name:
                return f"{place} must be {words.format(number)}, found {value}{exported_with}"
    named = [one for one in variables if re.search(rf"\b{one[0]}\b", constraint)]
    said = ", ".join(
        f"{variable} = {value} ({place}{'' if size == variable else f' is {size} = {whole}'})"
        for variable, value, size, place, whole in named
    )
    return f"the sizes of the arguments must satisfy {constraint}, found {said}"
