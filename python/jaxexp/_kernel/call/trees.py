"""How the arguments of a call fit the tree structure of a function, and which classes its results have.

They fit if the structures are equal. If the class of a node was not loaded when the artifact was read, or its auxiliary
data is not only data, the signature has a generic node. There, an argument fits if its node has the same children.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, Lines
from jaxexp._kernel.artifact.node import Description, GenericNode, shown
from jaxexp._kernel.artifact.words import cut, where_they_differ
from jaxexp._kernel.codec import nodes, treedefs
from jaxexp._kernel.codec.treedefs import Node
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.paths import node_path, taking_placeholders

# --- hints for errors about arguments whose type differs from the export ----------------------------------------------


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
    if expected == found and expected.startswith("<class "):
        return "the class was defined again after the function was exported or loaded: do that again, too"
    return None


AN_ARRAY = "an array"
A_LEAF = "one array"


# --- how arguments fit ------------------------------------------------------------------------------------------------


_MOST_KEPT = 16  # structures of arguments that a function remembers


class Fit(NamedTuple):
    """How arguments of one structure fit: the index of the given leaf for each leaf of the signature, or None if the
    order is the same; the structure of the results, and the classes that it has generic nodes for, because they are not
    loaded.
    """

    order: tuple[int, ...] | None
    out_tree: Any
    pending: tuple[Description, ...]

    def arranged(self, leaves: Sequence[Any]) -> Sequence[Any]:
        return leaves if self.order is None else [leaves[i] for i in self.order]


def leaves_and_out_tree(
    exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], Any]:
    """The leaves of a call's arguments in the order of the signature, and the structure of its results."""
    leaves, in_tree = _jax.flatten_for_tracing((args, kwargs))
    found = fit(exported, in_tree, leaves)
    return found.arranged(leaves), found.out_tree


def has_generic_nodes(exported: ExportedData) -> bool:
    """Whether a function has generic nodes in its signature. The first time, this also compares the children of classes
    with the artifact. That needs instances, so reading leaves it to the first use.
    """
    return data.kept(exported, "has_generic_nodes", _has_generic_nodes)


def _has_generic_nodes(exported: ExportedData) -> bool:
    facts = data.facts_of(exported)
    for written in (facts.in_tree, facts.out_tree):
        if written is None:
            continue
        seen: set[Description] = set()
        for found, node in zip(*map(treedefs.nodes_of, written), strict=True):
            if node.type is not GenericNode or found.type in (None, GenericNode) or node.data in seen:
                continue
            seen.add(node.data)
            if (why := nodes.disagreement(node.data, found.type, found.data)) is not None:
                raise ExportError(
                    f"calling {data.described(exported)}: {why}. Use the release of the library that wrote it"
                )
    return GenericNode in _node_types(exported)


def has_only_containers(exported: ExportedData) -> bool:
    """Whether a signature has only tuples, lists, dicts and None, so that making them runs no code of users."""
    return _node_types(exported) <= {None, *treedefs.BUILTIN}  # None is the type of leaves


def _node_types(exported: ExportedData) -> set[type | None]:
    return {node.type for tree in (exported.in_tree, exported.out_tree) for node in treedefs.nodes_of(tree)}


def fit(exported: ExportedData, in_tree: Any, leaves: Sequence[Any], doing: str = "calling") -> Fit:
    """How arguments with a tree structure fit a function. Messages say what the leaves are, and what they are for."""
    if not has_generic_nodes(exported):
        if in_tree != exported.in_tree:
            raise ExportError(mismatch(exported, in_tree, leaves, doing))
        return Fit(None, exported.out_tree, ())
    kept: dict[Any, Fit] = data.kept(exported, "fits", lambda _: {})
    found = kept.get(in_tree)
    if found is None or any(nodes.node_data(description) for description in found.pending):
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        found = kept[in_tree] = _Fitting(exported, in_tree, leaves, doing).fit()
    return found


class _Tree(NamedTuple):
    """A tree structure whose nodes know their children."""

    nodes: list[Node]  # in post-order
    children: list[list[int]]  # of each node
    leaves: list[int]  # how many come before each node in post-order

    @classmethod
    def of(cls, treedef: Any) -> _Tree:
        tree = cls(treedefs.nodes_of(treedef), [], [])
        without_parent: list[int] = []
        leaves = 0
        for i, node in enumerate(tree.nodes):
            start = len(without_parent) - node.arity
            tree.children.append(without_parent[start:])
            tree.leaves.append(leaves)
            leaves += node.type is None
            without_parent[start:] = [i]
        return tree


class _Fitting:
    def __init__(self, exported: ExportedData, in_tree: Any, leaves: Sequence[Any], doing: str) -> None:
        self.exported = exported
        self.in_tree = in_tree
        self.leaves, self.doing = leaves, doing
        self.expected, self.given = _Tree.of(exported.in_tree), _Tree.of(in_tree)
        # Nodes of the arguments by the description that an artifact would have.
        self.described: dict[Description, Node] = {}
        self.read = functools.cache(Description)

    def fit(self) -> Fit:
        order = [0] * len(self.exported.in_avals)
        expected, given = self.expected, self.given
        pairs = [(len(expected.nodes) - 1, len(given.nodes) - 1)]
        while pairs:
            i, j = pairs.pop()
            if expected.nodes[i].type is None and given.nodes[j].type is None:
                order[expected.leaves[i]] = given.leaves[j]
                continue
            places = self.places(i, given.nodes[j])
            pairs += [(i, given.children[j][place]) for i, place in zip(expected.children[i], places, strict=True)]
        in_order = order == list(range(len(order)))
        out_tree = treedefs.replace(self.exported.out_tree, GenericNode, self.of_result)
        stays = {node.data: None for node in treedefs.nodes_of(out_tree) if node.type is GenericNode}
        pending = [d for d in stays if not d.is_opaque and nodes.node_data(d) is None]
        return Fit(None if in_order else tuple(order), out_tree, tuple(pending))

    def places(self, i: int, given: Node) -> Sequence[int]:
        """For each child of the expected node `i`, the index of that child in the given node."""
        expected = self.expected.nodes[i]
        same = range(expected.arity)
        if expected.type is not GenericNode:
            if expected.type is given.type and expected.arity == given.arity and expected.data == given.data:
                return same
            self.refuse(otherwise=f"expected {_kind(expected)}, found {_kind(given)}")
        description: Description = expected.data
        if given.type is dict and expected.arity == given.arity:
            positions = {key: position for position, key in enumerate(given.data)}
            if all(name in positions for name in description.names):
                return [positions[name] for name in description.names]
        wanted = f"{self.path(i)}: expected {description.class_name} with the children {_listed(description.names)}"
        if given.type is None or given.type in treedefs.BUILTIN:
            self.refuse(f"{wanted}; found {f'a dict of {_listed(given.data)}' if given.type is dict else _kind(given)}")
        found = nodes.registered_as(description, given) or self.describe(given)
        if found.names != description.names or expected.arity != given.arity:
            self.refuse(f"{wanted}; found {found.class_name} with {_listed(found.names)}")
        same_class = (found.serialized_name, found.class_name) == (description.serialized_name, description.class_name)
        if same_class and not found.says_the_same(description):
            theirs, ours = where_they_differ(shown(description.data), shown(found.data))
            what = f"{self.path(i)}: the auxiliary data of {description.class_name}"
            self.refuse(f"{what} is {theirs} in export and {ours} in the call")
        if given.type is not GenericNode:
            self.described[description] = given
        return same

    def path(self, i: int) -> str:
        """The path of the expected node `i`, or of the first one around it that has leaves."""
        nodes, children, leaves = self.expected
        above = {child: parent for parent, own in enumerate(children) for child in own}

        def leaves_before(node: int) -> int:
            while children[node]:
                node = children[node][0]
            return leaves[node]

        while nodes[i].type is not None and leaves_before(i) == leaves[i] and i in above:
            i = above[i]
        leaf, depth = leaves_before(i), 0
        while i in above:
            i, depth = above[i], depth + 1
        return node_path(self.exported.in_tree, leaf, depth)

    def describe(self, node: Node) -> Description:
        if node.type is GenericNode:
            return node.data
        assert node.type is not None
        return self.read(nodes.describe(node.type, node.data, node.arity))

    def of_result(self, description: Description, arity: int) -> tuple[type, Any] | None:
        """The class of a result's node: the loaded class, or the class of an argument with the same description."""
        known = nodes.made(description)
        if known is not None and nodes.disagreement(description, *known) is None:
            return known
        node = self.described.get(description) or self.all_described.get(description)
        return None if node is None or node.type is None else (node.type, node.data)

    @functools.cached_property
    def all_described(self) -> dict[Description, Node]:
        """The same for all nodes of the arguments with a class, of equal ones the first."""
        of_classes = [n for n in self.given.nodes if n.type not in (None, GenericNode, *treedefs.BUILTIN)]
        return {self.describe(node): node for node in reversed(of_classes)}

    def refuse(self, why: str = "", otherwise: str = "") -> Any:
        raise ExportError(mismatch(self.exported, self.in_tree, self.leaves, self.doing, why, otherwise))


def _kind(node: Node) -> str:
    return A_LEAF if node.type is None else f"{node.type} of {node.arity:,}"


def _listed(names: Sequence[str | int]) -> str:
    shown_names = ", ".join(map(str, names[:10])) or "none"
    return f"{shown_names}, ..." if len(names) > 10 else shown_names


def mismatch(
    exported: ExportedData, in_tree: Any, leaves: Sequence[Any], doing: str, why: str = "", otherwise: str = ""
) -> str:
    """The message for arguments of a structure that does not fit, with `why`, or else the differences; `otherwise` if
    these are only that nodes have a class in place of a generic node, which is allowed.
    """
    # Any leaves will do to compare structures. The names of these say what they stand for.
    ours, theirs = taking_placeholders(in_tree, exported.in_tree)
    given = ours.unflatten([_LeafType(kind_of_leaf(leaf), (), {})() for leaf in leaves])
    types = (cut(str(aval)) for aval in exported.in_avals)
    expected = theirs.unflatten([_LeafType(f"{AN_ARRAY}, {type_}", (), {})() for type_ in types])
    differences = [
        f"  {_jax.describe_key_path(path)}: expected {theirs}, found {ours}; {about_leaves(theirs, ours) or why_there}"
        for path, ours, theirs, why_there in _jax.tree_equality_errors(given, expected)
        if theirs != str(GenericNode)
    ]
    return Lines.of(
        [
            f"{doing} {data.described(exported)}: the arguments have another tree structure than in export. "
            f"{_OF_VJP if data.origin(exported)[1] else _AS_IN_EXPORT}",
            *([f"  {why}"] if why else differences or [f"  {otherwise}"]),
            *([_WITHOUT_WEIGHTS] if _lacks_weights(exported, in_tree) else []),
        ]
    )


_AS_IN_EXPORT = (
    "Pass each one by position or by keyword as in export. Leave out arguments that jit took as static: they are part "
    "of the function"
)
_OF_VJP = (
    "A VJP takes the arrays of all arguments one by one, those of weights first, and then a cotangent for each result"
)
_WITHOUT_WEIGHTS = (
    "  The first argument is a dict of arrays, such as weights: the method bind takes them from you; jaxexp.load(path) "
    "finds those beside the artifact, and ArchiveWriter.add_file packs them with it"
)


def _lacks_weights(exported: ExportedData, in_tree: Any) -> bool:
    """Whether these are the arguments without the first one, which is a dict of arrays."""
    (args, kwargs), (given, given_kwargs) = exported.in_tree.children(), in_tree.children()
    is_named = names_in_first(exported.in_tree) is not None
    return is_named and (given.children(), given_kwargs) == (args.children()[1:], kwargs)


def names_in_first(in_tree: Any) -> list[str] | None:
    """The keys of the first positional argument, if it is a dict of arrays by names; otherwise None. An empty key is no
    name: `names_in` has one for it.
    """
    args, _ = in_tree.children()
    first = args.children()[0] if args.children() else None
    if first is None or first.node_data() is None or first.node_data()[0] is not dict:
        return None
    keys = list(first.node_data()[1])
    is_flat = first.num_leaves == first.num_nodes - 1 == len(keys)
    return keys if is_flat and all(isinstance(key, str) and key for key in keys) else None
