"""Sorting, and `select_and_scatter`, which compares in windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxexp import _jax

from .carried import select_and_scatter_p, sort_p
from .operation import Many, Operation
from .program import Block


def sort(operation: Operation) -> Many:
    rank = len(operation.operands[0].shape)
    dimension, is_stable = operation.integer("dimension", -1) % max(rank, 1), operation.boolean("is_stable", False)
    comparator = operation.closed_region(0)
    keys = _number_of_keys(operation, comparator)
    if keys is None:
        params = {"comparator": comparator, "dimension": dimension, "is_stable": is_stable}
        return Many(lambda *arrays: sort_p.bind(*arrays, **params))

    return Many(lambda *arrays: lax.sort(arrays, dimension=dimension, is_stable=is_stable, num_keys=keys))


def _number_of_keys(operation: Operation, comparator: Block) -> int | None:
    """The number of keys for which JAX's own sort compares in this way; None if it never does."""
    scalars = [jax.ShapeDtypeStruct((), type_.dtype) for type_ in operation.operands for _ in range(2)]
    with jax.enable_x64(True):
        found = _form(jax.make_jaxpr(lambda *xs: comparator(xs))(*scalars))
        for keys in range(1, len(operation.operands) + 1):
            if _form(jax.make_jaxpr(_comparing(keys))(*scalars)) == found:
                return keys
    return None


def _comparing(keys: int) -> Callable[..., Any]:
    return lambda *scalars: [_jax.compare_for_sort(*scalars, num_keys=keys)]


def _form(closed: Any) -> list[Any]:
    """A jaxpr of scalars as a list that is equal for equal jaxprs."""
    names: dict[Any, Any] = {}
    constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def name(atom: Any) -> Any:
        value = atom.val if hasattr(atom, "val") else constants.get(atom)
        if value is None:
            return names.setdefault(atom, len(names))
        array = np.asarray(value)
        return array.dtype.name, array.tobytes()

    lines: list[Any] = [[name(v) for v in closed.jaxpr.invars]]
    for equation in closed.jaxpr.eqns:
        primitive = equation.primitive.name
        if primitive in ("lt_to", "eq_to") and not _jax.issubdtype(equation.invars[0].aval.dtype, np.inexact):
            primitive = primitive.removesuffix("_to")  # integers have one order
        params = sorted((key, str(value)) for key, value in equation.params.items())
        lines.append((primitive, params, [name(v) for v in equation.invars], [name(v) for v in equation.outvars]))
    return [*lines, [name(v) for v in closed.jaxpr.outvars]]


def select_and_scatter(operation: Operation) -> Many:
    sizes = operation.integers("window_dimensions")
    params: dict[str, Any] = {
        "sizes": sizes,
        "strides": operation.integers("window_strides", (1,) * len(sizes)),
        "padding": operation.pairs("padding", ((0, 0),) * len(sizes)),
        "select": operation.closed_region(0),
        "scatter": operation.closed_region(1),
    }
    return Many(lambda *operands: select_and_scatter_p.bind(*operands, **params))
