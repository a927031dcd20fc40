"""Shapes of modules with dynamic dimensions: sizes or names for them, and what follows for the results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxexp import _jax
from jaxexp._errors import ExportError, UnsupportedError

from .signature import Shape

_Known = tuple[int | None, ...]

# From one size to another, sizes for which results are looked at: the first is not a multiple of the usual tiles.
_FIRST, _STEP = 6, 5


def of_arguments(known: Sequence[_Known], given: Mapping[int, Any] | None) -> list[Shape]:
    """The shapes of all arguments; the dimensions of the given ones may be symbolic.

    Args:
        known: the shapes in the module.
        given: shapes by the index of the argument: texts such as "batch, 3", or tuples.

    Raises:
        ExportError: a shape is missing, or contradicts the module.
    """
    given = dict(given or {})
    if wrong := [index for index in given if index not in range(len(known))]:
        raise ExportError(f"shapes= has the key {wrong[0]!r}, and the module has {len(known)} arguments, from 0")
    scope = next((dim.scope for shape in given.values() for dim in _symbolic(shape)), None) or _jax.SymbolicScope()
    found = []
    for index, shape in enumerate(known):
        if index in given:
            found.append(_agreed(index, shape, given[index], scope))
        elif None in shape:
            raise ExportError(
                f"argument {index} of the module has the shape ({_text(shape)}): say its dimensions in shapes=, as "
                f"names or sizes, such as shapes={{{index}: {_example(shape)!r}}}"
            )
        else:
            found.append(shape)
    return found


def _symbolic(shape: Any) -> list[Any]:
    return [] if isinstance(shape, str) else [dim for dim in shape if _jax.is_symbolic_dim(dim)]


def _agreed(index: int, known: _Known, given: Any, scope: Any) -> Shape:
    shape = tuple(_jax.symbolic_shape(given, scope=scope) if isinstance(given, str) else given)
    if len(shape) != len(known) or any(size not in (None, dim) for size, dim in zip(known, shape, strict=True)):
        raise ExportError(
            f"shapes= gives argument {index} the shape ({_text(shape)}), and in the module it is ({_text(known)})"
        )
    return shape


def _text(shape: Sequence[Any]) -> str:
    return ", ".join("?" if dim is None else str(dim) for dim in shape)


def _example(shape: _Known) -> str:
    letters = itertools.chain("abcdefgh", itertools.repeat("i"))
    return ", ".join(next(letters) if dim is None else str(dim) for dim in shape)


def of_results(shapes: Sequence[Shape], refined: Callable[[Sequence[Shape]], Sequence[Shape]]) -> list[Shape]:
    """The shapes of the results for symbolic shapes of the arguments: what StableHLO's own inference finds for several
    sizes, as linear expressions of the dimension variables.

    Args:
        shapes: the shapes of the arguments.
        refined: finds the shapes of the results for constant shapes of the arguments.

    Raises:
        UnsupportedError: they are not linear.
    """
    dims = {name: dim for shape in shapes for dim in shape for name in _jax.dim_vars(dim)}
    names = sorted(dims)
    variables = [_jax.symbolic_shape(name, scope=dims[name].scope)[0] for name in names]

    def at(sizes: Sequence[Any]) -> Sequence[Shape]:
        return refined([tuple(_jax.evaluate_shape(shape, names, *sizes)) for shape in shapes])

    base = [_FIRST + _STEP * i for i in range(len(names))]
    first = at(base)
    slopes = [at(sizes) for sizes in _one_more(base)]
    other = [size + _FIRST + i for i, size in enumerate(base)]
    expected = at(other)
    found = []
    for result, shape in enumerate(first):
        expressions = []
        for axis, size in enumerate(shape):
            factors = [more[result][axis] - size for more in slopes]
            constant = size - sum(f * b for f, b in zip(factors, base, strict=True))
            if constant + sum(f * o for f, o in zip(factors, other, strict=True)) != expected[result][axis]:
                raise UnsupportedError(
                    f"dimension {axis} of result {result} is not linear in {', '.join(names)}: import the module with "
                    "sizes in shapes="
                )
            expressions.append(sum((f * v for f, v in zip(factors, variables, strict=True) if f), start=constant))
        found.append(tuple(expressions))
    return found


def _one_more(base: Sequence[int]) -> Iterator[list[int]]:
    for i in range(len(base)):
        yield [size + (i == j) for j, size in enumerate(base)]
