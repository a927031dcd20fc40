"""Hints for errors about arguments whose type differs from the export."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxexp import _jax

_64_BITS = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


def about_dtypes(expected: Any, found: Any) -> str:
    """The end of an error message about two dtypes: a period and a hint; empty if there is nothing to say."""
    if expected in _64_BITS and not jax.config.read("jax_enable_x64"):
        return (
            '. This process makes all arrays of 32 bits; jax.config.update("jax_enable_x64", True) lets it have '
            f"arrays of dtype {expected}"
        )
    keys = [_jax.issubdtype(dtype, jax.dtypes.prng_key) for dtype in (expected, found)]
    if keys == [True, False]:
        return ". Make a key of numbers with jax.random.wrap_key_data"
    if keys == [False, True]:
        return ". Pass the numbers of a key, jax.random.key_data(key)"
    return ""


class _LeafType(type):
    """The type of an object that stands for a leaf. Error messages show its name."""

    def __repr__(cls) -> str:
        return cls.__name__


def leaf_named(name: str) -> Any:
    """An object for a tree, which error messages show as `name`."""
    return _LeafType(name, (), {})()


def kind_of_leaf(leaf: Any) -> str:
    """What a message calls a leaf: a model that is passed as a whole has leaves that are no arrays."""
    if hasattr(leaf, "shape") or isinstance(leaf, (bool, int, float, complex)):
        return A_LEAF
    return "a function" if callable(leaf) else f"one {type(leaf).__qualname__}"


def about_leaves(expected: str, found: str) -> str | None:
    """What to do about a node in place of a leaf, or the other way round; None if there is nothing to say."""
    if expected.startswith(AN_ARRAY) and found in ("<class 'list'>", "<class 'tuple'>"):
        return "make an array of it with jnp.asarray"
    if found == A_LEAF and expected in ("<class 'list'>", "<class 'tuple'>"):
        return "take it apart, as in list(array)" if "list" in expected else "take it apart, as in tuple(array)"
    if expected == "<class 'NoneType'>":
        return "pass None there, as in export"
    return None


AN_ARRAY = "an array"
A_LEAF = "one array"
