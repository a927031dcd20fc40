"""Advice on JAX's errors about symbolic dimensions: which constraint to add.

The error stays as it is. The advice is a note of the exception, which Python prints below the message.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator

import jax

_COMPARISON = re.compile(r"comparison '(.+?)' (<|<=|>|>=) '(.+?)' is inconclusive")
_REMAINDER = re.compile(r"[Tt]he remainder (mod\(.+\)) should be 0|division: rest is (mod\(.+\))")


@contextlib.contextmanager
def on_dimensions() -> Generator[None]:
    """Adds a note to an error of JAX about symbolic dimensions, if a constraint can help."""
    try:
        yield
    except (jax.errors.InconclusiveDimensionOperation, ValueError) as error:
        if advice := _advice(str(error)):
            error.add_note(advice)
        raise


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
        return f"If that holds for all sizes, add constraints=['{found[1] or found[2]} == 0'] to symbolic_shape."
    return None


def _plus(dimension: str, number: int) -> str:
    if re.fullmatch(r"-?[0-9]+", dimension):
        return str(int(dimension) + number)
    return f"{dimension} {'+' if number > 0 else '-'} {abs(number)}"
