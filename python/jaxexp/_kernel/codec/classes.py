"""Looks up classes by name, among those that this process has loaded already.

Names come from artifacts, so a look-up must not have effects: it does not import modules or run their code. So it reads
modules and classes as plain dictionaries, past ``__getattr__``, descriptors and metaclasses.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._kernel.io import lock

_absent = object()
_module_namespace: Callable[[Any], Mapping[str, Any]] = vars(types.ModuleType)["__dict__"].__get__
_class_namespace: Callable[[type], Mapping[str, Any]] = vars(type)["__dict__"].__get__
_class_module: Callable[[type], Any] = vars(type)["__module__"].__get__
_class_qualname: Callable[[type], str] = vars(type)["__qualname__"].__get__
_class_mro: Callable[[type], tuple[type, ...]] = vars(type)["__mro__"].__get__


def is_class(thing: Any) -> bool:
    return issubclass(type(thing), type)  # `isinstance` would ask the thing's own `__class__`


def namespaces(cls: type) -> list[Mapping[str, Any]]:
    """The namespaces of a class and its bases, in the order of lookup: that of `object` comes last."""
    return [_class_namespace(owner) for owner in _class_mro(cls)]


def name_of(cls: type) -> tuple[str, str]:
    """The module and the qualified name of a class, from its own dictionary."""
    module, qualname = _class_module(cls), _class_qualname(cls)
    return module if isinstance(module, str) else "", qualname


def loaded(module: str, qualname: str) -> Any:
    """What a loaded module has under a name; a marker that is not a class if it has nothing."""
    found = sys.modules.get(module)
    if not issubclass(type(found), types.ModuleType):
        return _absent
    namespace: Mapping[str, Any] = _module_namespace(found)
    *outer, name = qualname.split(".")
    for part in outer:
        owner = namespace.get(part, _absent)
        if not is_class(owner):
            return _absent
        namespace = _class_namespace(owner)
    return namespace.get(name, _absent)


def loaded_class(module: str, qualname: str) -> type | None:
    found = loaded(module, qualname)
    return found if is_class(found) else None


def fields_of_namedtuple(cls: type) -> tuple[str, ...] | None:
    mro = _class_mro(cls)
    if tuple not in mro:
        return None
    for owner in mro:
        fields = _class_namespace(owner).get("_fields")
        if fields is not None:
            return fields if type(fields) is tuple and all(type(field) is str for field in fields) else None
    return None


def namedtuple_class(module: str, qualname: str, fields: Sequence[str]) -> type | None:
    """The loaded namedtuple class of a name, if it has exactly these fields."""
    cls = loaded_class(module, qualname)
    return cls if cls is not None and fields_of_namedtuple(cls) == tuple(fields) else None


class _Registered:
    """The classes that are registered with `jax.tree_util`, by name. JAX only ever adds to them."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], dict[type, Any]] = {}
        self._count = 0
        self._lock = lock.reentrant()

    def named(self, name: tuple[str, str]) -> Sequence[tuple[type, Any]]:
        """The classes of this name, each with what JAX has registered for it."""
        if len(_jax.registered_pytree_nodes) > self._count:
            with self._lock:  # a second thread would find some of them
                entries: list[tuple[type, Any]] = list(_jax.registered_pytree_nodes.items())
                for cls, entry in entries[self._count :]:
                    self._by_name.setdefault(name_of(cls), {})[cls] = entry
                self._count = len(entries)
        return tuple(self._by_name.get(name, {}).items())

    def entry(self, cls: type) -> Any:
        return next((entry for known, entry in self.named(name_of(cls)) if known is cls), None)


_registered = _Registered()


def registered_class(module: str, qualname: str) -> type | None:
    """The class of a name that is registered with `jax.tree_util`. Among several, the one that its module has."""
    known = [cls for cls, _ in _registered.named((module, qualname))]
    if len(known) == 1:
        return known[0]
    current = loaded(module, qualname)
    return next((cls for cls in known if cls is current), None)


def is_registered(cls: type) -> bool:
    return _registered.entry(cls) is not None


def unflatten_function(cls: type) -> Callable[[Any, Sequence[Any]], Any]:
    """The function that makes an instance of a registered class from auxiliary data and children."""
    return _registered.entry(cls).from_iter


def fields_of_dataclass(cls: type) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The fields with which a class was given to `jax.tree_util.register_dataclass`: children, and auxiliary data.

    None for a class that was registered in another way.
    """
    flatten = _registered.entry(cls).to_iter  # defined by JAX for such a class
    if type(flatten) is not types.FunctionType or flatten.__code__.co_filename != _TREE_UTIL:
        return None
    kept = dict(zip(flatten.__code__.co_freevars, flatten.__closure__ or (), strict=True))
    if "data_fields" not in kept or "meta_fields" not in kept:
        return None
    return tuple(kept["data_fields"].cell_contents), tuple(kept["meta_fields"].cell_contents)


_TREE_UTIL = jax.tree_util.register_dataclass.__code__.co_filename


def declared_fields(cls: type) -> tuple[str, ...] | None:
    """The names of a dataclass's fields, in their order; None for another class."""
    for owner in _class_mro(cls):
        fields = _class_namespace(owner).get("__dataclass_fields__")
        if type(fields) is dict:
            return tuple(fields)
    return None


_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, type(None))
_ScalarMeta: type = type(jax.numpy.float32)


def data_class(module: str, qualname: str) -> type | None:
    """A class that auxiliary data may name: a plain Python class, a scalar type, or a pytree node class."""
    for plain in _PLAIN:
        if name_of(plain) == (module, qualname):
            return plain
    if (node := registered_class(module, qualname)) is not None:
        return node
    cls = loaded_class(module, qualname)
    if cls is None:
        return None
    is_scalar = type(cls) is _ScalarMeta or np.generic in _class_mro(cls)
    return cls if is_scalar or fields_of_namedtuple(cls) is not None else None


def enum_member(module: str, qualname: str, member: str) -> Any:
    cls = loaded_class(module, qualname)
    if cls is None or not issubclass(type(cls), enum.EnumMeta):
        return None
    members = _class_namespace(cls).get("_member_map_")
    return members.get(member) if type(members) is dict else None


def constant(module: str, name: str) -> Any:
    """An object that its class's own module keeps under a name, if the class is a pytree node class; else None."""
    found = loaded(module, name)
    cls = type(found)
    return found if name_of(cls)[0] == module and is_registered(cls) else None


def name_of_constant(value: Any) -> tuple[str, str] | None:
    """The inverse of `constant`."""
    module = name_of(type(value))[0]
    found = sys.modules.get(module)
    if not is_registered(type(value)) or not issubclass(type(found), types.ModuleType):
        return None
    names = (name for name, kept in list(_module_namespace(found).items()) if kept is value)
    name = next(names, None)
    return None if name is None else (module, name)
