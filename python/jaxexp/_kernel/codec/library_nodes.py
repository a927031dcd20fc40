"""Pytree nodes of libraries: their classes are not registered for serialization.

The writer describes such a node (`_kernel/artifact/node.py`). The reader takes the class if it is loaded. If not, or if
its auxiliary data is not only data, it takes a `GenericNode`. It also does so where a class was registered for the
writer and is not registered here.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import re
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import SerializationError, cause
from jaxexp._kernel.artifact import dict_keys
from jaxexp._kernel.artifact.node import (
    LARGEST_NUMBER,
    MAX_DEPTH,
    MAX_DIGITS,
    Auxdata,
    Description,
    Key,
    RegisteredDescription,
    canonical,
    is_printable,
)
from jaxexp._kernel.artifact.node import GenericNode as GenericNode
from jaxexp._kernel.artifact.node import generic_node as generic_node
from jaxexp._kernel.artifact.words import is_text

from . import classes, dtypes, registry, treedefs

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
    np.ndarray: lambda value, _: _stored_array(value),
}


def _stored_array(value: Any) -> Any:
    if value.dtype.name not in _DTYPES or value.nbytes > _LARGEST_ARRAY:
        return ["opaque", _type_name(value), text_of(value)]
    return ["array", value.dtype.name, list(value.shape), value.tobytes().hex()]


def _of_other_type(value: Any, depth: int) -> Any:
    """The JSON of a value whose type is not in `_MAKE`; None if only text can describe it."""
    if isinstance(value, type):
        name = classes.name_of(value)
        return ["type", *name] if classes.data_class(*name) is value else None
    if isinstance(value, np.dtype):
        return ["dtype", value.name] if _DTYPES.get(value.name) == value else None
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
    """The inverse of `to_json`, for JSON that `_kernel/artifact/node.py` has checked.

    Raises:
        NotDataError: a part cannot be made here, or would take too long to make or to compare.
    """
    return _Reading().value(stored)


class _Reading:
    """One value while it is made."""

    def __init__(self) -> None:
        self._most = 1  # of one hash, in the sets that were made so far

    def value(self, stored: Any) -> Any:
        if not isinstance(stored, list):
            return stored
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
        self._most = max(outside, dict_keys.most_of_one_hash(made, inside=self._most))
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


def _dtype(name: str) -> Any:
    return _found(_DTYPES.get(name))


def _array(rest: list[Any]) -> Any:
    name, shape, data = rest
    return np.frombuffer(bytes.fromhex(data), _dtype(name)).reshape(shape)


def _dict(reading: _Reading, items: list[Any]) -> dict[Any, Any]:
    keys = reading.hashable([key for key, _ in items])
    return dict(zip(keys, reading.values([part for _, part in items]), strict=True))


def _namedtuple(reading: _Reading, rest: list[Any]) -> Any:
    module, qualname, fields, *parts = rest
    return tuple.__new__(_found(classes.namedtuple_class(module, qualname, fields)), reading.values(parts))


def _dataclass(reading: _Reading, rest: list[Any]) -> Any:
    module, qualname, fields, *parts = rest
    cls = _found(class_of(module, qualname, fields))
    return instance_of(cls, dict(zip(fields, reading.values(parts), strict=True)))


def _opaque(rest: list[Any]) -> Any:
    raise NotDataError(rest[1])


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
    "dtype": lambda _, rest: _dtype(rest[0]),
    "type": lambda _, rest: _found(classes.data_class(*rest)),
    "enum": lambda _, rest: _found(classes.enum_member(*rest)),
    "constant": lambda _, rest: _found(classes.constant(*rest)),
    "namedtuple": _namedtuple,
    "dataclass": _dataclass,
    "opaque": lambda _, rest: _opaque(rest),
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


def class_of(module: str, qualname: str, fields: Sequence[str]) -> type | None:
    """The loaded frozen dataclass of a name, if it has exactly these fields, and its instances nothing else."""
    cls = classes.loaded_class(module, qualname)
    return cls if cls is not None and _fields(cls) == tuple(fields) else None


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


def instance_of(cls: type, values: Mapping[str, Any]) -> Any:
    """An instance of a class that `class_of` returned."""
    instance: Any = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def _fields(cls: type) -> tuple[str, ...] | None:
    if type(cls) is not type:
        return None
    namespaces = classes.namespaces(cls)
    own = namespaces[0]
    params = own.get("__dataclass_params__")
    if params is None or type(own.get("__dataclass_fields__")) is not dict or not (params.frozen and params.eq):
        return None
    if any(name in namespace for name in _NOT_DEFINED for namespace in namespaces[:-1]):
        return None
    if not all(_is_generated(own.get(name)) for name in _GENERATED):
        return None
    try:
        object.__new__(cls)
    except TypeError:  # it also is an exception, a dict or the like
        return None
    fields = tuple(field.name for field in dataclasses.fields(cls))
    return fields if all(_is_plain(_defined(namespaces, name)) for name in fields) else None


_absent = object()


def _defined(namespaces: Sequence[Mapping[str, Any]], name: str) -> Any:
    """What a class has under a name."""
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


def _is_generated(function: Any) -> bool:
    """Whether `dataclass` generated this function from text."""
    return type(function) is types.FunctionType and function.__code__.co_filename == "<string>"


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


def _with_keys(node: GenericNode) -> tuple[list[tuple[Any, Any]], Description]:
    return list(zip(map(jax_key, node._description.keys), node._children, strict=True)), node._description


def jax_key(key: Key) -> Any:
    return _KEYS[key.kind](key.value)


jax.tree_util.register_pytree_with_keys(
    GenericNode, _with_keys, generic_node, lambda node: (node._children, node._description)
)


# --- writing ----------------------------------------------------------------------------------------------------------


def describe(nodetype: type, aux: Any, arity: int) -> bytes:
    """What an artifact says about a node: its class, the keys of its children, its auxiliary data.

    Raises:
        SerializationError: JAX takes a tuple class for a namedtuple, but its values do not match its fields; or a name
            cannot be stored.
    """
    known = _known.setdefault(nodetype, {})
    is_registered = classes.is_registered(nodetype)
    data = to_json(aux) if is_registered else None
    key = json.dumps(data), arity, is_registered
    if (found := known.get(key)) is None:
        keys = _keys(nodetype, aux, arity) if is_registered else _keys_of_namedtuple(nodetype, arity)
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


def _keys_of_namedtuple(nodetype: type, arity: int) -> list[Key]:
    fields = classes.fields_of_namedtuple(nodetype) or ()
    if len(fields) != arity or len(set(fields)) != arity:
        raise SerializationError(
            f"a tree contains {nodetype} with {arity} values, which is not a namedtuple of as many fields ({fields}): "
            "register it with jax.tree_util.register_pytree_node"
        )
    return [Key("attribute", field) for field in fields]


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


def build(description: Description, children: Sequence[Any]) -> GenericNode:
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
        return registry.remade(description.serialized_name, description.encoded, len(description.keys))
    cls = None if description.is_opaque else loaded_class(description)
    if cls is None or description.is_namedtuple:
        return None if cls is None else (cls, None)
    try:
        aux = from_json(description.data)
    except NotDataError:
        return None
    return (cls, aux) if _agrees(cls, description, aux) else None


def loaded_class(description: Description) -> type | None:
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


def registered_as(description: Description, nodetype: type, aux: Any, arity: int) -> Description | None:
    """What an artifact says about a node whose type is registered under the name in another description; None if it is
    not.

    Raises:
        SerializationError: the type's function does not return bytes.
    """
    if not isinstance(description, RegisteredDescription):
        return None
    name, encoded = registry.serialized(nodetype, aux) or ("", b"")
    return RegisteredDescription(name, Auxdata(encoded), arity) if name == description.serialized_name else None


# --- for jax.export ---------------------------------------------------------------------------------------------------

# jax.export reads the bytes again for each node.
read_again = functools.lru_cache(maxsize=16)(Description)


def instance(description: Description, children: Sequence[Any]) -> Any:
    """An instance of the loaded class, for `jax.export` to take its structure; else a generic node."""
    node = build(description, children)
    if (found := made(description)) is None:
        return node
    cls, aux = found
    if description.is_namedtuple:
        return tuple.__new__(cls, children)
    try:
        return classes.unflatten_function(cls)(aux, children)
    except Exception:  # the class wants other children than abstract values
        return node
