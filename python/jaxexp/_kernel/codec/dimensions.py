"""Symbolic dimensions from their terms, without JAX's arithmetic.

Multiplying factors and adding terms one by one takes some ten microseconds each. The terms of a printed dimension only
have to be put in JAX's order. The native codec does that and fills the slots of JAX's objects, if it knows them.
"""

from __future__ import annotations

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
