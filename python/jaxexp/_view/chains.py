"""The chains of calls and of name scopes that operations are inside of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from .locations import Call
from .paths import both, common

T = TypeVar("T")

# Functions that only call another one.
_WRAPPERS = frozenset(
    "BoundMethod.__call__ Module._call_wrapped_method _VmapWrapper.__call__ _fun_wrapper inner wrapped wrapper".split()
)
# The group of the operations that compute gradients.
_BACKWARD = "backward"
_MOST_CALLS = 200


def of_scopes(text: str) -> tuple[str, ...]:
    """The scopes in a text. Transformations without a scope only say whether an operation computes gradients, and these
    operations stand together.
    """
    scopes = [scope for scope in text.split("/") if scope and not scope.endswith("()")]
    return (*[_BACKWARD] * ("transpose(" in text or "(transpose of " in text), *scopes)


def of_calls(chains: Sequence[tuple[Call, ...]], longest: int) -> list[tuple[Call, ...]]:
    """Chains of calls in full. Older releases of JAX keep only the innermost ten: the others are those of the operation
    before. Operations from nowhere, such as numbers, are where all others are.
    """
    whole = [chain for chain in chains if 0 < len(chain) < longest]
    before: tuple[Call, ...] = whole[0] if whole else ()
    if not whole:  # the one that begins before all others
        for chain in chains:
            if chain and (not before or before[0] in chain):
                before = chain
    shared = common(whole or (chain for chain in chains if chain and chain[:1] == before[:1])) or ()
    chains = filled([shared, *chains, shared])[1:-1]
    full: dict[tuple[tuple[Call, ...], tuple[Call, ...]], tuple[Call, ...]] = {}
    found = []
    for chain in chains:
        if len(chain) == longest:
            if (before, chain) not in full:
                full[before, chain] = _continued(before, chain)
            chain = full[before, chain]
        before = chain or before
        found.append(tuple(call for call in chain if not _is_wrapper(call.function)))
    return found


def filled(found: list[tuple[T, ...]]) -> list[tuple[T, ...]]:
    """Chains, with those that are not known as both neighbours have them."""
    after: list[tuple[T, ...]] = [()] * len(found)
    following: tuple[T, ...] = ()
    for i in reversed(range(len(found))):
        after[i] = following
        following = found[i] or following
    before: tuple[T, ...] = ()
    filled = []
    for one, next_ in zip(found, after, strict=True):
        before = one or before
        filled.append(one or both(before, next_))
    return filled


def _continued(before: tuple[Call, ...], chain: tuple[Call, ...]) -> tuple[Call, ...]:
    for i in reversed(range(len(before) if before[:1] != chain[:1] else 0)):
        if before[i].function == chain[0].function and _file(before[i]) == _file(chain[0]):
            return (before[:i] + chain)[:_MOST_CALLS]
    return chain


def _file(call: Call) -> str:
    return call.at.rsplit(":", 2)[0]


def _is_wrapper(function: str) -> bool:
    name = shown(function)
    return function in _WRAPPERS or name.startswith("<") or name in _WRAPPERS


def shown(function: str) -> str:
    """The name of a function; of a class, if it is called by that."""
    return function.rpartition("<locals>.")[2].removesuffix(".__call__")
