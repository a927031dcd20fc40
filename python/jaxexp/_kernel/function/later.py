"""Attributes that a function gets on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class MadeLater:
    """An attribute in a class of functions. A function's own attribute of the same name comes first.

    Protocols look for data in the class. They find this, and nothing is made for them.
    """

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[[Any], Any]) -> None:
        """Args:
        name: the name of the attribute.
        make: makes the value for a function, and keeps it with the function.
        """
        self.name, self.make = name, make

    def __get__(self, function: Any, owner: type) -> Any:
        if function is None:  # fields of a dataclass are not in its class, unless they have defaults
            raise AttributeError(
                f"type object {owner.__name__!r} has no attribute {self.name!r}", name=self.name, obj=owner
            )
        return self.make(function)
