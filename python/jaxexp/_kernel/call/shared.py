"""Lets equal functions share what JAX makes of them: the first one stands for the others.

A program that loads an artifact again and again gets a new `Exported` each time. JAX's caches are keyed by functions,
so without this file it would trace and compile each one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from jaxexp import _jax, _native
from jaxexp._kernel.codec import treedefs
from jaxexp._kernel.function import data, vjps
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.io import lock

# Up to these limits, the functions with the latest first calls are kept, with their code, after callers drop them.
MOST_FUNCTIONS = 1024
MOST_MODULE_BYTES = 256 << 20


# Held by a thread that makes a shared object. The same thread may take it again: comparing functions may run code of
# users, and that may call functions.
MAKING = lock.reentrant()


def first_of_equals(exported: ExportedData) -> ExportedData:
    """The function that stands for all that are equal to this one; the function remembers it."""
    return data.kept(exported, "first", _firsts.first)


class _Content:
    """A function as a key: its signature, its module and its VJPs, wherever its symbolic dimensions come from, and
    whether a policy allowed it, for which it runs other code.
    """

    __slots__ = ("_hash", "_is_under_policy", "_module", "_signature", "exported", "size")

    def __init__(self, exported: ExportedData) -> None:
        self.exported = exported
        self._module = data.module_view(exported)
        self._signature = data.signature(exported, without_scope=True)
        self._is_under_policy = data.is_under_policy(exported)
        self.size = len(self._module)
        self._hash = hash((self._signature, self.size))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Content):
            return NotImplemented
        try:
            return (
                self._hash == other._hash
                and self._is_under_policy == other._is_under_policy
                and self._signature == other._signature
                and _native.equal_bytes(self._module, other._module)
                and self._has_equal_vjps(other)
            )
        except Exception:  # from pytree nodes whose data cannot be compared, or VJPs that cannot be read here
            return False

    def _has_equal_vjps(self, other: _Content) -> bool:
        one, two = self.exported, other.exported
        if vjps.stored_orders(one) and vjps.stored_orders(two):
            return _Content(one.vjp()) == _Content(two.vjp())
        return one._get_vjp == two._get_vjp


class _Firsts:
    """The first of equal functions, for the functions that were used last."""

    def __init__(self) -> None:
        self._contents: OrderedDict[_Content, _Content] = OrderedDict()
        self._bytes = 0
        _jax.clear_with_other_caches(self, "jaxexp: the first of equal functions")

    def first(self, exported: ExportedData) -> ExportedData:
        content = _Content(exported)
        with MAKING:
            known = self._contents.get(content)
            if known is not None:
                self._contents.move_to_end(known)
                return known.exported
            # Nobody can change a copy: a policy may yet allow the function, and then other code runs for it.
            exported = content.exported = data.bare(exported)
            self._contents[content] = content
            self._bytes += content.size
            while len(self._contents) > 1 and (len(self._contents) > MOST_FUNCTIONS or self._bytes > MOST_MODULE_BYTES):
                oldest, _ = self._contents.popitem(last=False)
                self._bytes -= oldest.size
            return exported

    def cache_clear(self) -> None:
        with MAKING:
            self._contents.clear()
            self._bytes = 0


_firsts = _Firsts()


def have_same_nodes(one: Any, other: Any) -> bool:
    """Whether two equal tree structures have the same nodes, so that one can stand for the other.

    Equal structures may differ: the keys 1 and True are equal, and different data of custom nodes may be equal, too.
    """
    pairs = () if one is other else zip(treedefs.nodes_of(one), treedefs.nodes_of(other), strict=True)
    return all(a.type is b.type and _is_same_data(a.data, b.data) for a, b in pairs)


def _is_same_data(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in (tuple, list):
        return len(one) == len(other) and all(map(_is_same_data, one, other))
    return type(one) in (str, int, bool, bytes) and one == other
