"""`jax.export`'s tables of pytree types, shared with jaxexp."""

from __future__ import annotations

import sys
from typing import Any

from jaxexp import _jax


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


def share() -> tuple[SharedRegistry, SharedRegistry]:
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
