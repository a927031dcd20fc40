"""What it takes to make a function of the other library: an `Exported` of `jax.export`, or of jaxexp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .data import LaterVjp


def fields_of(exported: Any, names: Sequence[str]) -> dict[str, Any]:
    """The fields of an Exported, but for its VJP."""
    return {name: getattr(exported, name) for name in names if name != "_get_vjp"}


class ConvertedVjp(LaterVjp):
    """The VJP of an Exported that came from the other library."""

    __slots__ = ("_convert", "_primal")

    def __init__(self, primal: Any, convert: Callable[[Any], Any]) -> None:
        self._primal, self._convert = primal, convert

    def __call__(self, primal: Any) -> Any:
        return self._convert(self._primal.vjp())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConvertedVjp):
            return NotImplemented
        return (self._primal, self._convert) == (other._primal, other._convert)

    def __hash__(self) -> int:
        return hash((self._primal, self._convert))
