"""Marks public objects as `jaxexp`'s, wherever they are defined, so that tracebacks and pickles name no room."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def public(thing: T) -> T:
    """A class or function that users import from `jaxexp`, or an error, from `jaxexp.errors`. Pickles find it there."""
    if isinstance(thing, type):
        _make_public(thing)
    else:
        thing.__module__ = "jaxexp"
    return thing


def _make_public(owner: type) -> None:
    if vars(owner).get("__annotations__"):
        # Annotations are text, which `typing.get_type_hints` would look up in `jaxexp`. So they are resolved here.
        owner.__annotations__ = inspect.get_annotations(owner, eval_str=True)
    owner.__module__ = "jaxexp.errors" if issubclass(owner, Exception) else "jaxexp"
    for member in vars(owner).values():
        if isinstance(member, staticmethod):  # a pickle may name it too
            member.__func__.__module__ = "jaxexp"


def part_of(owner: type, part: Any) -> None:
    """Makes a class an attribute of a public one, where its pickles find it."""
    _make_public(part)
    part.__qualname__ = f"{owner.__qualname__}.{part.__name__}"
    setattr(owner, part.__name__, part)


def no_attribute(owner: object, name: str, advice: str) -> AttributeError:
    said = f"{type(owner).__name__!r} object has no attribute {name!r}{'' if name.startswith('_') else advice}"
    return AttributeError(said, name=name, obj=owner)


def public_names(names: Iterable[str]) -> list[str]:
    """The names that tab completion shows. It hides names that begin with one underscore, but they still exist."""
    return sorted(name for name in names if not name.startswith("_") or name.startswith("__"))


def public_dir(self: object) -> list[str]:
    """The `__dir__` of objects that have private parts beside their public names.

    Public names include the fields of a dataclass, also fields that are computed on demand.
    """
    return public_names({*object.__dir__(self), *getattr(type(self), "__dataclass_fields__", ())})


class InPlaceOf(type):
    """The metaclass of a class that stands in the place of its last base, a class of `jax.export`.

    Code that knows the base takes objects of the class for objects of the base, because they are. Code that knows the
    class takes objects of the base for its own: `isinstance` says so. `type` tells them apart.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        base = cls.__bases__[-1]
        return super().__instancecheck__(instance) or (not isinstance(base, InPlaceOf) and isinstance(instance, base))


class PublicNames(abc.ABCMeta):
    """The metaclass of a class whose own `dir` shows only public names."""

    def __dir__(cls) -> list[str]:
        return public_names(type.__dir__(cls))
