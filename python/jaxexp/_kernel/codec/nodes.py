"""Pytree nodes as bytes: of classes that are registered for serialization, and of all others.

jaxexp and `jax.export` know each other's registrations, in both directions. The node of a class that is not registered
is described by its name (`_kernel/artifact/node.py`). The reader takes the class if it is loaded. If not, or if its
auxiliary data is not only data, it takes a `GenericNode`. It also does so where a class was registered for the writer
and is not registered here.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import json
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import (
    DeserializationError,
    ExportError,
    SerializationError,
    SerializationTypeError,
    UnsupportedSerializationError,
    cause,
)
from jaxexp._kernel.artifact.node import (
    LARGEST_NUMBER,
    MAX_DEPTH,
    MAX_DIGITS,
    NAME,
    Auxdata,
    Description,
    Key,
    RegisteredDescription,
    all_strings,
    canonical,
    dict_from_children,
    generic_node,
    is_printable,
    keys_from_bytes,
    keys_of_jax,
    keys_to_bytes,
    most_of_one_hash,
    ordered_dict_from_children,
)
from jaxexp._kernel.artifact.node import GenericNode as GenericNode
from jaxexp._kernel.artifact.words import is_text
from jaxexp._public import public

from . import classes, dtypes, treedefs

if TYPE_CHECKING:
    from jaxexp._native import Artifact

T = TypeVar("T", bound=type)

# --- the types that are registered for serialization: with jaxexp, or with `jax.export` -------------------------------


class RegisteredNode(NamedTuple):
    """How one pytree node type becomes bytes, and is read again."""

    nodetype: type
    serialized_name: str
    serialize_auxdata: Callable[[Any], bytes]
    deserialize_auxdata: Callable[[bytes], Any]
    from_children: Callable[[Any, Sequence[Any]], Any]
    parse_once: bool = False  # whether equal auxiliary data in a tree may become one object


by_type: dict[type, RegisteredNode] = {}
by_name: dict[str, RegisteredNode] = {}


def _functions_of(serialized_name: str) -> tuple[Callable[[bytes], Any], Callable[..., Any], bool] | None:
    """What makes a node again, of the type that is registered under a name, and its `parse_once`; None for no type."""
    if (node := by_name.get(serialized_name)) is not None:
        return node.deserialize_auxdata, node.from_children, node.parse_once
    entry = _jax.jax_exporter.deserialization_registry.get(serialized_name)
    return None if entry is None else (*entry[1:], False)


def _is_registered(nodetype: type) -> bool:
    return nodetype in by_type or _jax.jax_exporter.serialization_registry.get(nodetype) is not None


def _serialized(nodetype: type, auxdata: Any) -> tuple[str, bytes] | None:
    """The serialized name of a type, and auxiliary data of a node as bytes; None for a type without registration."""
    if (node := by_type.get(nodetype)) is not None:
        return _serialized_by(*node[:3], auxdata)
    entry = _jax.jax_exporter.serialization_registry.get(nodetype)
    return None if entry is None else _serialized_by(nodetype, *entry, auxdata)


def _serialized_by(
    nodetype: type, name: str, serialize_auxdata: Callable[[Any], bytes], auxdata: Any
) -> tuple[str, bytes]:
    made = serialize_auxdata(auxdata)
    if not isinstance(made, (bytes, bytearray)):
        raise SerializationError(
            f"serialize_auxdata of {nodetype} ({name!r}) must return bytes; it returned {type(made)}"
        )
    return name, bytes(made)


def _remade(serialized_name: str, auxdata: bytes, arity: int) -> tuple[type, Any] | None:
    """The type that is registered under a name, and the auxiliary data of a node of it in JAX.

    None if there is no such type, if its functions refuse the data, or if it has its children in another order.
    """
    if (functions := _functions_of(serialized_name)) is None:
        return None
    deserialize_auxdata, from_children, _ = functions
    placeholders = [float(i) for i in range(arity)]
    try:
        node = from_children(deserialize_auxdata(auxdata), placeholders)
        leaves: list[Any]
        treedef: Any
        leaves, treedef = jax.tree_util.tree_flatten(node)
        in_order = leaves == placeholders and treedef.num_nodes == arity + 1
    except MemoryError:
        raise
    except Exception:
        return None
    return treedef.node_data() if in_order else None


# --- auxiliary data of pytree nodes as JSON, and back -----------------------------------------------------------------
# A value that is not data, such as a function, becomes text to compare and to show. It is never made again from that
# text. docs/formats/artifact.md has the encoding; `_kernel/artifact/node.py` checks it.


_LARGEST_ARRAY = 1 << 16  # bytes
_DTYPES: dict[str, Any] = {dtype.name: dtype for dtype in dtypes.DTYPES if isinstance(dtype, np.dtype)}


class NotDataError(Exception):
    """A value that cannot be made again here: it names something that this process lacks, or is known as text only."""


def to_json(value: Any) -> Any:
    """A value as JSON: as data if that is possible, else as text."""
    return _to_json(value, 0)


def _to_json(value: Any, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if abs(value) < LARGEST_NUMBER else ["int", hex(value)]
    if depth < MAX_DEPTH - 1:
        if (make := _MAKE.get(kind)) is not None:
            return make(value, depth + 1)
        stored = _of_other_type(value, depth + 1)
        if stored is not None:
            return stored
    return ["opaque", _type_name(value), text_of(value)]


def _parts(tag: str) -> Callable[[Any, int], Any]:
    return lambda value, depth: [tag, *(_to_json(part, depth) for part in value)]


def _set(tag: str) -> Callable[[Any, int], Any]:
    return lambda value, depth: [tag, *sorted((_to_json(part, depth) for part in value), key=json.dumps)]


_MAKE: dict[type, Callable[[Any, int], Any]] = {
    float: lambda value, _: ["float", value.hex()],
    complex: lambda value, _: ["complex", value.real.hex(), value.imag.hex()],
    bytes: lambda value, _: ["bytes", value.hex()],
    tuple: _parts("tuple"),
    list: _parts("list"),
    set: _set("set"),
    frozenset: _set("frozenset"),
    dict: lambda value, depth: ["dict", *([_to_json(k, depth), _to_json(v, depth)] for k, v in value.items())],
    slice: lambda value, depth: ["slice", *(_to_json(part, depth) for part in (value.start, value.stop, value.step))],
    range: lambda value, depth: ["range", *(_to_json(part, depth) for part in (value.start, value.stop, value.step))],
    types.EllipsisType: lambda value, _: ["ellipsis"],
}


def _of_other_type(value: Any, depth: int) -> Any:
    """The JSON of a value whose type is not in `_MAKE`; None if only text can describe it."""
    if isinstance(value, type):
        name = classes.name_of(value)
        return ["type", *name] if classes.data_class(*name) is value else None
    if isinstance(value, np.dtype):
        return ["dtype", value.name] if _DTYPES.get(value.name) == value else None
    if type(value) is np.ndarray:
        is_stored = value.dtype.name in _DTYPES and value.nbytes <= _LARGEST_ARRAY
        return ["array", value.dtype.name, list(value.shape), value.tobytes().hex()] if is_stored else None
    if isinstance(value, np.generic) and value.dtype.name in _DTYPES:
        return ["scalar", value.dtype.name, value.tobytes().hex()]
    if isinstance(value, enum.Enum):
        member = (*classes.name_of(type(value)), value.name)
        return ["enum", *member] if classes.enum_member(*member) is value else None
    if isinstance(value, tuple) and (fields := classes.fields_of_namedtuple(type(value))) is not None:
        if len(fields) != len(value):
            return None
        return ["namedtuple", *classes.name_of(type(value)), list(fields), *(_to_json(part, depth) for part in value)]
    if (constant := classes.name_of_constant(value)) is not None:
        return ["constant", *constant]
    if (values := values_of(value)) is None:
        return None
    parts = [_to_json(part, depth) for part in values.values()]
    # Arrays compare element by element, so a dataclass with arrays can only be compared by its text.
    return None if _has_array(parts) else ["dataclass", *classes.name_of(type(value)), list(values), *parts]


def _has_array(stored: Any) -> bool:
    return isinstance(stored, list) and (_is_array(stored) or any(map(_has_array, stored)))


def _is_array(stored: list[Any]) -> bool:
    return len(stored) == 4 and stored[0] == "array" and isinstance(stored[2], list)  # not a list of names


def equals_itself(stored: Any) -> bool:
    """Whether two values that are made of the same JSON are equal: with NaN they are not, and arrays compare element by
    element."""
    if not isinstance(stored, list):
        return True
    if stored[:1] == ["scalar"]:
        try:
            scalar = from_json(stored)
        except NotDataError:
            return True
        return bool(scalar == scalar)
    if _is_array(stored):
        return False
    if stored[:1] in (["float"], ["complex"]):
        return "nan" not in stored
    return all(map(equals_itself, stored))  # also the first one: the item of a dict begins with its key


def from_json(stored: Any) -> Any:
    """The inverse of `to_json`, for JSON that `_kernel/artifact/node.py` has checked. A NotDataError if a part cannot
    be made here, or would take too long to make or to compare.
    """
    return _Reading().value(stored)


class _Reading:
    def __init__(self) -> None:
        self._most = 1  # of one hash, in the sets that were made so far

    def value(self, stored: Any) -> Any:
        if not isinstance(stored, list):
            return stored
        if stored[0] == "opaque":
            raise NotDataError(stored[2])
        try:
            return _FROM[stored[0]](self, stored[1:])
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise NotDataError(str(error)) from cause(error)

    def values(self, stored: list[Any]) -> list[Any]:
        return list(map(self.value, stored))

    def hashable(self, stored: list[Any]) -> list[Any]:
        """Values that a set or a dict may hash."""
        outside, self._most = self._most, 1
        made = self.values(stored)
        self._most = max(outside, most_of_one_hash(made, inside=self._most))
        return made


def _found(what: Any) -> Any:
    if what is None:
        raise NotDataError("a name that this process does not have")
    return what


def _int(text: str) -> int:
    number = int(text, 16)
    if not is_printable(number):
        raise NotDataError(f"an integer of more than {MAX_DIGITS} digits, which Python does not print")
    return number


def _array(rest: list[Any]) -> Any:
    name, shape, data = rest
    return np.frombuffer(bytes.fromhex(data), _found(_DTYPES.get(name))).reshape(shape)


def _dict(reading: _Reading, items: list[Any]) -> dict[Any, Any]:
    keys = reading.hashable([key for key, _ in items])
    return dict(zip(keys, reading.values([part for _, part in items]), strict=True))


def _namedtuple(reading: _Reading, rest: list[Any]) -> Any:
    module, qualname, fields, *parts = rest
    return tuple.__new__(_found(classes.namedtuple_class(module, qualname, fields)), reading.values(parts))


def _dataclass(reading: _Reading, rest: list[Any]) -> Any:
    module, qualname, fields, *parts = rest
    cls = classes.loaded_class(module, qualname)
    if cls is None or _fields(cls) != tuple(fields):
        raise NotDataError("a frozen dataclass that this process does not have in this form")
    made: Any = object.__new__(cls)
    for name, value in zip(fields, reading.values(parts), strict=True):
        object.__setattr__(made, name, value)
    return made


_FROM: dict[str, Callable[[_Reading, list[Any]], Any]] = {
    "int": lambda _, rest: _int(rest[0]),
    "float": lambda _, rest: float.fromhex(rest[0]),
    "complex": lambda _, rest: complex(float.fromhex(rest[0]), float.fromhex(rest[1])),
    "bytes": lambda _, rest: bytes.fromhex(rest[0]),
    "tuple": lambda reading, rest: tuple(reading.values(rest)),
    "list": lambda reading, rest: reading.values(rest),
    "set": lambda reading, rest: set(reading.hashable(rest)),
    "frozenset": lambda reading, rest: frozenset(reading.hashable(rest)),
    "dict": _dict,
    "slice": lambda reading, rest: slice(*reading.values(rest)),
    "range": lambda reading, rest: range(*reading.values(rest)),
    "ellipsis": lambda _, rest: ...,
    "array": lambda _, rest: _array(rest),
    "scalar": lambda _, rest: _array([rest[0], [], rest[1]])[()],
    "dtype": lambda _, rest: _found(_DTYPES.get(rest[0])),
    "type": lambda _, rest: _found(classes.data_class(*rest)),
    "enum": lambda _, rest: _found(classes.enum_member(*rest)),
    "constant": lambda _, rest: _found(classes.constant(*rest)),
    "namedtuple": _namedtuple,
    "dataclass": _dataclass,
}


# --- what is not data -------------------------------------------------------------------------------------------------

_LONGEST_TEXT = 1 << 11
_DEEPEST_TEXT = 8
# Parts that differ from process to process: addresses in memory, and colors for a terminal.
_VOLATILE = re.compile(r" at 0x[0-9a-fA-F]+|\x1b\[[0-9;]*m")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type)
_PLAIN = (str, bytes, bool, int, float, complex, type(None))


def text_of(value: Any) -> str:
    """A text that is the same in every process that has the same value, as far as its repr allows."""
    text = _text(value, 0)
    if len(text) <= _LONGEST_TEXT:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{text[:_LONGEST_TEXT]}... ({len(text)} characters, SHA-256 {digest})"


def _type_name(value: Any) -> str:
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)) or hasattr(value, "__wrapped__"):
        return "function"
    return ".".join(classes.name_of(type(value)))


def _text(value: Any, depth: int, has_method: bool = False) -> str:
    """`text_of` at a depth. An object that `has_method` is named by its class if it only has a repr: methods are code,
    which has a name and no paths.
    """
    if depth == _DEEPEST_TEXT:
        return "..."
    deeper = functools.partial(_text, depth=depth + 1)
    if isinstance(value, types.BuiltinMethodType) and not isinstance(value.__self__, (types.ModuleType, type(None))):
        return f"{value.__qualname__} of {deeper(value.__self__, has_method=True)}"
    if isinstance(value, _FUNCTIONS) or (hasattr(value, "__wrapped__") and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.MethodType):
        return f"{deeper(value.__func__)} of {deeper(value.__self__, has_method=True)}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__!r}"  # its repr has the path, and so has the next one, with a line
    if isinstance(value, types.CodeType):
        return f"code of {value.co_qualname}"
    if isinstance(value, functools.partial):
        parts = [*map(deeper, value.args), *(f"{key}={deeper(part)}" for key, part in value.keywords.items())]
        return f"partial({', '.join([deeper(value.func), *parts])})"
    name = type(value).__qualname__
    if isinstance(value, (np.ndarray, jax.Array)) and (array := np.asarray(value)).dtype.hasobject is False:
        digest = hashlib.sha256(array.tobytes()).hexdigest()  # many large arrays have the same repr
        return f"{name}({array.dtype}{list(array.shape)}, SHA-256 {digest})"
    fields: Any
    if isinstance(value, tuple) and (fields := getattr(value, "_fields", None)) is not None:
        parts = [f"{field}={deeper(part)}" for field, part in zip(fields, value, strict=False)]
        return f"{name}({', '.join(parts)})"
    if isinstance(value, (tuple, list)):
        return f"{name}({', '.join(map(deeper, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{name}({', '.join(sorted(map(deeper, value)))})"
    if isinstance(value, Mapping):
        return f"{name}({', '.join(sorted(f'{deeper(key)}: {deeper(part)}' for key, part in value.items()))})"
    if dataclasses.is_dataclass(value):
        fields = (field.name for field in dataclasses.fields(value))
        return f"{name}({', '.join(f'{field}={deeper(getattr(value, field, None))}' for field in fields)})"
    if has_method and type(value) not in _PLAIN:
        return ".".join(classes.name_of(type(value)))
    return _VOLATILE.sub("", repr(value))


# Methods that run when an instance is made, read or dropped. `dataclass` defines none of them, except the ones that
# refuse to set and delete attributes.
_NOT_DEFINED = ("__new__", "__getattribute__", "__getattr__", "__del__", "__class__")
_GENERATED = ("__eq__", "__hash__")


def values_of(instance: Any) -> dict[str, Any] | None:
    """The fields of an instance, with their values; None if it has more than that, or is not such a dataclass."""
    cls = type(instance)
    fields = _fields(cls)
    if fields is None or classes.loaded_class(*classes.name_of(cls)) is not cls:
        return None
    namespaces = classes.namespaces(cls)
    for name in getattr(instance, "__dict__", ()):
        if name not in fields and type(_defined(namespaces, name)) is not functools.cached_property:
            return None  # `__post_init__` has set it
    defined = (item for namespace in namespaces for item in namespace.items())
    if any(name not in fields and _is_set(instance, slot) for name, slot in defined):
        return None  # a slot of a base class
    try:
        return {name: getattr(instance, name) for name in fields}
    except AttributeError:  # a field that `__init__` does not set
        return None


def _fields(cls: type) -> tuple[str, ...] | None:
    """The fields of a frozen dataclass whose instances have nothing else; None for another class."""
    if type(cls) is not type:
        return None
    namespaces = classes.namespaces(cls)
    own = namespaces[0]
    params = own.get("__dataclass_params__")
    if params is None or type(own.get("__dataclass_fields__")) is not dict or not (params.frozen and params.eq):
        return None
    if any(name in namespace for name in _NOT_DEFINED for namespace in namespaces[:-1]):
        return None
    for function in map(own.get, _GENERATED):  # `dataclass` generates them from text
        if type(function) is not types.FunctionType or function.__code__.co_filename != "<string>":
            return None
    try:
        object.__new__(cls)
    except TypeError:  # it also is an exception, a dict or the like
        return None
    fields = tuple(field.name for field in dataclasses.fields(cls))
    return fields if all(_is_plain(_defined(namespaces, name)) for name in fields) else None


_absent = object()


def _defined(namespaces: Sequence[Mapping[str, Any]], name: str) -> Any:
    return next((namespace[name] for namespace in namespaces if name in namespace), _absent)


def _is_set(instance: Any, slot: Any) -> bool:
    """Whether this is a slot, and the instance has a value in it."""
    if type(slot) is not types.MemberDescriptorType:
        return False
    try:
        slot.__get__(instance)
    except AttributeError:
        return False
    return True


def _is_plain(found: Any) -> bool:
    """Whether a class leaves a field to the instance: under its name is only a slot, or a default value."""
    if found is _absent or type(found) is types.MemberDescriptorType:
        return True
    return not any("__get__" in n or "__set__" in n for n in classes.namespaces(type(found)))


# --- `GenericNode` as a pytree node of JAX ----------------------------------------------------------------------------


_KEYS: dict[str, Any] = {
    "attribute": jax.tree_util.GetAttrKey,
    "item": jax.tree_util.DictKey,
    "position": jax.tree_util.FlattenedIndexKey,
}


jax.tree_util.register_pytree_with_keys(
    GenericNode,
    lambda node: (
        [
            (_KEYS[key.kind](key.value), child)
            for key, child in zip(node._description.keys, node._children, strict=True)
        ],
        node._description,
    ),
    generic_node,
    lambda node: (node._children, node._description),
)


# --- writing ----------------------------------------------------------------------------------------------------------


def describe(nodetype: type, aux: Any, arity: int) -> bytes:
    """What an artifact says about a node: its class, the keys of its children, its auxiliary data. A SerializationError
    if JAX takes a tuple class for a namedtuple whose values do not match its fields, or if a name cannot be stored.
    """
    known = _known.setdefault(nodetype, {})
    is_registered = classes.is_registered(nodetype)
    data = to_json(aux) if is_registered else None
    key = json.dumps(data), arity, is_registered
    if (found := known.get(key)) is None:
        fields = classes.fields_of_namedtuple(nodetype) or ()
        if not is_registered and not len(fields) == len({*fields}) == arity:
            raise SerializationError(
                f"a tree contains {nodetype} with {arity} values, which is not a namedtuple of as many fields "
                f"({fields}): register it with jax.tree_util.register_pytree_node"
            )
        keys = _keys(nodetype, aux, arity) if is_registered else [Key("attribute", field) for field in fields]
        if len(known) == _MOST_KNOWN:
            known.clear()
        found = canonical(*classes.name_of(nodetype), not is_registered, keys, data)
        try:
            Description(found)
        except ValueError as error:
            raise SerializationError(
                f"a tree contains {nodetype}, which an artifact cannot describe: {error}"
            ) from cause(error)
        known[key] = found
    return found


# Descriptions by class, data and number of children: asking a class for its keys takes long.
_known: weakref.WeakKeyDictionary[type, dict[tuple[str, int, bool], bytes]] = weakref.WeakKeyDictionary()
_MOST_KNOWN = 64


def _keys(nodetype: type, aux: Any, arity: int) -> list[Key]:
    positions = [Key("position", position) for position in range(arity)]
    if arity == 0:
        return []
    if (fields := classes.fields_of_dataclass(nodetype)) is not None:
        return [Key("attribute", field) for field in fields[0]]
    children = [object() for _ in range(arity)]
    try:
        # A class tells the keys of its children only for an instance.
        instance = classes.unflatten_function(nodetype)(aux, children)
        found, _ = _jax.tree_registry.flatten_one_level_with_keys(instance)
        pairs = list(found)
    except Exception:  # a class that wants arrays as children
        return positions
    if len(pairs) != arity or any(child is not given for (_, child), given in zip(pairs, children, strict=True)):
        return positions
    keys = [_key(key, position) for position, (key, _) in enumerate(pairs)]
    if all(key.kind == "position" for key in keys):
        # The class was registered without keys. The names of its attributes serve as well.
        names = {id(value): name for name, value in getattr(instance, "__dict__", {}).items()}
        keys = [Key("attribute", names[id(child)]) for child in children if id(child) in names]
    return keys if len({key.value for key in keys}) == arity else positions


def _key(key: Any, position: int) -> Key:
    position_only = Key("position", position)
    if isinstance(key, jax.tree_util.GetAttrKey):
        return Key("attribute", key.name) if isinstance(key.name, str) and is_text(key.name) else position_only
    value = getattr(key, "key", None) if isinstance(key, jax.tree_util.DictKey) else getattr(key, "idx", None)
    if type(value) is str or (type(value) is int and is_printable(value)):
        return Key("item", value)
    return position_only


# --- reading ----------------------------------------------------------------------------------------------------------


def _build(description: Description, children: Sequence[Any]) -> GenericNode:
    """A node while a tree is read. `resolved` replaces these by nodes of loaded classes."""
    if len(children) != len(description.keys):
        raise ValueError(f"{description.class_name:.100} has {len(description.keys)} children")
    return generic_node(description, children)


def resolved(treedef: Any) -> Any:
    """A tree structure in which nodes of loaded classes replace generic nodes, where their class is loaded."""
    return treedefs.replace(treedef, GenericNode, lambda description, arity: node_data(description))


# The format stores these in another way, and JAX believes what a tree structure says about them.
_NOT_DESCRIBED = (*treedefs.BUILTIN, GenericNode)


def node_data(description: Description) -> tuple[type, Any] | None:
    """The loaded class of a description, and its auxiliary data. None if it is not loaded, or has other fields, or if
    the auxiliary data cannot be made, compared or printed here: trees with NaN in them would never be equal, and JAX
    cannot print half of a character.
    """
    data = description.data
    is_printed = not isinstance(data, str) or is_text(data)  # texts inside of others are printed with escapes
    return made(description) if is_printed and equals_itself(data) else None


def made(description: Description) -> tuple[type, Any] | None:
    """The same for a result, which is not compared."""
    if isinstance(description, RegisteredDescription):
        return _remade(description.serialized_name, description.encoded, len(description.keys))
    cls = None if description.is_opaque else _loaded_class(description)
    if cls is None or description.is_namedtuple:
        return None if cls is None else (cls, None)
    try:
        aux = from_json(description.data)
    except NotDataError:
        return None
    return (cls, aux) if _agrees(cls, description, aux) else None


def _loaded_class(description: Description) -> type | None:
    """The loaded class that a description names, if a node of it can be made here."""
    module, qualname = description.module, description.qualname
    if description.is_namedtuple:
        cls = classes.namedtuple_class(module, qualname, [str(name) for name in description.names])
        return None if cls is None or classes.is_registered(cls) else cls
    cls = classes.registered_class(module, qualname)
    return None if any(cls is kind for kind in _NOT_DESCRIBED) else cls


def _agrees(cls: type, description: Description, aux: Any) -> bool:
    """Whether a registered class has the fields that it had when the artifact was written, as far as it is known."""
    names, attributes = description.names, all(key.kind == "attribute" for key in description.keys)
    if (fields := classes.fields_of_dataclass(cls)) is not None:
        # JAX pairs the two lists by position, and does not compare their lengths.
        return attributes and names == fields[0] and type(aux) is tuple and len(aux) == len(fields[1])
    declared = classes.declared_fields(cls)
    if not names or not attributes or declared is None:
        return True
    in_order = tuple(field for field in declared if field in names)
    return names == in_order or names == tuple(sorted(in_order))


def disagreement(description: Description, cls: type, aux: Any) -> str | None:
    """In which children a loaded class differs from the artifact; None if they are the same.

    This makes an instance of the class. So it belongs to a call, which makes instances anyway.
    """
    if description.is_namedtuple or isinstance(description, RegisteredDescription):
        return None
    found = _keys(cls, aux, len(description.keys))
    if tuple(found) == description.keys or not any(key.kind != "position" for key in found):
        return None
    theirs, ours = (", ".join(str(key.value) for key in keys) for keys in (description.keys, found))
    return f"{description.class_name} has the children {ours} in this process, and {theirs} in the artifact"


def registered_as(description: Description, node: treedefs.Node) -> Description | None:
    """What an artifact says about a node whose type is registered under the name in another description; None if it is
    not.
    """
    if not isinstance(description, RegisteredDescription) or node.type is None:
        return None
    name, encoded = _serialized(node.type, node.data) or ("", b"")
    return RegisteredDescription(name, Auxdata(encoded), node.arity) if name == description.serialized_name else None


# --- for jax.export ---------------------------------------------------------------------------------------------------

# jax.export reads the bytes again for each node.
_read_again = functools.lru_cache(maxsize=16)(Description)


def _instance(description: Description, children: Sequence[Any]) -> Any:
    """An instance of the loaded class, for `jax.export` to take its structure; else a generic node."""
    node = _build(description, children)
    if (found := made(description)) is None:
        return node
    cls, aux = found
    if description.is_namedtuple:
        return tuple.__new__(cls, children)
    try:
        return classes.unflatten_function(cls)(aux, children)
    except Exception:  # the class wants other children than abstract values
        return node


# --- registration -----------------------------------------------------------------------------------------------------


@public
def register_pytree_node_serialization(
    nodetype: T,
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
) -> T:
    """Makes trees that contain `nodetype` serializable, under a name of your choice.

    The type must already be a pytree node (see `jax.tree_util.register_pytree_node`). jaxexp and `jax.export` share
    registrations, but you may also register a type with both.

    Args:
        nodetype: the class of the nodes.
        serialized_name: the name of the class in the bytes. Reader and writer must use the same name, so choose one
            that does not change when code moves, such as ``"mypackage.State"``.
        serialize_auxdata: converts a node's auxiliary data (the second result of its flatten function) to bytes.
        deserialize_auxdata: converts these bytes to auxiliary data for `from_children`.
        from_children: called with (auxiliary data, children); returns an instance of `nodetype`. Only its tree
            structure is used. The default is the unflatten function that the type was registered with in JAX.

    Returns:
        `nodetype`, so that you can use a `functools.partial` of this function as a class decorator.

    Raises:
        ExportError: the type or the name was registered before, or `from_children` is left out for a type that is
            not registered as a pytree node.

    Example:
        >>> register_pytree_node_serialization(
        ...     State,
        ...     serialized_name="mypackage.State",
        ...     serialize_auxdata=lambda auxdata: json.dumps(auxdata).encode(),
        ...     deserialize_auxdata=json.loads,
        ... )
    """
    if (previous := by_type.get(nodetype)) is not None:
        raise ExportError(
            f"{nodetype} is registered for serialization already, as {previous.serialized_name!r}"
            + ("" if previous.serialized_name == serialized_name else f"; it cannot also be {serialized_name!r}")
        )
    jax_entry = _jax.jax_exporter.deserialization_registry.get(serialized_name, [None])
    owner = by_name[serialized_name].nodetype if serialized_name in by_name else jax_entry[0]
    if owner not in (None, nodetype):
        raise ExportError(f"the serialized name {serialized_name!r} is taken by {owner}; {nodetype} needs another name")
    make: Any = from_children
    if make is None:
        if nodetype not in _jax.registered_pytree_nodes:
            raise ExportError(
                f"{nodetype} is not a registered pytree node, so there is no unflatten function to rebuild it with: "
                "call jax.tree_util.register_pytree_node first, or pass from_children"
            )
        make = _jax.registered_pytree_nodes[nodetype].from_iter
    node = RegisteredNode(nodetype, serialized_name, serialize_auxdata, deserialize_auxdata, make)
    by_type[nodetype] = by_name[serialized_name] = node
    for registry, key, entry in (
        ("serialization_registry", nodetype, (serialized_name, serialize_auxdata)),
        ("deserialization_registry", serialized_name, (nodetype, deserialize_auxdata, make)),
    ):
        table = getattr(_jax.jax_exporter, registry)
        if not isinstance(table, SharedRegistry):
            table = SharedRegistry(table)
            setattr(_jax.jax_exporter, registry, table)
        table.lend(nodetype, key, entry)
    return nodetype


@public
def register_namedtuple_serialization(nodetype: T, *, serialized_name: str) -> T:
    """Makes trees that contain a namedtuple class serializable. The artifact stores its field names.

    Namedtuples are pytree nodes in JAX, so they need no other registration.

    Args:
        nodetype: a class made by `collections.namedtuple` or `typing.NamedTuple`. The class that is registered under
            this name when the artifact is read must have the same fields, in any order.
        serialized_name: the name of the class in the bytes, as in `register_pytree_node_serialization`.

    Returns:
        `nodetype`.

    Raises:
        ExportError: `nodetype` is not a namedtuple class, or the type or the name was registered before.
    """
    fields = getattr(nodetype, "_fields", None)
    if not (issubclass(nodetype, tuple) and isinstance(fields, tuple) and all(isinstance(f, str) for f in fields)):
        raise ExportError(
            f"{nodetype} is not a namedtuple class; use register_pytree_node_serialization for other pytree nodes"
        )

    def from_children(stored_fields: Sequence[str], children: Sequence[Any]) -> Any:
        if sorted(stored_fields) != sorted(fields) or len(stored_fields) != len(children):
            raise ExportError(
                f"{nodetype} has the fields {list(fields)}, but was serialized with {list(stored_fields)} "
                f"and {len(children)} values"
            )
        make: Any = nodetype
        return make(**dict(zip(stored_fields, children, strict=True)))

    return register_pytree_node_serialization(
        nodetype,
        serialized_name=serialized_name,
        serialize_auxdata=lambda _: json.dumps(fields).encode(),
        deserialize_auxdata=json.loads,
        from_children=from_children,
    )


by_type[collections.OrderedDict] = by_name["collections.OrderedDict"] = RegisteredNode(
    collections.OrderedDict,
    "collections.OrderedDict",
    lambda keys: json.dumps(tuple(keys)).encode(),  # only strings
    keys_of_jax,
    ordered_dict_from_children,
    parse_once=True,
)


def _own(node: RegisteredNode, *for_jax_export: Callable[..., Any]) -> RegisteredNode:
    """A node that only jaxexp writes. `jax.export` can read it if jaxexp is imported, with other functions if given."""
    by_name[node.serialized_name] = node
    jax_by_name: dict[str, Any] = _jax.jax_exporter.deserialization_registry
    read = for_jax_export or (node.deserialize_auxdata, node.from_children)
    jax_by_name[node.serialized_name] = (node.nodetype, *read)
    return node


# Dicts with keys that are not strings. `jax.export` raises errors of these types for such keys.
_KEYED = {
    nodetype: _own(
        RegisteredNode(
            nodetype,
            f"jaxexp.{nodetype.__name__}",
            functools.partial(keys_to_bytes, refusal=refusal),
            keys_from_bytes,
            from_children,
            parse_once=True,
        )
    )
    for nodetype, refusal, from_children in (
        (dict, SerializationTypeError, dict_from_children),
        (collections.OrderedDict, UnsupportedSerializationError, ordered_dict_from_children),
    )
}

# Nodes of classes that are not registered, read as generic nodes.
by_type[GenericNode] = _own(
    RegisteredNode(GenericNode, NAME, lambda node: node.encoded, Description, _build, parse_once=True),
    _read_again,
    _instance,
)

# Without jaxexp, jax.export knows none of these.
OWN_NAMES = frozenset({NAME, *(node.serialized_name for node in _KEYED.values())})


def custom_node_name(nodetype: type, auxdata: Any, arity: int) -> tuple[str, bytes]:
    """The serialized name and auxiliary data of a pytree node: of a registered type, or a dict with keys that are not
    strings, whose auxiliary data are its keys. Nodes of all other types share one name; their auxiliary data describes
    them.
    """
    if nodetype is GenericNode:
        return auxdata.serialized_name, auxdata.encoded
    if nodetype in _KEYED and not all_strings(auxdata):
        return _serialized_by(*_KEYED[nodetype][:3], auxdata)
    found = _serialized(nodetype, auxdata)
    return (NAME, describe(nodetype, auxdata, arity)) if found is None else found


def unregistered(treedefs_: Iterable[Any]) -> dict[str, tuple[type, Any]]:
    """The node types in trees that are not registered for serialization, each with the auxiliary data of one node.

    The keys are the names of the classes; a generic node counts as the class that it stands for. If that class was
    registered where the artifact was written, it is left out: it is written again under its serialized name.
    """
    found: dict[str, tuple[type, Any]] = {}
    for node in (node for treedef in treedefs_ for node in treedefs.nodes_of(treedef)):
        if node.type is GenericNode:
            if node.data.serialized_name == NAME:
                found.setdefault(node.data.class_name, (GenericNode, node.data))
        elif node.type is not None and node.type not in treedefs.BUILTIN and not _is_registered(node.type):
            found.setdefault(".".join(classes.name_of(node.type)), (node.type, node.data))
    return found


def unregistered_in(artifact: Artifact) -> set[str]:
    """The names of the classes in an artifact's trees that are not registered for serialization. Nothing is made of
    their auxiliary data."""
    found: set[str] = set()

    def read(auxdata: bytes, name: str | None) -> None:
        if name == NAME:
            with contextlib.suppress(ValueError):  # the artifact cannot be read
                description = Description(auxdata)
                if (cls := _loaded_class(description)) is None or not _is_registered(cls):
                    found.add(description.class_name)

    facts: dict[str, Any] = artifact.facts(read)
    names = facts["custom_nodes"] - OWN_NAMES
    return found | {name for name in names if _functions_of(name) is None}


def generic(treedefs_: Iterable[Any]) -> set[str]:
    """The names of the classes that trees have generic nodes for."""
    found = (node for treedef in treedefs_ for node in treedefs.nodes_of(treedef))
    return {node.data.class_name for node in found if node.type is GenericNode}


def has_other_keys(treedefs_: Iterable[Any]) -> bool:
    """Whether trees have dicts with keys that are not strings, which have no place in the format of `jax.export`."""
    found = (node for treedef in treedefs_ for node in treedefs.nodes_of(treedef))
    return any(node.type in _KEYED and not all_strings(node.data) for node in found)


def registration_line(name: str, nodetype: type, auxdata: Any) -> str:
    """The line of Python that registers an unregistered type; a hint if the name is not "module.Class"."""
    if nodetype is GenericNode:
        return f"{name}: its class is not loaded here; import it, register it, and read the artifact again"
    module, qualname = classes.name_of(nodetype)
    outer, _, rest = qualname.partition(".")
    start = f"from {module} import {outer}; " if module != "__main__" and "<locals>" not in qualname else ""
    cls = f"{outer}.{rest}" if rest else outer
    if classes.fields_of_namedtuple(nodetype) is not None and not classes.is_registered(nodetype):
        return f"{start}jaxexp.register_namedtuple_serialization({cls}, serialized_name={name!r})"
    to_bytes, from_bytes = ("lambda _: b''", "lambda _: None") if auxdata is None else ("to_bytes", "from_bytes")
    comment = "" if auxdata is None else f"  # its auxiliary data is of {type(auxdata)}"
    return (
        f"{start}jaxexp.register_pytree_node_serialization({cls}, serialized_name={name!r}, "
        f"serialize_auxdata={to_bytes}, deserialize_auxdata={from_bytes}){comment}"
    )


def build_custom_node(serialized_name: str, auxdata: bytes, children: list[Any], parsed: dict[Any, Any]) -> Any:
    """Makes an instance of the pytree node type with this serialized name; a generic node if no type has it. In one
    tree, equal bytes may be the same object; `parsed` keeps what they became, for types that may share it.
    """
    if (functions := _functions_of(serialized_name)) is None:
        return _generic(serialized_name, auxdata, children, parsed)
    deserialize_auxdata, from_children, parse_once = functions
    try:
        if not parse_once:
            return from_children(deserialize_auxdata(auxdata), children)
        key = (serialized_name, id(auxdata))
        if key not in parsed:
            parsed[key] = deserialize_auxdata(auxdata)
        return from_children(parsed[key], children)
    except MemoryError:
        raise
    except Exception as error:
        raise DeserializationError(
            "",
            f"auxiliary data and children that rebuild the pytree node {serialized_name!r}",
            f"{len(auxdata)} bytes and {len(children)} children, on which it raised {type(error).__name__}: {error}",
        ) from cause(error)


def _generic(name: str, auxdata: bytes, children: list[Any], parsed: dict[Any, Any]) -> GenericNode:
    """A node in the place of one whose class was registered where the artifact was written."""
    key = name, id(auxdata), len(children)
    if key not in parsed:
        if id(auxdata) not in parsed:
            parsed[id(auxdata)] = Auxdata(auxdata)
        try:
            parsed[key] = RegisteredDescription(name, parsed[id(auxdata)], len(children))
        except ValueError as error:
            raise DeserializationError("", "a pytree node that can be read here", str(error)) from None
    return generic_node(parsed[key], children)


class SharedRegistry(dict[Any, Any]):
    """`jax.export`'s table of pytree types, with room for the types that users registered with jaxexp.

    A type that was registered with jaxexp must be known to `jax.export`, and registering it there as well must stay
    allowed. `jax.export` refuses a key that its table holds already, so this table hides an entry of jaxexp's from a
    registration of the same type. In all other uses it is a normal dict.
    """

    __slots__ = ("from_jaxexp",)

    def __init__(self, table: dict[Any, Any]) -> None:
        super().__init__(table)
        self.from_jaxexp: dict[Any, type] = {}

    def lend(self, nodetype: type, key: Any, value: Any) -> None:
        if not super().__contains__(key):
            super().__setitem__(key, value)
            self.from_jaxexp[key] = nodetype

    def __contains__(self, key: Any) -> bool:
        if not super().__contains__(key):
            return False
        if key not in self.from_jaxexp:
            return True
        caller = sys._getframe(1)
        register: Any = _jax.jax_exporter.register_pytree_node_serialization
        return caller.f_code is not register.__code__ or caller.f_locals.get("nodetype") is not self.from_jaxexp[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.from_jaxexp.pop(key, None)
        super().__setitem__(key, value)
