"""The trees of arguments and results, made and taken apart without JAX.

Tuples, lists, dicts and None are what they are in JAX. Nodes of other classes are known by what the artifact says of
their children. Results have a `GenericNode` for each, and arguments may be anything that has these children: the class
itself, if it is there, or a `GenericNode`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from types import NoneType
from typing import Any

from jaxexp._errors import cause
from jaxexp._kernel.artifact import texts
from jaxexp._kernel.artifact.node import Description, GenericNode, Key, description_of, generic_node
from jaxexp._kernel.artifact.words import counted, listed

# The kinds of nodes by their numbers; that of a leaf comes first, and that of all other classes last.
_TYPES = None, NoneType, tuple, list, dict
_CUSTOM = len(_TYPES)
# Dicts with keys that are not texts, and OrderedDicts, by their names in artifacts.
_DICTS: dict[str, type[Any]] = {
    "jaxexp.dict": dict,
    "jaxexp.OrderedDict": collections.OrderedDict,
    "collections.OrderedDict": collections.OrderedDict,
}


class MismatchError(ValueError):
    """Arguments that do not have the structure of a tree. The text says where, and what was expected and found."""


class Tree:
    """A node with what is below it.

    Attributes:
        children: the children, in the order of their leaves.
        keys: of a dict, the keys in the order of the children; None for other nodes.
    """

    __slots__ = ("_description", "_type", "children", "keys")

    def __init__(
        self,
        children: Sequence[Tree],
        type_: type[Any],
        keys: Sequence[Any] | None = None,
        description: Description | None = None,
    ) -> None:
        """`description` is that of a node of another class than `type_`."""
        self.children, self._type, self.keys, self._description = children, type_, keys, description

    def flatten(self, value: Any, path: str, leaves: list[Any]) -> None:
        """Adds the leaves of a value.

        Raises:
            MismatchError: the value has another structure.
        """
        if self is _LEAF:
            leaves.append(value)
            return
        found = self._children_of(value, path)
        for index, (child, part) in enumerate(zip(self.children, found, strict=True)):
            if child is _LEAF:
                leaves.append(part)
            else:
                child.flatten(part, path + self._step(index), leaves)

    def build(self, leaves: Iterator[Any]) -> Any:
        """The tree with the next leaves."""
        if self is _LEAF:
            return next(leaves)
        children = [next(leaves) if child is _LEAF else child.build(leaves) for child in self.children]
        if self._description is not None:
            return generic_node(self._description, children)
        if self.keys is not None:
            return self._type(zip(self.keys, children, strict=True))
        return None if self._type is NoneType else self._type(children)

    def _step(self, index: int) -> str:
        """The step to a child, as in ``"['w']"``."""
        if self._description is not None:
            return str(self._description.keys[index])
        return f"[{index}]" if self.keys is None else f"[{self.keys[index]!r}]"

    def _children_of(self, value: Any, path: str) -> Iterable[Any]:
        if self._description is not None:
            return _children_of_node(self._description, value, path)
        if type(value) is not self._type:  # a namedtuple is another kind of node
            must = "None" if self._type is NoneType else f"a {self._type.__name__}"
            raise MismatchError(f"{path} must be {must}, found {_described(value)}")
        if self.keys is not None:
            self._check_keys(value, path, self.keys)
            return map(value.__getitem__, self.keys)
        if value is None:
            return ()
        if len(value) != len(self.children):
            expected = counted(len(self.children), "element")
            raise MismatchError(f"{path} must be a {type(value).__name__} of {expected}, found {len(value)}")
        return value

    def _check_keys(self, value: dict[Any, Any], path: str, keys: Sequence[Any]) -> None:
        ordered = self._type is not dict
        if list(value) == list(keys) if ordered else value.keys() == set(keys):
            return
        what = "the keys in this order" if ordered else "the keys"
        must = f"must have {what} {_names(keys)}" if keys else "must be empty"
        raise MismatchError(f"{path} {must}, found {_names(value)}")


_LEAF = Tree((), object)


def _children_of_node(description: Description, value: Any, path: str) -> Iterable[Any]:
    """The children of a node of another class."""
    keys, name = description.keys, description.class_name
    if type(value) is GenericNode:
        if value._class_name != name or value._names != description.names:
            raise MismatchError(f"{path} must be a node of {name}, found one of {value._class_name}")
        return value._children
    fields: tuple[str, ...] | None = getattr(type(value), "_fields", None)
    if description.is_namedtuple and isinstance(value, tuple) and fields is not None:
        if sorted(fields) != sorted(map(str, description.names)):
            raise MismatchError(f"{path} must have the fields {_names(description.names)}, found {_names(fields)}")
    elif isinstance(value, (tuple, list, dict)) or value is None or any(key.kind == "position" for key in keys):
        raise MismatchError(
            f"{path} must be a {name}, found {_described(value)}: give arrays by their paths (Session.call_by_path)"
        )
    return [_child(value, key, path) for key in keys]


def _child(value: Any, key: Key, path: str) -> Any:
    try:
        return getattr(value, str(key.value)) if key.kind == "attribute" else value[key.value]
    except Exception as error:
        raise MismatchError(f"{path} must have a child {key}, found {_described(value)}") from cause(error)


def _described(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__qualname__}"


def _names(names: Iterable[Any]) -> str:
    return listed([repr(name) for name in names], most=10) or "none"


def is_custom(node: tuple[Any, ...]) -> bool:
    """Whether a node is of a class that JAX does not have as a container."""
    return node[0] == _CUSTOM and node[2] not in _DICTS


def class_name(name: str, data: bytes) -> str:
    """What messages call a class, by the name and the data of a node."""
    try:
        return description_of(name, data, 0).class_name
    except ValueError:  # `tree_of` refuses it
        return name


def tree_of(nodes: Sequence[tuple[Any, ...]], where: str) -> Tree:
    """The tree in what `_runtime.Program.trees` returns: nodes, each before its children.

    Raises:
        DeserializationError: a node says of itself what cannot be read.
    """
    stack: list[Tree] = []
    for kind, count, *more in reversed(nodes):
        children = [stack.pop() for _ in range(count)]
        if kind != _CUSTOM:
            type_ = _TYPES[kind]
            stack.append(_LEAF if type_ is None else Tree(children, type_, *more))
            continue
        name, data = more
        said = texts.node(where, name, data, count)
        if isinstance(said, Description):
            stack.append(Tree(children, object, None, said))
        else:
            stack.append(Tree(children, _DICTS[name], said))
    (tree,) = stack
    return tree
