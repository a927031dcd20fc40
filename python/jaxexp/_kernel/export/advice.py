"""What helps when a function cannot be traced: notes on errors of JAX about symbolic dimensions, and of Flax."""

from __future__ import annotations

import re

import jax

_COMPARISON = re.compile(r"comparison '(.+?)' (<|<=|>|>=) '(.+?)' is inconclusive")
_REMAINDER = re.compile(r"[Tt]he remainder (mod\(.+\)) should be 0|division: rest is (mod\(.+\))")
_BY_NUMBER = re.compile(r"mod\(.+, (- ?)?[0-9]+\)")
_DIFFER = re.compile("ncompatible|same shape|shapes that differ")
_EXTREME = re.compile(r"\b(min|max)\(([^(),]+), ([^(),]+)\)")
_ROUNDED = re.compile(r"([0-9]+)\*floordiv\((\w+), \1\)")
_STATE = re.compile(r"Cannot mutate (\w+) from a different trace level")
_NUMBER = re.compile(r"(- ?)?[0-9]+")


def advise(error: Exception) -> None:
    """Adds a note to an error of JAX about symbolic dimensions, if a constraint can help, and to Flax's about state."""
    if isinstance(error, (jax.errors.InconclusiveDimensionOperation, ValueError, TypeError)):
        if advice := _advice(str(error)):
            error.add_note(advice)
    elif (found := _STATE.match(str(error))) is not None:  # Flax may not be here, so its class has no name
        error.add_note(
            f"The model changes a {found[1]} that the function closes over. For inference, call model.eval() "
            "before nnx.split. Otherwise pass this part of the state as an argument, and return it."
        )


def _advice(message: str) -> str | None:
    if (found := _COMPARISON.search(message)) is not None:
        left, operator, right = found.groups()
        always, never = {
            "<": (f"<= {_plus(right, -1)}", f">= {right}"),
            "<=": (f"<= {right}", f">= {_plus(right, 1)}"),
            ">": (f">= {_plus(right, 1)}", f"<= {right}"),
            ">=": (f">= {right}", f"<= {_plus(right, -1)}"),
        }[operator]
        return (
            f"If {left} {operator} {right} holds for all sizes, add constraints=['{left} {always}'] to symbolic_shape; "
            f"if it holds for none, add constraints=['{left} {never}']."
        )
    if (found := _REMAINDER.search(message)) is not None:
        remainder = found[1] or found[2]
        if _BY_NUMBER.fullmatch(remainder):
            return _if_always([f"{remainder} == 0"])
        # JAX cannot divide by what may be 0, also in a constraint. But 2*floordiv(n, 2) is n, if 2 divides n.
        return _if_always([f"mod({name}, {number}) == 0" for number, name in _ROUNDED.findall(remainder)])
    if _DIFFER.search(message):
        return _if_always(_of_extremes(message))
    return None


def _of_extremes(message: str) -> list[str]:
    """What makes shapes equal whose sizes have minima and maxima with numbers, as slices make them."""
    sizes = {size.strip() for size in re.split(r"[\[\](),]", _EXTREME.sub("", message))}
    found = []
    for kind, *operands in _EXTREME.findall(message):
        number, other = sorted(operands, key=lambda operand: _NUMBER.fullmatch(operand) is None)
        if not _NUMBER.fullmatch(number) or _NUMBER.fullmatch(other):
            continue
        needed = next((operand for operand in (number, other) if operand in sizes), None)
        is_less = needed is not None and (kind == "min") == (needed == other)
        found.append(f"{other} {'<=' if is_less else '>='} {number}")
    return found


def _if_always(constraints: list[str]) -> str | None:
    given = list(dict.fromkeys(constraints))
    return f"If that holds for all sizes, add constraints={given} to symbolic_shape." if given else None


def _plus(dimension: str, number: int) -> str:
    if re.fullmatch(r"-?[0-9]+", dimension):
        return str(int(dimension) + number)
    return f"{dimension} {'+' if number > 0 else '-'} {abs(number)}"
