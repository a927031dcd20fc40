"""Frozen dataclasses in auxiliary data, such as a model's configuration, that are only the values of their fields.

An instance is made again field by field, past its `__init__` and `__post_init__`. An artifact must not run code of a
class that it names. So the class must not define anything of its own for making, comparing or reading instances.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any

from . import classes

# Methods that run when an instance is made, read or dropped. `dataclass` defines none of them, except the ones that
# refuse to set and delete attributes.
_NOT_DEFINED = ("__new__", "__getattribute__", "__getattr__", "__del__", "__class__")
_GENERATED = ("__eq__", "__hash__")


def class_of(module: str, qualname: str, fields: Sequence[str]) -> type | None:
    """The loaded frozen dataclass of a name, if it has exactly these fields, and its instances nothing else."""
    cls = classes.loaded_class(module, qualname)
    return cls if cls is not None and _fields(cls) == tuple(fields) else None


def values_of(instance: Any) -> dict[str, Any] | None:
    """The fields of an instance, with their values; None if it has more than that, or is not such a dataclass."""
    cls = type(instance)
    fields = _fields(cls)
    if fields is None or classes.loaded_class(*classes.name_of(cls)) is not cls:
        return None
    namespaces = classes.namespaces(cls)
    for name in getattr(instance, "__dict__", ()):
        if name not in fields and type(_defined(namespaces, name)) is not functools.cached_property:
            return None  # `__post_init__` has set it
    defined = (item for namespace in namespaces for item in namespace.items())
    if any(name not in fields and _is_set(instance, slot) for name, slot in defined):
        return None  # a slot of a base class
    try:
        return {name: getattr(instance, name) for name in fields}
    except AttributeError:  # a field that `__init__` does not set
        return None


def made(cls: type, values: Mapping[str, Any]) -> Any:
    """An instance of a class that `class_of` returned."""
    instance: Any = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def _fields(cls: type) -> tuple[str, ...] | None:
    if type(cls) is not type:
        return None
    namespaces = classes.namespaces(cls)
    own = namespaces[0]
    params = own.get("__dataclass_params__")
    if params is None or type(own.get("__dataclass_fields__")) is not dict or not (params.frozen and params.eq):
        return None
    if any(name in namespace for name in _NOT_DEFINED for namespace in namespaces[:-1]):
        return None
    if not all(_is_generated(own.get(name)) for name in _GENERATED):
        return None
    try:
        object.__new__(cls)
    except TypeError:  # it also is an exception, a dict or the like
        return None
    fields = tuple(field.name for field in dataclasses.fields(cls))
    return fields if all(_is_plain(_defined(namespaces, name)) for name in fields) else None


_absent = object()


def _defined(namespaces: Sequence[Mapping[str, Any]], name: str) -> Any:
    """What a class has under a name."""
    return next((namespace[name] for namespace in namespaces if name in namespace), _absent)


def _is_set(instance: Any, slot: Any) -> bool:
    """Whether this is a slot, and the instance has a value in it."""
    if type(slot) is not types.MemberDescriptorType:
        return False
    try:
        slot.__get__(instance)
    except AttributeError:
        return False
    return True


def _is_generated(function: Any) -> bool:
    """Whether `dataclass` generated this function from text."""
    return type(function) is types.FunctionType and function.__code__.co_filename == "<string>"


def _is_plain(found: Any) -> bool:
    """Whether a class leaves a field to the instance: under its name is only a slot, or a default value."""
    if found is _absent or type(found) is types.MemberDescriptorType:
        return True
    return not any("__get__" in n or "__set__" in n for n in classes.namespaces(type(found)))
