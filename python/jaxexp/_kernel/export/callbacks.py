"""Finds where a function calls back to Python, for the error that refuses it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jaxexp import _jax
from jaxexp._errors import Lines

_MOST_PLACES = 5


def why_refused(jaxpr: Any) -> str:
    """Lists the calls to Python in a function, with their source lines, and what to do about the usual ones."""
    calls = list(_calls(jaxpr))
    places = list(dict.fromkeys(f"  {chain[-1].primitive.name} at {_place(chain)}" for chain in calls))
    if len(places) > _MOST_PLACES:
        places[_MOST_PLACES:] = [f"  and {len(places) - _MOST_PLACES} more"]
    names = {chain[-1].primitive.name for chain in calls}
    advice = ["Take the callbacks out, or export the parts around them."]
    if names & {"debug_callback", "debug_print"}:
        advice.append("jax.debug.print and jax.debug.callback only show values, and can be left out.")
    if any(_library(frame) == "equinox" for chain in calls for frame in _frames(chain[-1])):
        advice.append(
            "equinox.error_if, which much of equinox uses, raises its errors in Python: set the environment variable "
            "EQX_ON_ERROR to nan or off before equinox is imported."
        )
    found = ":" if places else "."
    return Lines.of(
        [f"the function calls back to Python, and Python code cannot be exported{found}", *places, " ".join(advice)]
    )


def _calls(jaxpr: Any) -> Iterator[tuple[Any, ...]]:
    """The equations that call back to Python, in a jaxpr and the jaxprs inside it, each after its outer equations."""
    pending: list[tuple[Any, tuple[Any, ...]]] = [(jaxpr, ())]
    seen: set[int] = set()
    while pending:
        current, outer = pending.pop()
        for equation in current.eqns:
            chain = (*outer, equation)
            if equation.primitive.name.endswith("_callback") or equation.primitive.name == "debug_print":
                yield chain
            for inner in _jax.jaxprs_in_params(equation.params):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    pending.append((inner, chain))


def _frames(equation: Any) -> list[Any]:
    """The stack of an equation without JAX's own frames, innermost first."""
    return list(_jax.user_frames(equation.source_info.traceback))


def _library(frame: Any) -> str | None:
    """The installed package that a frame belongs to; None for a user's own file."""
    found = re.search(r"[\\/](?:site|dist)-packages[\\/](\w+)", frame.file_name)
    return found[1] if found else None


def _place(chain: tuple[Any, ...]) -> str:
    """The source line of an equation, in the user's code or a library other than JAX."""
    # A library may trace a part of the function late. Then an outer equation has the user's line.
    frames = [frame for equation in reversed(chain) for frame in _frames(equation)]
    if not frames:
        return "an unknown place"
    own = next((frame for frame in frames if _library(frame) is None), frames[0])
    inside = f", inside {_library(frames[0])}" if _library(frames[0]) else ""
    return f"{own.file_name}:{own.start_line} ({own.function_name}){inside}"
