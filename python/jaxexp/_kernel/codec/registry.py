"""The pytree node types that are registered for serialization: with jaxexp, or with `jax.export`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaxexp import _jax
from jaxexp._errors import SerializationError


class RegisteredNode(NamedTuple):
    """How one pytree node type becomes bytes, and is read again."""

    nodetype: type
    serialized_name: str
    serialize_auxdata: Callable[[Any], bytes]
    deserialize_auxdata: Callable[[bytes], Any]
    from_children: Callable[[Any, Sequence[Any]], Any]
    parse_once: bool = False  # whether equal auxiliary data in a tree may become one object


by_type: dict[type, RegisteredNode] = {}
by_name: dict[str, RegisteredNode] = {}


class Functions(NamedTuple):
    """The functions that make a node again, and whether equal auxiliary data in a tree may become one object."""

    deserialize_auxdata: Callable[[bytes], Any]
    from_children: Callable[[Any, Sequence[Any]], Any]
    parse_once: bool = False


def functions_of(serialized_name: str) -> Functions | None:
    """The functions of the type with a serialized name; None if no type is registered under it."""
    if (node := by_name.get(serialized_name)) is not None:
        return Functions(node.deserialize_auxdata, node.from_children, node.parse_once)
    entry = _jax.jax_exporter.deserialization_registry.get(serialized_name)
    return None if entry is None else Functions(*entry[1:])


def is_registered(nodetype: type) -> bool:
    return nodetype in by_type or _jax.jax_exporter.serialization_registry.get(nodetype) is not None


def serialized(nodetype: type, auxdata: Any) -> tuple[str, bytes] | None:
    """The serialized name of a type, and the auxiliary data of a node as bytes; None for a type without registration.

    Raises:
        SerializationError: the type's function does not return bytes.
    """
    if (node := by_type.get(nodetype)) is not None:
        return serialized_by(node, auxdata)
    entry = _jax.jax_exporter.serialization_registry.get(nodetype)
    return None if entry is None else _serialized(nodetype, *entry, auxdata)


def serialized_by(node: RegisteredNode, auxdata: Any) -> tuple[str, bytes]:
    """The same for a type that is registered with jaxexp."""
    return _serialized(node.nodetype, node.serialized_name, node.serialize_auxdata, auxdata)


def _serialized(
    nodetype: type, name: str, serialize_auxdata: Callable[[Any], bytes], auxdata: Any
) -> tuple[str, bytes]:
    made = serialize_auxdata(auxdata)
    if not isinstance(made, (bytes, bytearray)):
        raise SerializationError(
            f"serialize_auxdata of {nodetype} ({name!r}) must return bytes; it returned {type(made)}"
        )
    return name, bytes(made)


def remade(serialized_name: str, auxdata: bytes, arity: int) -> tuple[type, Any] | None:
    """The type that is registered under a name, and the auxiliary data of a node of it in JAX.

    None if there is no such type, if its functions refuse the data, or if it has its children in another order.
    """
    if (functions := functions_of(serialized_name)) is None:
        return None
    placeholders = [float(i) for i in range(arity)]
    try:
        node = functions.from_children(functions.deserialize_auxdata(auxdata), placeholders)
        leaves: list[Any]
        treedef: Any
        leaves, treedef = jax.tree_util.tree_flatten(node)
        in_order = leaves == placeholders and treedef.num_nodes == arity + 1
    except MemoryError:
        raise
    except Exception:
        return None
    return treedef.node_data() if in_order else None
