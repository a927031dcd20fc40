"""The texts of an artifact that only Python reads: the user's metadata, and what custom nodes say of themselves.

Who makes a function of an artifact reads them. Here they are read without JAX, for whoever only looks at it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxexp._errors import DeserializationError, cause

from . import node as nodes
from .metadata import from_json
from .node import Description

_OF_JAX = "collections.OrderedDict"
_DICTS: dict[str, Callable[..., Any]] = {
    "jaxexp.dict": nodes.dict_from_children,
    "jaxexp.OrderedDict": nodes.ordered_dict_from_children,
    _OF_JAX: nodes.ordered_dict_from_children,
}
Node = tuple[str, str, bytes, int]  # where it is, its serialized name, its auxiliary data, how many children it has


def check(metadata: Mapping[str, str], nodes: Iterable[Node]) -> None:
    """Takes what `Artifact.texts` returns.

    Raises:
        DeserializationError: no function can be made of an artifact with these texts, whatever is registered.
    """
    from_json(metadata)
    for one in nodes:
        node(*one)


def node(where: str, name: str, data: bytes, count: int) -> Description | tuple[Any, ...]:
    """What a custom node says of itself: the keys of a dict, or the description of another class."""
    try:
        return _read(name, data, count)
    except (ValueError, TypeError, RecursionError) as error:
        raise DeserializationError(where, f"a node of {name}", str(error)) from cause(error)


@functools.lru_cache(maxsize=16)  # members of an archive say the same
def _read(name: str, data: bytes, count: int) -> Description | tuple[Any, ...]:
    if (made := _DICTS.get(name)) is not None:
        keys = tuple(nodes.keys_of_jax(data) if name == _OF_JAX else nodes.keys_from_bytes(data))
        made(keys, range(count))
        return keys
    description = nodes.description_of(name, data, count)
    if len(description.keys) != count:
        raise ValueError(f"{description.class_name:.100} has {len(description.keys)} children")
    return description
