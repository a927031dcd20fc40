"""Public objects have the module name `jaxexp`, so tracebacks and pickles do not depend on where they are defined."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def public(thing: T) -> T:
    """Marks a class or function that users import from `jaxexp`: pickles find it there."""
    thing.__module__ = "jaxexp"
    for member in vars(thing).values() if isinstance(thing, type) else ():
        if isinstance(member, staticmethod):  # which a pickle may name too
            member.__func__.__module__ = "jaxexp"
    return thing


def part_of(owner: type, part: Any) -> None:
    """Makes a class an attribute of a public one, by which pickles of it find it."""
    part.__module__, part.__qualname__ = owner.__module__, f"{owner.__qualname__}.{part.__name__}"
    setattr(owner, part.__name__, part)
