"""Pytree nodes of libraries: their classes are not registered for serialization.

The writer describes such a node (`_kernel/artifact/node.py`). The reader takes the class if it is loaded. If not, or if
its auxiliary data is not only data, it takes a `GenericNode`. It also does so where a class was registered for the
writer and is not registered here.
"""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Sequence
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._errors import SerializationError, cause
from jaxexp._kernel.artifact.node import (
    Auxdata,
    Description,
    Key,
    RegisteredDescription,
    canonical,
    is_printable,
)
from jaxexp._kernel.artifact.words import is_text

from . import auxdata, classes, registry, treedefs
from .generic_node import GenericNode, generic_node

# --- writing ----------------------------------------------------------------------------------------------------------


def describe(nodetype: type, aux: Any, arity: int) -> bytes:
    """What an artifact says about a node: its class, the keys of its children, its auxiliary data.

    Raises:
        SerializationError: JAX takes a tuple class for a namedtuple, but its values do not match its fields; or a name
            cannot be stored.
    """
    known = _known.setdefault(nodetype, {})
    is_registered = classes.is_registered(nodetype)
    data = auxdata.to_json(aux) if is_registered else None
    key = json.dumps(data), arity, is_registered
    if (found := known.get(key)) is None:
        keys = _keys(nodetype, aux, arity) if is_registered else _keys_of_namedtuple(nodetype, arity)
        if len(known) == _MOST_KNOWN:
            known.clear()
        found = canonical(*classes.name_of(nodetype), not is_registered, keys, data)
        try:
            Description(found)
        except ValueError as error:
            raise SerializationError(f"a tree contains {nodetype}, of which no artifact can tell: {error}") from cause(
                error
            )
        known[key] = found
    return found


# Descriptions by class, data and number of children: asking a class for its keys takes long.
_known: weakref.WeakKeyDictionary[type, dict[tuple[str, int, bool], bytes]] = weakref.WeakKeyDictionary()
_MOST_KNOWN = 64


def _keys_of_namedtuple(nodetype: type, arity: int) -> list[Key]:
    fields = classes.fields_of_namedtuple(nodetype) or ()
    if len(fields) != arity or len(set(fields)) != arity:
        raise SerializationError(
            f"a tree contains {nodetype} with {arity} values, which is not a namedtuple of as many fields ({fields}): "
            "register it with jax.tree_util.register_pytree_node"
        )
    return [Key("attribute", field) for field in fields]


def _keys(nodetype: type, aux: Any, arity: int) -> list[Key]:
    positions = [Key("position", position) for position in range(arity)]
    if arity == 0:
        return []
    if (fields := classes.fields_of_dataclass(nodetype)) is not None:
        return [Key("attribute", field) for field in fields[0]]
    children = [object() for _ in range(arity)]
    try:
        # A class tells the keys of its children only for an instance.
        instance = classes.unflatten_function(nodetype)(aux, children)
        found, _ = _jax.tree_registry.flatten_one_level_with_keys(instance)
        pairs = list(found)
    except Exception:  # a class that wants arrays as children
        return positions
    if len(pairs) != arity or any(child is not given for (_, child), given in zip(pairs, children, strict=True)):
        return positions
    keys = [_key(key, position) for position, (key, _) in enumerate(pairs)]
    if all(key.kind == "position" for key in keys):
        # The class was registered without keys. The names of its attributes serve as well.
        names = {id(value): name for name, value in getattr(instance, "__dict__", {}).items()}
        keys = [Key("attribute", names[id(child)]) for child in children if id(child) in names]
    return keys if len({key.value for key in keys}) == arity else positions


def _key(key: Any, position: int) -> Key:
    position_only = Key("position", position)
    if isinstance(key, jax.tree_util.GetAttrKey):
        return Key("attribute", key.name) if isinstance(key.name, str) and is_text(key.name) else position_only
    value = getattr(key, "key", None) if isinstance(key, jax.tree_util.DictKey) else getattr(key, "idx", None)
    if type(value) is str or (type(value) is int and is_printable(value)):
        return Key("item", value)
    return position_only


# --- reading ----------------------------------------------------------------------------------------------------------


def build(description: Description, children: Sequence[Any]) -> GenericNode:
    """A node while a tree is read. `resolved` replaces these by nodes of loaded classes."""
    if len(children) != len(description.keys):
        raise ValueError(f"{description.class_name:.100} has {len(description.keys)} children")
    return generic_node(description, children)


def resolved(treedef: Any) -> Any:
    """A tree structure in which nodes of loaded classes replace generic nodes, where their class is loaded."""
    return treedefs.replace(treedef, GenericNode, lambda description, arity: node_data(description))


# The format stores these in another way, and JAX believes what a tree structure says about them.
_NOT_DESCRIBED = (*treedefs.BUILTIN, GenericNode)


def node_data(description: Description) -> tuple[type, Any] | None:
    """The loaded class of a description, and its auxiliary data. None if it is not loaded, or has other fields, or if
    the auxiliary data cannot be made, compared or printed here: trees with NaN in them would never be equal, and JAX
    cannot print half of a character.
    """
    data = description.data
    is_printed = not isinstance(data, str) or is_text(data)  # texts inside of others are printed with escapes
    return made(description) if is_printed and auxdata.equals_itself(data) else None


def made(description: Description) -> tuple[type, Any] | None:
    """The same for a result, which is not compared."""
    if isinstance(description, RegisteredDescription):
        return registry.remade(description.serialized_name, description.encoded, len(description.keys))
    cls = None if description.is_opaque else loaded_class(description)
    if cls is None or description.is_namedtuple:
        return None if cls is None else (cls, None)
    try:
        aux = auxdata.from_json(description.data)
    except auxdata.NotDataError:
        return None
    return (cls, aux) if _agrees(cls, description, aux) else None


def loaded_class(description: Description) -> type | None:
    """The loaded class that a description names, if a node of it can be made here."""
    module, qualname = description.module, description.qualname
    if description.is_namedtuple:
        cls = classes.namedtuple_class(module, qualname, [str(name) for name in description.names])
        return None if cls is None or classes.is_registered(cls) else cls
    cls = classes.registered_class(module, qualname)
    return None if any(cls is kind for kind in _NOT_DESCRIBED) else cls


def _agrees(cls: type, description: Description, aux: Any) -> bool:
    """Whether a registered class has the fields that it had when the artifact was written, as far as it is known."""
    names, attributes = description.names, all(key.kind == "attribute" for key in description.keys)
    if (fields := classes.fields_of_dataclass(cls)) is not None:
        # JAX pairs the two lists by position, and does not compare their lengths.
        return attributes and names == fields[0] and type(aux) is tuple and len(aux) == len(fields[1])
    declared = classes.declared_fields(cls)
    if not names or not attributes or declared is None:
        return True
    in_order = tuple(field for field in declared if field in names)
    return names == in_order or names == tuple(sorted(in_order))


def disagreement(description: Description, cls: type, aux: Any) -> str | None:
    """In which children a loaded class differs from the artifact; None if they are the same.

    This makes an instance of the class. So it belongs to a call, which makes instances anyway.
    """
    if description.is_namedtuple or isinstance(description, RegisteredDescription):
        return None
    found = _keys(cls, aux, len(description.keys))
    if tuple(found) == description.keys or not any(key.kind != "position" for key in found):
        return None
    theirs, ours = (", ".join(str(key.value) for key in keys) for keys in (description.keys, found))
    return f"{description.class_name} has the children {ours} in this process, and {theirs} in the artifact"


def registered_as(description: Description, nodetype: type, aux: Any, arity: int) -> Description | None:
    """What an artifact says about a node whose type is registered under the name in another description; None if it is
    not.

    Raises:
        SerializationError: the type's function does not return bytes.
    """
    if not isinstance(description, RegisteredDescription):
        return None
    name, encoded = registry.serialized(nodetype, aux) or ("", b"")
    return RegisteredDescription(name, Auxdata(encoded), arity) if name == description.serialized_name else None


# --- for jax.export ---------------------------------------------------------------------------------------------------

# jax.export reads the bytes again for each node.
read_again = functools.lru_cache(maxsize=16)(Description)


def instance(description: Description, children: Sequence[Any]) -> Any:
    """An instance of the loaded class, for `jax.export` to take its structure; else a generic node."""
    node = build(description, children)
    if (found := made(description)) is None:
        return node
    cls, aux = found
    if description.is_namedtuple:
        return tuple.__new__(cls, children)
    try:
        return classes.unflatten_function(cls)(aux, children)
    except Exception:  # the class wants other children than abstract values
        return node
