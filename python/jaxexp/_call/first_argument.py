"""A function whose first argument is a dict of weights, seen by who passes only the other arguments."""

from __future__ import annotations

from typing import Any

from jaxexp._codec import treedefs
from jaxexp._function.data import E, facts_of, varied
from jaxexp._function.facts import Written


def count(in_tree: Any) -> int:
    """How many arrays are in the first positional argument."""
    args, _ = in_tree.children()
    leaves: int = args.children()[0].num_leaves
    return leaves


def names(in_tree: Any) -> list[str] | None:
    """The keys of the first positional argument, if it is a dict of arrays by names; otherwise None."""
    args, _ = in_tree.children()
    first = args.children()[0] if args.children() else None
    if first is None or first.node_data() is None or first.node_data()[0] is not dict:
        return None
    keys = list(first.node_data()[1])
    is_flat = first.num_leaves == first.num_nodes - 1 == len(keys)
    return keys if is_flat and all(isinstance(key, str) for key in keys) else None


def without(exported: E) -> E:
    """The function as its other arguments see it: they are compared with it, and messages count them. It is not called,
    because its module takes all arguments.
    """
    n = count(exported.in_tree)
    facts = facts_of(exported)
    in_tree = _without(exported.in_tree)
    weak, written = facts.weak_arguments, facts.in_tree
    return varied(
        exported,
        in_tree=in_tree,
        in_avals=exported.in_avals[n:],
        _in_named_shardings=exported._in_named_shardings[n:],
        _facts=facts._replace(
            weak_arguments=None if weak is None else tuple(i - n for i in weak if i >= n),
            in_tree=None if written is None else Written(in_tree, _without(written.written)),
        ),
    )


def _without(in_tree: Any) -> Any:
    args, kwargs = in_tree.children()
    return treedefs.tuple_of([treedefs.tuple_of(args.children()[1:]), kwargs])
