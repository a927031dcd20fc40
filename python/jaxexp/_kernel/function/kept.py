"""Values that are computed from a function once, when they are first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

E = TypeVar("E", bound="Attributes")
T = TypeVar("T")


class Kept:
    """The values that one function keeps, as attributes; all may be thrown away. docs/design.md has a table of them."""

    eager_call: Callable[..., Any] | None = None  # each call reads it, also for functions that keep nothing
    file: str | None = None  # the file or the member of an archive that `load` read, for errors of calls


class Attributes:
    """The place of a function's attributes, whatever `__dict__` is in its class.

    Besides its fields these are `_facts`, `_kept`, and `_artifact` if it was loaded. Each may be absent.
    """

    _kept = Kept()


#: The attributes that a function has so far. `__dict__` also decodes the fields of its artifact, and has them too.
attributes_of: Callable[[Any], dict[str, Any]] = vars(Attributes)["__dict__"].__get__


def kept_by(exported: Attributes) -> Kept:
    """The values that a function keeps. Callers may add to them."""
    attributes = attributes_of(exported)
    return attributes["_kept"] if "_kept" in attributes else attributes.setdefault("_kept", Kept())


def kept(exported: E, name: str, make: Callable[[E], T]) -> T:
    """The result of `make` for a function, made once and kept with the function under a name."""
    known = vars(exported._kept)
    if name not in known:  # several threads may make it at once; all return the result of one of them
        known = vars(kept_by(exported))
        known.setdefault(name, make(exported))
    return known[name]


class MadeLater:
    """An attribute that a function gets on first use. A function's own attribute of the same name comes first.

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
