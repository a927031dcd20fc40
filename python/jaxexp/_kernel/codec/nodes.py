"""Pytree node types by their serialized names: the types of users, and jaxexp's own.

jaxexp and `jax.export` know each other's pytree registrations, in both directions: see
`register_pytree_node_serialization`. A type that is not registered is described instead: see `library_nodes`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from jaxexp import _jax
from jaxexp._errors import (
    DeserializationError,
    ExportError,
    SerializationTypeError,
    UnsupportedSerializationError,
    cause,
)
from jaxexp._kernel.artifact import dict_keys
from jaxexp._kernel.artifact.node import NAME, Auxdata, Description, RegisteredDescription
from jaxexp._public import public

from . import classes, library_nodes, registry, treedefs
from .library_nodes import GenericNode, generic_node
from .registry import RegisteredNode, by_name, by_type

if TYPE_CHECKING:
    from jaxexp._native import Artifact


T = TypeVar("T", bound=type)


@public
def register_pytree_node_serialization(
    nodetype: T,
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
) -> T:
    """Makes trees that contain `nodetype` serializable, under a name of your choice.

    The type must already be a pytree node (see `jax.tree_util.register_pytree_node`). jaxexp and `jax.export` share
    registrations, but you may also register a type with both.

    Args:
        nodetype: the class of the nodes.
        serialized_name: the name of the class in the bytes. Reader and writer must use the same name, so choose one
            that does not change when code moves, such as ``"mypackage.State"``.
        serialize_auxdata: converts a node's auxiliary data (the second result of its flatten function) to bytes.
        deserialize_auxdata: converts these bytes to auxiliary data for `from_children`.
        from_children: called with (auxiliary data, children); returns an instance of `nodetype`. Only its tree
            structure is used. The default is the unflatten function that the type was registered with in JAX.

    Returns:
        `nodetype`, so that you can use a `functools.partial` of this function as a class decorator.

    Raises:
        ExportError: the type or the name was registered before, or `from_children` is left out for a type that is
            not registered as a pytree node.

    Example:
        >>> register_pytree_node_serialization(
        ...     State,
        ...     serialized_name="mypackage.State",
        ...     serialize_auxdata=lambda auxdata: json.dumps(auxdata).encode(),
        ...     deserialize_auxdata=json.loads,
        ... )
    """
    if (previous := by_type.get(nodetype)) is not None:
        raise ExportError(
            f"{nodetype} is registered for serialization already, as {previous.serialized_name!r}; "
            f"it cannot also be {serialized_name!r}"
        )
    owner = by_name[serialized_name].nodetype if serialized_name in by_name else _jax_owner(serialized_name)
    if owner not in (None, nodetype):
        raise ExportError(f"the serialized name {serialized_name!r} is taken by {owner}; {nodetype} needs another name")
    if from_children is None:
        from_children = _registered_unflatten(nodetype)
    node = RegisteredNode(nodetype, serialized_name, serialize_auxdata, deserialize_auxdata, from_children)
    by_type[nodetype] = by_name[serialized_name] = node
    jax_by_type, jax_by_name = share_registries()
    jax_by_type.lend(nodetype, nodetype, (serialized_name, serialize_auxdata))
    jax_by_name.lend(nodetype, serialized_name, (nodetype, deserialize_auxdata, from_children))
    return nodetype


@public
def register_namedtuple_serialization(nodetype: T, *, serialized_name: str) -> T:
    """Makes trees that contain a namedtuple class serializable. The artifact stores its field names.

    Namedtuples are pytree nodes in JAX, so they need no other registration.

    Args:
        nodetype: a class made by `collections.namedtuple` or `typing.NamedTuple`. The class that is registered under
            this name when the artifact is read must have the same fields, in any order.
        serialized_name: the name of the class in the bytes, as in `register_pytree_node_serialization`.

    Returns:
        `nodetype`.

    Raises:
        ExportError: `nodetype` is not a namedtuple class, or the type or the name was registered before.
    """
    fields = getattr(nodetype, "_fields", None)
    if not (issubclass(nodetype, tuple) and isinstance(fields, tuple) and all(isinstance(f, str) for f in fields)):
        raise ExportError(
            f"{nodetype} is not a namedtuple class; use register_pytree_node_serialization for other pytree nodes"
        )

    def from_children(stored_fields: Sequence[str], children: Sequence[Any]) -> Any:
        if sorted(stored_fields) != sorted(fields) or len(stored_fields) != len(children):
            raise ExportError(
                f"{nodetype} has the fields {list(fields)}, but was serialized with {list(stored_fields)} "
                f"and {len(children)} values"
            )
        make: Any = nodetype
        return make(**dict(zip(stored_fields, children, strict=True)))

    return register_pytree_node_serialization(
        nodetype,
        serialized_name=serialized_name,
        serialize_auxdata=lambda _: json.dumps(fields).encode(),
        deserialize_auxdata=json.loads,
        from_children=from_children,
    )


def _registered_unflatten(nodetype: type) -> Callable[[Any, Sequence[Any]], Any]:
    if (node := _jax.registered_pytree_nodes.get(nodetype)) is None:
        raise ExportError(
            f"{nodetype} is not a registered pytree node, so there is no unflatten function to rebuild it with: "
            "call jax.tree_util.register_pytree_node first, or pass from_children"
        )
    return node.from_iter


def _jax_owner(serialized_name: str) -> type | None:
    entry = _jax.jax_exporter.deserialization_registry.get(serialized_name)
    return None if entry is None else entry[0]


by_type[collections.OrderedDict] = by_name["collections.OrderedDict"] = RegisteredNode(
    collections.OrderedDict,
    "collections.OrderedDict",
    lambda keys: json.dumps(tuple(keys)).encode(),  # only strings
    dict_keys.keys_of_jax,
    dict_keys.ordered_dict_from_children,
    parse_once=True,
)


def _own(node: RegisteredNode, *for_jax_export: Callable[..., Any]) -> RegisteredNode:
    """A node that only jaxexp writes. `jax.export` can read it if jaxexp is imported, with other functions if given."""
    by_name[node.serialized_name] = node
    jax_by_name: dict[str, Any] = _jax.jax_exporter.deserialization_registry
    read = for_jax_export or (node.deserialize_auxdata, node.from_children)
    jax_by_name[node.serialized_name] = (node.nodetype, *read)
    return node


# Dicts with keys that are not strings. `jax.export` raises errors of these types for such keys.
_KEYED = {
    nodetype: _own(
        RegisteredNode(
            nodetype,
            f"jaxexp.{nodetype.__name__}",
            functools.partial(dict_keys.keys_to_bytes, refusal=refusal),
            dict_keys.keys_from_bytes,
            from_children,
            parse_once=True,
        )
    )
    for nodetype, refusal, from_children in (
        (dict, SerializationTypeError, dict_keys.dict_from_children),
        (collections.OrderedDict, UnsupportedSerializationError, dict_keys.ordered_dict_from_children),
    )
}

# Nodes of classes that are not registered, read as generic nodes.
by_type[GenericNode] = _own(
    RegisteredNode(GenericNode, NAME, lambda node: node.encoded, Description, library_nodes.build, parse_once=True),
    library_nodes.read_again,
    library_nodes.instance,
)

# Without jaxexp, jax.export knows none of these.
OWN_NAMES = frozenset({NAME, *(node.serialized_name for node in _KEYED.values())})


def custom_node_name(nodetype: type, auxdata: Any, arity: int) -> tuple[str, bytes]:
    """The serialized name and auxiliary data of a pytree node: of a registered type, or a dict with keys that are not
    strings, whose auxiliary data are its keys. Nodes of all other types share one name; their auxiliary data describes
    them.

    Raises:
        SerializationError: the type's function does not return bytes, or a dict has keys that cannot be serialized.
    """
    if nodetype is GenericNode:
        return auxdata.serialized_name, auxdata.encoded
    if nodetype in _KEYED and not dict_keys.all_strings(auxdata):
        return registry.serialized_by(_KEYED[nodetype], auxdata)
    found = registry.serialized(nodetype, auxdata)
    return (NAME, library_nodes.describe(nodetype, auxdata, arity)) if found is None else found


def unregistered(treedefs_: Iterable[Any]) -> dict[str, tuple[type, Any]]:
    """The node types in trees that are not registered for serialization, each with the auxiliary data of one node.

    The keys are the names of the classes; a generic node counts as the class that it stands for. If that class was
    registered where the artifact was written, it is left out: it is written again under its serialized name.
    """
    found: dict[str, tuple[type, Any]] = {}
    for node in (node for treedef in treedefs_ for node in treedefs.nodes_of(treedef)):
        if node.type is GenericNode:
            if node.data.serialized_name == NAME:
                found.setdefault(node.data.class_name, (GenericNode, node.data))
        elif node.type is not None and node.type not in treedefs.BUILTIN and not registry.is_registered(node.type):
            found.setdefault(".".join(classes.name_of(node.type)), (node.type, node.data))
    return found


def unregistered_in(artifact: Artifact) -> set[str]:
    """The names of the classes in an artifact's trees that are not registered for serialization. Nothing is made of
    their auxiliary data."""
    found: set[str] = set()

    def read(auxdata: bytes, name: str | None) -> None:
        if name == NAME:
            with contextlib.suppress(ValueError):  # the artifact cannot be read
                description = Description(auxdata)
                if (cls := library_nodes.loaded_class(description)) is None or not registry.is_registered(cls):
                    found.add(description.class_name)

    facts: dict[str, Any] = artifact.facts(read)
    names = facts["custom_nodes"] - OWN_NAMES
    return found | {name for name in names if registry.functions_of(name) is None}


def generic(treedefs_: Iterable[Any]) -> set[str]:
    """The names of the classes that trees have generic nodes for."""
    found = (node for treedef in treedefs_ for node in treedefs.nodes_of(treedef))
    return {node.data.class_name for node in found if node.type is GenericNode}


def has_other_keys(treedefs_: Iterable[Any]) -> bool:
    """Whether trees have dicts with keys that are not strings, which have no place in the format of `jax.export`."""
    found = (node for treedef in treedefs_ for node in treedefs.nodes_of(treedef))
    return any(node.type in _KEYED and not dict_keys.all_strings(node.data) for node in found)


def registration_line(name: str, nodetype: type, auxdata: Any) -> str:
    """The line of Python that registers an unregistered type; a hint if the name is not "module.Class"."""
    if nodetype is GenericNode:
        return f"{name}: its class is not loaded here; import it, register it, and read the artifact again"
    module, qualname = classes.name_of(nodetype)
    outer, _, rest = qualname.partition(".")
    start = f"from {module} import {outer}; " if module != "__main__" and "<locals>" not in qualname else ""
    cls = f"{outer}.{rest}" if rest else outer
    if classes.fields_of_namedtuple(nodetype) is not None and not classes.is_registered(nodetype):
        return f"{start}jaxexp.register_namedtuple_serialization({cls}, serialized_name={name!r})"
    to_bytes, from_bytes = ("lambda _: b''", "lambda _: None") if auxdata is None else ("to_bytes", "from_bytes")
    comment = "" if auxdata is None else f"  # its auxiliary data is of {type(auxdata)}"
    return (
        f"{start}jaxexp.register_pytree_node_serialization({cls}, serialized_name={name!r}, "
        f"serialize_auxdata={to_bytes}, deserialize_auxdata={from_bytes}){comment}"
    )


def build_custom_node(serialized_name: str, auxdata: bytes, children: list[Any], parsed: dict[Any, Any]) -> Any:
    """Makes an instance of the pytree node type with this serialized name; a generic node if no type has it.

    Args:
        serialized_name: the name.
        auxdata: the serialized auxiliary data; in one tree, equal bytes may be the same object.
        children: the children.
        parsed: the parsed auxiliary data of one tree, for types that may share it.

    Raises:
        DeserializationError: the registered functions refuse the data, or the name belongs to a newer jaxexp.
    """
    if (functions := registry.functions_of(serialized_name)) is None:
        return _generic(serialized_name, auxdata, children, parsed)
    deserialize_auxdata, from_children, parse_once = functions
    try:
        if not parse_once:
            return from_children(deserialize_auxdata(auxdata), children)
        key = (serialized_name, id(auxdata))
        if key not in parsed:
            parsed[key] = deserialize_auxdata(auxdata)
        return from_children(parsed[key], children)
    except MemoryError:
        raise
    except Exception as error:
        raise DeserializationError(
            "",
            f"auxiliary data and children that rebuild the pytree node {serialized_name!r}",
            f"{len(auxdata)} bytes and {len(children)} children, on which it raised {type(error).__name__}: {error}",
        ) from cause(error)


def _generic(name: str, auxdata: bytes, children: list[Any], parsed: dict[Any, Any]) -> GenericNode:
    """A node in the place of one whose class was registered where the artifact was written."""
    key = name, id(auxdata), len(children)
    if key not in parsed:
        if id(auxdata) not in parsed:
            parsed[id(auxdata)] = Auxdata(auxdata)
        try:
            parsed[key] = RegisteredDescription(name, parsed[id(auxdata)], len(children))
        except ValueError as error:
            raise DeserializationError("", "a pytree node that can be read here", str(error)) from None
    return generic_node(parsed[key], children)


class SharedRegistry(dict[Any, Any]):
    """`jax.export`'s table of pytree types, with room for the types that users registered with jaxexp.

    A type that was registered with jaxexp must be known to `jax.export`, and registering it there as well must stay
    allowed. `jax.export` refuses a key that its table holds already, so this table hides an entry of jaxexp's from a
    registration of the same type. In all other uses it is a normal dict.
    """

    __slots__ = ("from_jaxexp",)

    def __init__(self, table: dict[Any, Any]) -> None:
        super().__init__(table)
        self.from_jaxexp: dict[Any, type] = {}

    def lend(self, nodetype: type, key: Any, value: Any) -> None:
        if not super().__contains__(key):
            super().__setitem__(key, value)
            self.from_jaxexp[key] = nodetype

    def __contains__(self, key: Any) -> bool:
        if not super().__contains__(key):
            return False
        if key not in self.from_jaxexp:
            return True
        caller = sys._getframe(1)
        register: Any = _jax.jax_exporter.register_pytree_node_serialization
        return caller.f_code is not register.__code__ or caller.f_locals.get("nodetype") is not self.from_jaxexp[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.from_jaxexp.pop(key, None)
        super().__setitem__(key, value)


def share_registries() -> tuple[SharedRegistry, SharedRegistry]:
    """`jax.export`'s two tables (by type, by serialized name), made able to hold jaxexp's entries."""
    tables = []
    for name in ("serialization_registry", "deserialization_registry"):
        table = getattr(_jax.jax_exporter, name)
        if not isinstance(table, SharedRegistry):
            table = SharedRegistry(table)
            setattr(_jax.jax_exporter, name, table)
        tables.append(table)
    by_type, by_name = tables
    return by_type, by_name
