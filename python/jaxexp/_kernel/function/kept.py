"""What is computed from a function once. All of it may be thrown away, since it can be computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

E = TypeVar("E", bound="Attributes")
T = TypeVar("T")


class Kept:
    """What one function keeps, by name: the attributes of this object. Each name is a row in the table of caches in
    docs/design.md.
    """

    eager_call: Callable[..., Any] | None = None  # which each call asks for, of functions that keep nothing, too


class Attributes:
    """Where a function's attributes are, whatever `__dict__` is in its class.

    Beside its fields these are `_facts`, `_kept`, and `_artifact` if it was loaded. Each may be absent.
    """

    _kept: Kept = Kept()


#: The attributes that a function has by now. `__dict__` has the fields of its artifact, too, and decodes them for that.
attributes_of: Callable[[Any], dict[str, Any]] = vars(Attributes)["__dict__"].__get__


def kept_by(exported: Attributes) -> Kept:
    """What a function keeps, to add to it."""
    attributes = attributes_of(exported)
    found: Kept = attributes["_kept"] if "_kept" in attributes else attributes.setdefault("_kept", Kept())
    return found


def kept(exported: E, name: str, make: Callable[[E], T]) -> T:
    """The result of `make` for a function, made once and kept with the function under a name."""
    known = vars(kept_by(exported))
    # Several threads may make it at once, and all return what one of them made.
    value: T = known[name] if name in known else known.setdefault(name, make(exported))
    return value
