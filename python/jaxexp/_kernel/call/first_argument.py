"""Calls of functions whose first argument is given with them.

Inside, such a call passes it *apart*: as the tuple of its arrays, whatever tree the function takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaxexp._errors import ExportError
from jaxexp._kernel.codec import treedefs
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import E, ExportedData, Written

from . import trees


class Given(NamedTuple):
    """The first argument for all calls of a function: the program that takes it, and what returns its leaves, as arrays
    on devices or with specs in place of arrays that were not read yet.
    """

    program: ExportedData
    arrays: Callable[[], tuple[Any, ...]]
    specs: Callable[[], tuple[Any, ...]]


def given_with(exported: ExportedData) -> Given | None:
    """The first argument that is given with a function; None if calls pass all arguments."""
    return data.attributes_of(exported).get("_bound")


def program_of(exported: ExportedData) -> ExportedData:
    """The function that calls run, which takes all arguments."""
    given = given_with(exported)
    return exported if given is None else given.program


def as_called(exported: ExportedData) -> ExportedData:
    """A function with the signature of its calls."""
    given = given_with(exported)
    return exported if given is None else without(given.program)


def apart(
    exported: ExportedData, args: tuple[Any, ...], as_specs: bool = False
) -> tuple[ExportedData, bool, tuple[Any, ...]]:
    """The function that a call runs, whether its first argument is apart, and the positional arguments. If specs are
    enough, nothing is read.
    """
    given = given_with(exported)
    if given is None:
        return exported, False, args
    return given.program, True, (given.specs() if as_specs else given.arrays(), *args)


_HAS_WEIGHTS = (
    "  This function has its weights, and takes only the other arguments: with_weights gives it others, and jax.grad "
    "takes the function itself for gradients of its weights"
)


def flattened(
    program: ExportedData, is_apart: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], Any]:
    """The leaves of a call's arguments in the order of the signature, and the structure of its results."""
    if not is_apart:
        return trees.leaves_and_out_tree(program, args, kwargs)
    rest = without(program)
    try:
        leaves, out_tree = trees.leaves_and_out_tree(rest, args[1:], kwargs)
    except ExportError as error:
        if jax.tree_util.tree_structure((args[2:], kwargs)) == rest.in_tree:
            raise ExportError(f"{error}\n{_HAS_WEIGHTS}") from None
        raise
    return [*args[0], *leaves], out_tree


def count(in_tree: Any) -> int:
    args, _ = in_tree.children()
    return args.children()[0].num_leaves


def without(program: E) -> E:
    """The function without its first argument, to compare the others with and to count them in messages. It is not
    called, because its module takes all arguments.
    """
    return data.kept(program, "rest", _without)


def _without(program: E) -> E:
    n = count(program.in_tree)
    facts = data.facts_of(program)
    in_tree = _tree_without(program.in_tree)
    weak, written = facts.weak_arguments, facts.in_tree
    return data.varied(
        program,
        in_tree=in_tree,
        in_avals=program.in_avals[n:],
        _in_named_shardings=program._in_named_shardings[n:],
        _facts=facts._replace(
            weak_arguments=None if weak is None else tuple(i - n for i in weak if i >= n),
            in_tree=None if written is None else Written(in_tree, _tree_without(written.written)),
        ),
    )


def _tree_without(in_tree: Any) -> Any:
    args, kwargs = in_tree.children()
    return treedefs.tuple_of([treedefs.tuple_of(args.children()[1:]), kwargs])


def tree_apart(in_tree: Any) -> Any:
    """The structure of a call's arguments, with the first one apart."""
    args, kwargs = in_tree.children()
    first = jax.tree_util.tree_structure((0,) * count(in_tree))
    return treedefs.tuple_of([treedefs.tuple_of([first, *args.children()[1:]]), kwargs])
