"""The trees of arguments and results, made and taken apart without JAX.

Tuples, lists, dicts and None are what they are in JAX. Nodes of other classes are known by what the artifact says of
their children. Results have a `GenericNode` for each, and arguments may be anything that has these children: the class
itself, if it is there, or a `GenericNode`.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jaxexp._errors import cause
from jaxexp._kernel.artifact import texts
from jaxexp._kernel.artifact.node import Description, GenericNode, Key, description_of, generic_node
from jaxexp._kernel.artifact.words import counted, listed

_LEAF, _NONE, _TUPLE, _LIST, _DICT, _CUSTOM = range(6)
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
    """

    __slots__ = ("children",)

    def __init__(self, children: Sequence[Tree]) -> None:
        self.children = children

    def flatten(self, value: Any, path: str, leaves: list[Any]) -> None:
        """Adds the leaves of a value.

        Raises:
            MismatchError: the value has another structure.
        """
        found = self._children_of(value, path)
        for index, (child, part) in enumerate(zip(self.children, found, strict=True)):
            if type(child) is Leaf:
                leaves.append(part)
            else:
                child.flatten(part, path + self.step(index), leaves)

    def build(self, leaves: Iterator[Any]) -> Any:
        """The tree with the next leaves."""
        return self._made([next(leaves) if type(child) is Leaf else child.build(leaves) for child in self.children])

    def step(self, index: int) -> str:
        """The step to a child, as in ``"['w']"``."""
        return f"[{index}]"

    def _children_of(self, value: Any, path: str) -> Iterable[Any]:
        raise NotImplementedError

    def _made(self, children: list[Any]) -> Any:
        raise NotImplementedError

    def _check_count(self, value: Any, path: str) -> None:
        if len(value) != len(self.children):
            expected = counted(len(self.children), "element")
            raise MismatchError(f"{path} must be a {type(value).__name__} of {expected}, found {len(value)}")


class Leaf(Tree):
    """An array."""

    __slots__ = ()

    def flatten(self, value: Any, path: str, leaves: list[Any]) -> None:
        leaves.append(value)

    def build(self, leaves: Iterator[Any]) -> Any:
        return next(leaves)


class _None(Tree):
    __slots__ = ()

    def _children_of(self, value: Any, path: str) -> Iterable[Any]:
        if value is not None:
            raise MismatchError(f"{path} must be None, found {_described(value)}")
        return ()

    def _made(self, children: list[Any]) -> Any:
        return None


class _Sequence(Tree):
    """A tuple or a list."""

    __slots__ = ("_type",)

    def __init__(self, children: Sequence[Tree], type_: type[Any]) -> None:
        super().__init__(children)
        self._type = type_

    def _children_of(self, value: Any, path: str) -> Iterable[Any]:
        if type(value) is not self._type:  # a namedtuple is another kind of node
            raise MismatchError(f"{path} must be a {self._type.__name__}, found {_described(value)}")
        self._check_count(value, path)
        return value

    def _made(self, children: list[Any]) -> Any:
        return self._type(children)


class Dict(Tree):
    """A dict.

    Attributes:
        keys: the keys, in the order of the children.
    """

    __slots__ = ("_type", "keys")

    def __init__(self, children: Sequence[Tree], keys: Sequence[Any], type_: type[Any] = dict) -> None:
        super().__init__(children)
        self.keys = keys
        self._type = type_

    def step(self, index: int) -> str:
        return f"[{self.keys[index]!r}]"

    def _children_of(self, value: Any, path: str) -> Iterable[Any]:
        if type(value) is not self._type:
            raise MismatchError(f"{path} must be a {self._type.__name__}, found {_described(value)}")
        self.check_keys(value, path)
        return map(value.__getitem__, self.keys)

    def check_keys(self, value: dict[Any, Any], path: str) -> None:
        """Raises a MismatchError if a dict does not have these keys."""
        ordered = self._type is not dict
        if list(value) == list(self.keys) if ordered else value.keys() == set(self.keys):
            return
        what = "the keys in this order" if ordered else "the keys"
        must = f"must have {what} {_names(self.keys)}" if self.keys else "must be empty"
        raise MismatchError(f"{path} {must}, found {_names(value)}")

    def _made(self, children: list[Any]) -> Any:
        return self._type(zip(self.keys, children, strict=True))


class _Custom(Tree):
    """A node of another class."""

    __slots__ = ("_description",)

    def __init__(self, children: Sequence[Tree], description: Description) -> None:
        super().__init__(children)
        self._description = description

    def step(self, index: int) -> str:
        return str(self._description.keys[index])

    def _children_of(self, value: Any, path: str) -> Iterable[Any]:
        keys, name = self._description.keys, self._description.class_name
        if type(value) is GenericNode:
            if value._class_name != name or value._names != self._description.names:
                raise MismatchError(f"{path} must be a node of {name}, found one of {value._class_name}")
            return value._children
        fields: tuple[str, ...] | None = getattr(type(value), "_fields", None)
        if self._description.is_namedtuple and isinstance(value, tuple) and fields is not None:
            if sorted(fields) != sorted(map(str, self._description.names)):
                expected = _names(self._description.names)
                raise MismatchError(f"{path} must have the fields {expected}, found {_names(fields)}")
        elif isinstance(value, (tuple, list, dict)) or value is None or any(key.kind == "position" for key in keys):
            raise MismatchError(
                f"{path} must be a {name}, found {_described(value)}: give arrays by their paths (Session.call_by_path)"
            )
        return [_child(value, key, path) for key in keys]

    def _made(self, children: list[Any]) -> Any:
        return generic_node(self._description, children)


def _child(value: Any, key: Key, path: str) -> Any:
    try:
        return getattr(value, str(key.value)) if key.kind == "attribute" else value[key.value]
    except Exception as error:
        raise MismatchError(f"{path} must have a child {key}, found {_described(value)}") from cause(error)


def _described(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__qualname__}"


def _names(names: Iterable[Any]) -> str:
    return listed([repr(name) for name in names], most=10) or "none"


_THE_LEAF = Leaf(())
_Nodes = Sequence[tuple[Any, ...]]
_MAKERS: dict[int, Callable[..., Tree]] = {
    _LEAF: lambda children: _THE_LEAF,
    _NONE: _None,
    _TUPLE: lambda children: _Sequence(children, tuple),
    _LIST: lambda children: _Sequence(children, list),
    _DICT: Dict,
}


def is_custom(node: tuple[Any, ...]) -> bool:
    """Whether a node is of a class that JAX does not have as a container."""
    return node[0] == _CUSTOM and node[2] not in _DICTS


def class_name(name: str, data: bytes) -> str:
    """What messages call a class, by the name and the data of a node."""
    try:
        return description_of(name, data, 0).class_name
    except ValueError:  # `tree_of` refuses it
        return name


def tree_of(nodes: _Nodes, where: str) -> Tree:
    """The tree in what `_runtime.Program.trees` returns: nodes, each before its children.

    Raises:
        DeserializationError: a node says of itself what cannot be read.
    """
    stack: list[Tree] = []
    for kind, count, *more in reversed(nodes):
        children = [stack.pop() for _ in range(count)]
        if kind == _CUSTOM:
            name, data = more
            stack.append(_custom(children, name, data, where))
        else:
            stack.append(_MAKERS[kind](children, *more))
    (tree,) = stack
    return tree


def _custom(children: Sequence[Tree], name: str, data: bytes, where: str) -> Tree:
    said = texts.node(where, name, data, len(children))
    return _Custom(children, said) if isinstance(said, Description) else Dict(children, said, _DICTS[name])
