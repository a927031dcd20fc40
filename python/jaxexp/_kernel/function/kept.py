"""Values that are computed from a function once. All may be thrown away, since they can be computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

E = TypeVar("E", bound="Attributes")
T = TypeVar("T")


class Kept:
    """The values that one function keeps, as attributes. Each is a row in the table of caches in docs/design.md."""

    eager_call: Callable[..., Any] | None = None  # each call reads it, also for functions that keep nothing


class Attributes:
    """The place of a function's attributes, whatever `__dict__` is in its class.

    Besides its fields these are `_facts`, `_kept`, and `_artifact` if it was loaded. Each may be absent.
    """

    _kept: Kept = Kept()


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
