"""What an artifact says about a pytree node whose class this process may not have, and about keys of dicts that are not
strings, read without JAX.

If the writer had not registered the class for serialization, the auxiliary data of the node is JSON: the name of the
class, the keys of the children, and the class's own auxiliary data, as far as JSON can hold it
(docs/formats/artifact.md). If it had, there are a name and bytes, which only the class's functions understand. Nothing
here looks for the class.
"""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from jaxexp._errors import ExportError, SerializationError, cause
from jaxexp._errors import shown as escaped
from jaxexp._public import public

from .words import cut, dtype_and_shape, is_text

NAME = "jaxexp.node"  # the serialized name of nodes whose class was not registered
_OWN = "jaxexp."  # the serialized names of jaxexp's own nodes begin with it
VERSION = 1
MAX_DEPTH = 64  # of auxiliary data
LARGEST_NUMBER = 1 << 53  # larger integers are written as text: readers take JSON numbers for doubles
MAX_DIGITS = 4300  # of an integer; Python refuses to print larger ones

_LONGEST_TEXT = 1 << 10  # characters of shown text


class Key(NamedTuple):
    """How a child is found in its parent: as an "attribute" of a name, as an "item" of a key or index, or only by its
    "position".
    """

    kind: str
    value: str | int

    def __str__(self) -> str:
        if self.kind == "attribute":
            return f".{self.value}"
        return f"[{self.value!r}]" if self.kind == "item" else f"<{self.value}>"


class Description:
    """What an artifact says about a node. Descriptions of equal bytes are equal.

    Attributes:
        serialized_name: the name of the node in the artifact.
        encoded: its auxiliary data there.
        module: the module of the class.
        qualname: its qualified name there.
        is_namedtuple: whether it is a namedtuple class; otherwise it is registered with `jax.tree_util`.
        keys: the keys of the children, in their order.
        data: the auxiliary data as JSON; `shown` turns it into text.
        is_opaque: whether a part of the auxiliary data cannot be stored as data, such as a function.
    """

    __slots__ = (
        "__weakref__",
        "_digest",
        "_text",
        "data",
        "encoded",
        "is_namedtuple",
        "is_opaque",
        "keys",
        "module",
        "names",
        "qualname",
        "serialized_name",
    )

    def __init__(self, encoded: bytes) -> None:
        """Raises a ValueError for bytes that do not describe a node."""
        self.serialized_name, self.encoded = NAME, encoded
        try:
            fields = json.loads(encoded, parse_float=_refuse_number, parse_constant=_refuse_number)
            version = fields["version"]
            if version != VERSION:
                raise ValueError(
                    f"a node of version {version!r:.40}; this jaxexp reads version {VERSION}: a newer one may help"
                )
            self.module, self.qualname = _names(fields["class"], 2)
            self.is_namedtuple = fields["kind"] == "namedtuple"
            if not self.is_namedtuple and fields["kind"] != "registered":
                raise ValueError(f"a node of the kind {fields['kind']!r:.40}")
            self.keys = tuple(_key(key, position) for position, key in enumerate(fields["keys"]))
            self.data = fields["data"]
            self.is_opaque = _check(self.data)
        except (TypeError, LookupError, RecursionError, UnicodeDecodeError) as error:
            raise ValueError(f"these bytes do not describe a node: {type(error).__name__}: {error!s:.100}") from cause(
                error
            )
        self.names = tuple(key.value for key in self.keys)
        if len(set(map(repr, self.names))) < len(self.names):  # an artifact chooses the hashes of numbers
            raise ValueError("a node with two children of one name")
        if self.is_namedtuple and (self.data is not None or any(key.kind != "attribute" for key in self.keys)):
            raise ValueError("a namedtuple with children that are not fields")
        if canonical(self.module, self.qualname, self.is_namedtuple, self.keys, self.data) != encoded:
            raise ValueError("a description of a node that is not written in its one canonical form")
        # Comparing equal descriptions byte by byte, for every node of a tree, would take too long.
        self._text: str | None = None
        self._digest = _digest(encoded)

    @property
    def class_name(self) -> str:
        return f"{self.module}.{self.qualname}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Description):
            return NotImplemented
        return self is other or (
            self._digest == other._digest
            and self.serialized_name == other.serialized_name
            and len(self.keys) == len(other.keys)
        )

    def __hash__(self) -> int:
        return hash(self._digest)

    def says_the_same(self, other: Description) -> bool:
        """Whether JAX takes the two nodes for equal: the items of a dict may come in any order."""
        return self == other or (
            (self.class_name, self.is_namedtuple, self.keys) == (other.class_name, other.is_namedtuple, other.keys)
            and _in_one_order(self.data) == _in_one_order(other.data)
        )

    def __repr__(self) -> str:
        """JAX prints this for each node of a tree structure."""
        if self._text is None:
            text = self.class_name if self.data is None else f"{self.class_name}: {shown(self.data)}"
            self._text = escaped(_cut(text))
        return self._text


class Auxdata:
    """Auxiliary data that the functions of a registered class made; `fields` are those of a namedtuple, if the bytes
    list them. Many nodes may share it, so it is read once.
    """

    __slots__ = ("data", "digest", "encoded", "fields")

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded
        self.fields = _listed_fields(encoded)
        self.data = ["bytes", encoded.hex()]
        self.digest = _digest(encoded)


def _digest(encoded: bytes) -> bytes:
    import hashlib  # loads OpenSSL, and most artifacts have no such nodes

    return hashlib.blake2b(encoded, digest_size=16).digest()


class RegisteredDescription(Description):
    """What an artifact says about a node whose class its writer had registered for serialization.

    The children have the names of fields, if the auxiliary data lists as many, otherwise only positions.
    """

    __slots__ = ()

    def __init__(self, serialized_name: str, auxdata: Auxdata, arity: int) -> None:
        """Raises a ValueError for a name of jaxexp's own nodes."""
        if serialized_name.startswith(_OWN):
            raise ValueError(f"{serialized_name!r}, which is unknown here: a newer jaxexp may know it")
        self.serialized_name, self.encoded = serialized_name, auxdata.encoded
        self.module, self.qualname = "", serialized_name
        self.is_namedtuple, self.is_opaque = False, False
        if auxdata.fields is not None and len(auxdata.fields) == arity:
            self.keys = tuple(Key("attribute", field) for field in auxdata.fields)
            self.data = None
        else:
            self.keys = tuple(Key("position", position) for position in range(arity))
            self.data = auxdata.data
        self.names = tuple(key.value for key in self.keys)
        self._text, self._digest = None, auxdata.digest

    @property
    def class_name(self) -> str:
        return self.serialized_name


def description_of(serialized_name: str, auxdata: bytes, arity: int) -> Description:
    """The description with a serialized name. Raises a ValueError if there is none."""
    if serialized_name == NAME:
        return Description(auxdata)
    return RegisteredDescription(serialized_name, Auxdata(auxdata), arity)


def _listed_fields(auxdata: bytes) -> tuple[str, ...] | None:
    """The fields of a namedtuple, which `register_namedtuple_serialization` stores as a JSON list of names."""
    if not (auxdata.startswith(b"[") and auxdata.endswith(b"]")):
        return None
    try:
        fields = json.loads(auxdata)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(field, str) and is_text(field) for field in fields) or len(set(fields)) < len(fields):
        return None
    return tuple(fields)


def canonical(module: str, qualname: str, is_namedtuple: bool, keys: Iterable[Key], data: Any) -> bytes:
    fields = {
        "version": VERSION,
        "class": [module, qualname],
        "kind": "namedtuple" if is_namedtuple else "registered",
        "keys": [_stored(key) for key in keys],
        "data": data,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _stored(key: Key) -> Any:
    return {"attribute": key.value, "item": ["item", key.value], "position": None}[key.kind]


def _key(stored: Any, position: int) -> Key:
    if stored is None:
        return Key("position", position)
    if isinstance(stored, str):
        return Key("attribute", *_names([stored]))
    tag, value = stored
    if tag != "item" or not (isinstance(value, str) or type(value) is int):
        raise ValueError(f"the key {stored!r:.40} of a child")
    return Key("item", value)


def _refuse_number(text: str) -> Any:
    raise ValueError(f"the number {text:.40} in a description, which is written as text")


def _texts(values: Any, count: int | None = None) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{values!r:.40} where there should be texts")
    if count is not None and len(values) != count:
        raise ValueError(f"{len(values)} texts where there should be {count}")
    return values


def _names(values: Any, count: int | None = None) -> list[str]:
    """Texts that are shown as they are."""
    for text in _texts(values, count):
        if not is_text(text):
            raise ValueError(f"the name {text!r:.40}, which has half of a surrogate pair")
    return values


def is_printable(number: int) -> bool:
    """Whether Python prints an integer."""
    return abs(number) < _TOO_LARGE


_TOO_LARGE = 10**MAX_DIGITS


# --- values -----------------------------------------------------------------------------------------------------------
# None, booleans, texts and numbers stand for themselves; everything else is a list that begins with a tag.

_OF_NAMES = {"dtype": 1, "scalar": 2, "type": 2, "constant": 2, "enum": 3}
_OF_NUMBERS: dict[str, tuple[int, Callable[[str], str]]] = {  # how many, and how each is written
    "int": (1, lambda text: hex(int(text, 16))),
    "float": (1, lambda text: float.fromhex(text).hex()),
    "complex": (2, lambda text: float.fromhex(text).hex()),
    "bytes": (1, lambda text: bytes.fromhex(text).hex()),
}
_WITH_FIELDS = ("namedtuple", "dataclass")
_OF_VALUES = {"tuple": None, "list": None, "set": None, "frozenset": None, "slice": 3, "range": 3, "ellipsis": 0}


def _check(value: Any, depth: int = 0) -> bool:
    """Whether a value has parts that are not data. Raises a ValueError for anything that is not a value."""
    if value is None or isinstance(value, (bool, str)):
        return False
    if isinstance(value, int):
        if abs(value) >= LARGEST_NUMBER:
            raise ValueError("a large number that is not written as text")
        return False
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ValueError(f"{value!r:.40} where there should be a value")
    if depth == MAX_DEPTH:
        raise ValueError(f"auxiliary data of more than {MAX_DEPTH} levels")
    tag, rest = value[0], value[1:]
    if tag == "opaque":
        _names(_texts(rest, 2)[:1])
        return True
    if tag in _OF_NAMES:
        _names(rest, _OF_NAMES[tag])
        return False
    if tag in _OF_NUMBERS:
        count, written = _OF_NUMBERS[tag]
        for text in _texts(rest, count):
            if not _is_written_by(written, text):
                raise ValueError(f"{text!r:.40} where there should be a canonical {tag}")
        return False
    if tag in _OF_VALUES:
        if _OF_VALUES[tag] not in (None, len(rest)):
            raise ValueError(f"a {tag} of {len(rest)} parts")
        return _check_all(rest, depth)
    if tag == "dict":
        if not all(isinstance(item, list) and len(item) == 2 for item in rest):
            raise ValueError("a dict whose items are not pairs")
        return _check_all([part for item in rest for part in item], depth)
    if tag in _WITH_FIELDS:
        fields = _names(value[3])
        _names(value[1:3])
        if len(fields) != len(value) - 4:
            raise ValueError(f"a {tag} whose values do not match its fields")
        return _check_all(value[4:], depth)
    if tag == "array":
        dtype, shape, data = rest
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError("an array without a shape")
        _names([dtype, data])
        return False
    raise ValueError(f"a value with the tag {tag!r:.40}")


def _is_written_by(written: Callable[[str], str], text: str) -> bool:
    try:
        return written(text) == text
    except (ValueError, OverflowError):
        return False


def _check_all(values: list[Any], depth: int) -> bool:
    opaque = [_check(value, depth + 1) for value in values]  # checks all, also after the first that is not data
    return True in opaque


def _in_one_order(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    tag, *parts = map(_in_one_order, value)
    return [tag, *sorted(parts, key=json.dumps)] if tag == "dict" else [tag, *parts]


def shown(value: Any) -> str:
    """A checked value as text for people, like its repr in Python."""
    if not isinstance(value, list):
        return repr(value)
    tag, rest = value[0], value[1:]
    simple = _SHOWN.get(tag)
    if simple is not None:
        return simple(rest)
    if tag == "dict":
        return "{" + ", ".join(f"{shown(key)}: {shown(part)}" for key, part in rest) + "}"
    if tag in _WITH_FIELDS:
        parts = ", ".join(f"{name}={shown(part)}" for name, part in zip(value[3], value[4:], strict=True))
        return f"{value[2]}({parts})"
    parts = ", ".join(map(shown, rest))
    if tag == "tuple":
        return f"({parts},)" if len(rest) == 1 else f"({parts})"
    return f"[{parts}]" if tag == "list" else f"{tag}({parts})"


_SHOWN: dict[str, Callable[[list[Any]], str]] = {
    "int": lambda rest: rest[0],
    "float": lambda rest: repr(float.fromhex(rest[0])),
    "complex": lambda rest: f"complex({', '.join(repr(float.fromhex(part)) for part in rest)})",
    "bytes": lambda rest: repr(bytes.fromhex(rest[0])),
    "dtype": lambda rest: f"dtype({rest[0]!r})",
    "scalar": lambda rest: f"{rest[0]}(bytes.fromhex({rest[1]!r}))",
    "type": ".".join,
    "constant": ".".join,
    "enum": lambda rest: f"{rest[1]}.{rest[2]}",
    "opaque": lambda rest: _encodable(rest[1] if rest[0] == "function" else f"<{rest[0]} {rest[1]}>"),
    "array": lambda rest: f"array({rest[0]}{rest[1]})",
    "ellipsis": lambda rest: "...",
}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def shown_node(auxdata: bytes, name: str | None) -> tuple[str | None, tuple[str, ...]] | None:
    """The name of a node's class and its children's keys, for people; None for bytes that do not say them. The
    serialized name says what the data is; None stands for any class that was registered.
    """
    if name != NAME:
        fields = _listed_fields(auxdata)
        keys = [Key("attribute" if name is None else "item", field) for field in fields or ()]
        return None if fields is None else (None, tuple(_printable(str(key)) for key in keys))
    try:
        description = Description(auxdata)
    except ValueError:
        return None
    return _printable(description.class_name), tuple(_printable(str(key)) for key in description.keys)


def _printable(text: str) -> str:
    return _encodable(_cut(text))


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


# --- `GenericNode`: a tree node that stands in for one whose class this process does not have -------------------------


@public
class GenericNode:
    """A node of a tree in place of a class that is not loaded here, is not registered for serialization here, or cannot
    be made from its data in the artifact.

    It has the children of the original node, by attribute or item as there (``state.mu``, ``state["mu"]``), by name as
    an item, or by position. Attributes that are not children begin with an underscore, as in namedtuples. It is a
    pytree node itself: pass it to the function again, and to the functions of `jax.tree`.

    Attributes:
        _class_name: the class's module and qualified name, such as ``"optax._src.transform.ScaleByAdamState"``; or the
            name under which it was registered for serialization.
        _names: the names of the children, in the order in which JAX flattens them: names of attributes, keys of items,
            or positions of children without a name. Among classes registered for serialization, only namedtuples have
            names.
        _static: the class's auxiliary data as text, or None; for a class registered for serialization, its bytes.

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
        """Makes a node from its description in an artifact and its children. Pickles and copies call this.

        Raises:
            ExportError: the bytes do not describe a node, or describe one with another number of children.
        """
        values = tuple(children)
        try:
            known = description_of(serialized_name, bytes(description), len(values))
        except ValueError as error:
            raise ExportError(f"a GenericNode is made from its description in an artifact: {error}") from cause(error)
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


# --- how many values of an artifact one set or dict may hash ----------------------------------------------------------
# Every value that becomes an element or a key passes here. Python compares a new element with the elements that have
# its hash. Who writes an artifact can choose the hashes of numbers, and of tuples and sets of numbers; Python mixes a
# secret only into the hashes of texts and bytes.


MOST_OF_ONE_HASH = 64
MOST_VALUES = 1 << 16  # values of different hashes, too, can be made to look for a free place one after another
_WITH_SECRET = (str, bytes)


def most_of_one_hash(values: Sequence[Any], inside: int = 1) -> int:
    """The most values that Python may compare to find one of these elements of a set or keys of a dict; `inside` is the
    same for sets inside of them. A ValueError if there are too many of one hash, or that are not texts.
    """
    chosen = [value for value in values if type(value) not in _WITH_SECRET]
    if not chosen:
        return inside
    if len(chosen) > MOST_VALUES:
        raise ValueError(f"{len(chosen)} keys or elements that are not texts, more than {MOST_VALUES}")
    hash_, most = collections.Counter(map(hash, chosen)).most_common(1)[0]
    if most * inside > MOST_OF_ONE_HASH:
        sets = "" if inside == 1 else f", and {inside} in a set inside of them"
        raise ValueError(f"{most} keys or elements with the hash {hash_}{sets}, more than {MOST_OF_ONE_HASH}")
    return most * inside


# --- dict keys that are not strings, as bytes -------------------------------------------------------------------------
# The format's dicts have string keys. A dict or OrderedDict with any other key is written as a custom node with a name
# of its own. Its auxiliary data is the JSON made here: a version, and every key with its type, so that 1, 1.0, True and
# "1" stay apart. One list of keys has one encoding.


_VERSION_OF_KEYS = 1
_MAX_DEPTH_OF_KEYS = 64  # of tuples in tuples; hashing and comparing them uses the C stack
_TYPES = "strings, integers, booleans, floats, bytes, None, and tuples of these"


def all_strings(keys: Iterable[Any]) -> bool:
    return all(isinstance(key, str) for key in keys)


def keys_to_bytes(keys: Iterable[Any], refusal: type[SerializationError]) -> bytes:
    """The encoding of a dict's keys, in their order."""
    keys = tuple(keys)
    tagged = [_tagged(key, key, refusal) for key in keys]
    if len({json.dumps(key) for key in tagged}) < len(keys):
        raise refusal(f"a dict has several keys that are NaN, which cannot be told apart when they are read: {keys}")
    try:
        most_of_one_hash(keys)
    except ValueError as error:
        raise refusal(f"a dict cannot be serialized, because reading it would take too long: it has {error}") from None
    return _json(tagged)


def _json(tagged_keys: list[Any]) -> bytes:
    return json.dumps({"version": _VERSION_OF_KEYS, "keys": tagged_keys}, separators=(",", ":")).encode()


def _tagged(key: Any, whole: Any, refusal: type[SerializationError], depth: int = 0) -> list[Any]:
    if isinstance(key, str):
        return ["str", str.__str__(key)]  # subclasses are stored as strings, as everywhere in the format
    # Exact types from here on: an IntEnum or a numpy.float64 would come back as something else.
    if key is None:
        return ["None"]
    if type(key) is bool:
        return ["bool", key]
    if type(key) is int:
        if not is_printable(key):
            raise refusal(f"a dict key is an integer of more than {MAX_DIGITS} digits, which Python does not print")
        return ["int", hex(key)]  # decimals have a limit in Python, and JSON numbers in other readers
    if type(key) is float:
        return ["float", key.hex()]
    if type(key) is bytes:
        return ["bytes", key.hex()]
    if type(key) is tuple:
        if depth == _MAX_DEPTH_OF_KEYS:
            raise refusal(f"a dict key has more than {_MAX_DEPTH_OF_KEYS} levels of tuples, which cannot be serialized")
        return ["tuple", *(_tagged(part, whole, refusal, depth + 1) for part in key)]
    where = "" if key is whole else f", which contains {key!r} of type {type(key)}"
    raise refusal(
        f"the dict key {whole!r} of type {type(whole)}{where} cannot be serialized: keys can be {_TYPES}. Convert the "
        "key before exporting, or register a pytree node type of your own with register_pytree_node_serialization"
    )


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": lambda text: int(text, 16),  # `_tagged` refuses large ones
    "float": lambda text: math.nan if text == "nan" else float.fromhex(text),
    "bytes": bytes.fromhex,
}


def keys_from_bytes(auxdata: bytes) -> tuple[Any, ...]:
    """The inverse of `keys_to_bytes`. NaN is read as `math.nan`: in Python, a NaN key equals only the same object."""
    try:
        decoded = json.loads(auxdata)
        version = decoded["version"]
        keys = tuple(_untagged(key) for key in decoded["keys"]) if version == _VERSION_OF_KEYS else ()
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise ValueError(f"these are not dict keys: {type(error).__name__}: {error!s:.100}") from cause(error)
    if version != _VERSION_OF_KEYS:
        raise ValueError(
            f"dict keys of version {version!r:.40}; this jaxexp reads version {_VERSION_OF_KEYS}: a newer one may help"
        )
    if _json([_tagged(key, key, SerializationError) for key in keys]) != auxdata:
        raise ValueError("dict keys that are not written in their one canonical form")
    return keys


def keys_of_jax(auxdata: bytes) -> Any:
    """The keys of an OrderedDict in `jax.export`'s encoding, which has only strings if JAX wrote it. NaN is read in the
    same way as above.
    """
    return json.loads(auxdata, parse_constant=lambda text: math.nan if text == "NaN" else float(text))


def _untagged(tagged: Any, depth: int = 0) -> Any:
    tag, *rest = tagged
    if tag == "tuple":
        if depth == _MAX_DEPTH_OF_KEYS:
            raise ValueError(f"more than {_MAX_DEPTH_OF_KEYS} levels of tuples")
        return tuple(_untagged(part, depth + 1) for part in rest)
    if tag == "None" and not rest:
        return None
    (value,) = rest
    if tag == "bool" and isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{value!r} for a key of type {tag!r}")
    return _FROM_TEXT[tag](value)


def dict_from_children(keys: tuple[Any, ...], children: Sequence[Any]) -> dict[Any, Any]:
    """A dict. Raises a ValueError if the keys are not in ascending order, in which JAX flattens it."""
    made = dict(ordered_dict_from_children(keys, children))
    if any(found is not expected for found, expected in zip(sorted(keys), keys, strict=True)):
        raise ValueError("keys that are not in ascending order")
    return made


def ordered_dict_from_children(keys: Sequence[Any], children: Sequence[Any]) -> collections.OrderedDict[Any, Any]:
    """An OrderedDict. Raises a ValueError if keys are equal, or if too many have the same hash."""
    most_of_one_hash(keys)
    made = collections.OrderedDict(zip(keys, children, strict=True))
    if len(made) != len(keys):
        raise ValueError("equal keys")
    return made
