"""Programs whose first argument is a dict of weights, and these weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxexp._errors import DeserializationError
from jaxexp._kernel.artifact.words import listed
from jaxexp._kernel.call import first_argument
from jaxexp._kernel.call.primitive import SPECIALIZING, check
from jaxexp._kernel.call.specialize import specialize, specialized_avals
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import E, ExportedData
from jaxexp._weights.arrays.stored import Table, WithDigests
from jaxexp._weights.arrays.weights import Weights

from .renamed import names_in_first


def given(program: ExportedData, arrays: Mapping[str, Any], other_names: Mapping[str, str] | None = None) -> Weights:
    """Arrays that fit a program as its weights. `other_names` has each further name of a tied weight, with its own."""
    return Weights(_types(program), arrays, (), other_names)


def without_arrays(program: ExportedData, like: Any) -> Weights:
    """The weights of a program before there are arrays. They are tied as those of another function are, if `like` is
    such weights of the same names.
    """
    found = given(program, {})
    return given(program, {}, like.other_names) if isinstance(like, Weights) and list(like) == list(found) else found


def of_leaves(program: ExportedData, leaves: Mapping[str, Any], other_names: dict[str, str]) -> Weights:
    """The same for whatever JAX puts in place of arrays: tracers, specs, axes."""
    return Weights.of_leaves(_types(program), leaves, other_names)


def stored(program: ExportedData, tensors: Callable[[Table, Mapping[str, Any]], WithDigests]) -> Weights:
    """The weights that the trailer of a program names; a DeserializationError if they do not fit it. None is read.

    A function finds them, given the trailer's table and the abstract value of each weight by name.
    """
    found = data.weights_in_trailer(program)
    assert found is not None
    table = Table.of_trailer(*found)
    names = [tensor.name for tensor in table.tensors]
    if names != names_in_first(program.in_tree):
        raise DeserializationError(
            "trailer.weights.tensors", "the names in the dict that is the first argument", listed(names, repr, most=8)
        )
    types = _types(program)
    return Weights(types, tensors(table, types), (), table.named_otherwise())


def specialized(program: E, args_specs: tuple[Any, ...], kwargs_specs: dict[str, Any]) -> E:
    """A program for other shapes of the arguments that are no weights."""
    rest = first_argument.without(program)
    # Here, because the errors for all arguments would count the weights, too.
    check(rest, specialized_avals(rest, args_specs, kwargs_specs), SPECIALIZING)
    return specialize(program, (_types(program), *args_specs), kwargs_specs)


def _types(program: ExportedData) -> dict[str, Any]:
    """The abstract values of the weights of a program, by their names."""
    args, _ = program.in_tree.children()
    avals = program.in_avals[: first_argument.count(program.in_tree)]
    types: dict[str, Any] = jax.tree_util.tree_unflatten(args.children()[0], avals)
    return types
