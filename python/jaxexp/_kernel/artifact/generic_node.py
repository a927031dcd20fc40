"""`GenericNode`: a tree node that stands in for one whose class this process does not have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from jaxexp._errors import ExportError, cause
from jaxexp._errors import shown as escaped
from jaxexp._public import public

from .node import NAME, Description, description_of, shown
from .words import cut, dtype_and_shape


@public
class GenericNode:
    """A node of a tree whose class is not loaded, or cannot be made again from what the artifact says about it; or
    whose class was registered for serialization where the artifact was written, and is not registered here.

    It has the children of that node. Get them as from that node (``state.mu``, ``state["mu"]``), by their name as an
    item, or by their position. Attributes that are not children begin with an underscore, as in namedtuples. It is a
    pytree node itself, so it can be passed to the function again, and to the functions of `jax.tree`.

    Attributes:
        _class_name: the class's module and qualified name, such as ``"optax._src.transform.ScaleByAdamState"``; or the
            name under which it was registered for serialization.
        _names: the names of the children, in the order in which JAX flattens them: names of attributes, keys of items,
            or positions of children without a name. Of a registered class, only a namedtuple has names.
        _static: the class's auxiliary data as text; None if there is none. Of a registered class, it is bytes.

    Example:
        >>> state = load("init.jaxexp").call(params)  # in a process without optax
        >>> state[0]
        GenericNode(optax._src.transform.ScaleByAdamState, count=Array(0, dtype=int32), mu={'w': float32[3,4]}, ...)
        >>> state[0].mu["w"]
    """

    __slots__ = ("_children", "_description")

    _children: tuple[Any, ...]
    _description: Description

    def __init__(self, description: bytes, children: Iterable[Any], serialized_name: str = NAME) -> None:
        """Makes a node from an artifact's description of it, and its children, as pickles and copies do.

        Raises:
            ExportError: the bytes do not describe a node, or describe one with another number of children.
        """
        values = tuple(children)
        try:
            known = description_of(serialized_name, bytes(description), len(values))
        except ValueError as error:
            raise ExportError(f"a GenericNode is made of what an artifact says about it: {error}") from cause(error)
        if len(values) != len(known.keys):
            raise ExportError(f"a GenericNode of {known.class_name} has {len(known.keys)} children, not {len(values)}")
        _set(self, known, values)

    @property
    def _class_name(self) -> str:
        return self._description.class_name

    @property
    def _names(self) -> tuple[str | int, ...]:
        return self._description.names

    @property
    def _static(self) -> str | None:
        data = self._description.data
        return None if data is None else shown(data)

    def __getattr__(self, name: str) -> Any:
        # A copy that is being made has no description yet, and protocols ask for names that are not fields.
        if not name.startswith("__"):
            for key, child in zip(self._description.keys, self._children, strict=True):
                if key.kind == "attribute" and key.value == name:
                    return child
        raise AttributeError(f"{self._class_name} has no {name!r}; it has {self._shown_names()}", name=name, obj=self)

    def __getitem__(self, key: Any) -> Any:
        names = self._description.names
        if key in names:
            return self._children[names.index(key)]
        if isinstance(key, (int, slice)):
            return self._children[key]
        raise KeyError(f"{self._class_name} has no {key!r}; it has {self._shown_names()}")

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._children)

    def __dir__(self) -> list[str]:
        names = [key.value for key in self._description.keys if isinstance(key.value, str)]
        return [*super().__dir__(), *names]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a GenericNode is immutable: {name!r} cannot be set", name=name, obj=self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GenericNode):
            return NotImplemented
        return self._description == other._description and self._children == other._children

    def __hash__(self) -> int:
        return hash((self._description, self._children))

    def __reduce__(self) -> tuple[Any, ...]:
        return GenericNode, (self._description.encoded, self._children, self._description.serialized_name)

    def __repr__(self) -> str:
        """Shows types in place of arrays, and cuts long auxiliary data."""
        static = self._static
        parts = [self._class_name if static is None else f"{self._class_name}: {cut(static, _LONGEST_STATIC)}"]
        for key, child in zip(self._description.keys, self._children, strict=True):
            value = _shown(child)
            parts.append(f"{key.value}={value}" if key.kind == "attribute" else f"{key}: {value}")
        return escaped(f"GenericNode({', '.join(parts)})")

    def _shown_names(self) -> str:
        return ", ".join(map(str, self._names[:20])) or "no children"


_LONGEST_STATIC = 100


def _shown(value: Any) -> str:
    """The repr of a child; the dtype and shape of an array that is not a scalar."""
    if type(value) is dict:
        return f"{{{', '.join(f'{key!r}: {_shown(child)}' for key, child in value.items())}}}"
    if type(value) is list:
        return f"[{', '.join(map(_shown, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_shown, value))}{',' * (len(value) == 1)})"
    shape = getattr(value, "shape", None)
    if shape and hasattr(value, "dtype"):
        return dtype_and_shape(value.dtype, shape)
    return repr(value)


def generic_node(description: Description, children: Iterable[Any]) -> GenericNode:
    """A node of a description that is known to have this number of children."""
    made = GenericNode.__new__(GenericNode)
    _set(made, description, tuple(children))
    return made


def _set(node: GenericNode, description: Description, children: tuple[Any, ...]) -> None:
    object.__setattr__(node, "_description", description)
    object.__setattr__(node, "_children", children)
