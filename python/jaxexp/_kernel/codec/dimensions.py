"""Symbolic dimensions from their terms, without JAX's arithmetic.

Multiplying factors and adding terms one by one takes some ten microseconds each. The terms of a printed dimension only
have to be put in JAX's order. The native codec does that and fills the slots of JAX's objects, if it knows them.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any

from jaxexp import _jax

# A factor: a variable's name, or an operation's name with its operands; then its exponent.
Factor = tuple[str, Sequence["Terms"], int]
Terms = Sequence[tuple[int, Sequence[Factor]]]

_first = operator.itemgetter(0)


class LoadedScope(_jax.SymbolicScope):
    """The scope of dimensions that were read from an artifact.

    `jax.export` reads no constraints. So they bound dimensions here, but a traced call leaves them to the assertions in
    the module, which check the sizes of what runs.
    """


_SLOTS = [
    {"_sorted_terms", "_scope", "_hash", "_size"},
    {"_factors", "_hash", "_size"},
    {"var", "operation", "operands", "_hash", "_size"},
]
# Of `c + a*b^2 - 2*max(a - 3, 0) + 5`: the terms with their sizes and coefficients, then the size of the whole.
_A: tuple[Any, ...] = ("a", None, [], 1)
_KNOWN = (
    [
        ([(None, "max", [([([(*_A, 1)], 2, 1), ([], 0, -3)], 4), ([([], 0, 0)], 1)], 6, 1)], 7, -2),
        ([("b", None, [], 1, 2), (*_A, 1)], 5, 1),
        ([("c", None, [], 1, 1)], 2, 1),
        ([], 0, 5),
    ],
    25,
)


@functools.cache
def layout() -> tuple[type, type, type, Any] | None:
    """JAX's classes of dimensions, terms and factors, and the term 1; None if their slots are unknown."""
    scope = _jax.SymbolicScope()
    try:
        dimension: Any = _jax.symbolic_shape("c + a*b^2 - 2*max(a - 3, 0) + 5", scope=scope)[0]
        names = [{*cls.__slots__} for cls in (_jax.DimExpr, _jax.DimTerm, _jax.DimFactor)]
        known = names == _SLOTS and _slots(dimension) == _KNOWN and dimension._scope is scope
    except MemoryError:
        raise
    except Exception:
        return None
    return (_jax.DimExpr, _jax.DimTerm, _jax.DimFactor, _jax.dim_term_one) if known else None


def _slots(dimension: Any) -> Any:
    terms = [
        (
            [(f.var, f.operation, [_slots(o) for o in f.operands], f._size, exponent) for f, exponent in term._factors],
            term._size,
            coefficient,
        )
        for term, coefficient in dimension._sorted_terms
    ]
    return terms, dimension._size


def from_terms(terms: Terms, scope: Any) -> Any:
    """The symbolic dimension that is the sum of these terms, or an int.

    Args:
        terms: the coefficient and the factors of each.
        scope: its symbolic scope, in which no equality substitutes anything.

    Raises:
        ValueError: two terms, or two factors of a term, are equal. All releases print such terms as one.
    """
    pairs = [(_jax.DimTerm(tuple(_sorted([_factor(f, scope) for f in factors]))), number) for number, factors in terms]
    if len(pairs) == 1 and not terms[0][1]:
        return terms[0][0]
    return _jax.dimension_of_sorted_terms(tuple(_sorted(pairs)), scope)


def _factor(factor: Factor, scope: Any) -> tuple[Any, int]:
    name, operands, exponent = factor
    if not operands:
        return _jax.DimFactor.from_var(name), exponent
    return _jax.DimFactor.from_operation(name, *(from_terms(o, scope) for o in operands), scope=scope), exponent


def _sorted(pairs: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
    if len(pairs) < 2:
        return pairs
    pairs.sort(key=_first, reverse=True)  # in linear time for the order in which today's releases print them
    for one, other in itertools.pairwise(pairs):
        if one[0] == other[0]:
            raise ValueError(f"{one[0]} twice")
    return pairs
