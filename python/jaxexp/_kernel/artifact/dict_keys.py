"""Dict keys that are not strings, as bytes.

The format's dicts have string keys. A dict or OrderedDict with any other key is written as a custom node with a name of
its own. Its auxiliary data is the JSON made here: a version, and every key with its type, so that 1, 1.0, True and "1"
stay apart. One list of keys has one encoding.
"""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxexp._errors import SerializationError, cause

from .node import MAX_DIGITS, is_printable

# --- how many values of an artifact one set or dict may hash ----------------------------------------------------------
# Every value that becomes an element or a key passes here. Python compares a new element with the elements that have
# its hash. Who writes an artifact can choose the hashes of numbers, and of tuples and sets of numbers; Python mixes a
# secret only into the hashes of texts and bytes.


MOST_OF_ONE_HASH = 64
MOST_VALUES = 1 << 16  # values of different hashes, too, can be made to look for a free place one after another
_WITH_SECRET = (str, bytes)


def most_of_one_hash(values: Sequence[Any], inside: int = 1) -> int:
    """The most values that Python may compare to find one of these.

    Args:
        values: the elements of a set, or the keys of a dict.
        inside: the same for sets inside of the values: comparing two values may compare as many of their elements.

    Raises:
        ValueError: more than `MOST_OF_ONE_HASH`, or more than `MOST_VALUES` values that are not texts.
        TypeError: a value has no hash.
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


# --- keys as bytes ----------------------------------------------------------------------------------------------------


_VERSION = 1
_MAX_DEPTH = 64  # of tuples in tuples; hashing and comparing them uses the C stack
_TYPES = "strings, integers, booleans, floats, bytes, None, and tuples of these"


def all_strings(keys: Iterable[Any]) -> bool:
    return all(isinstance(key, str) for key in keys)


def keys_to_bytes(keys: Iterable[Any], refusal: type[SerializationError]) -> bytes:
    """The encoding of a dict's keys, in their order.

    Raises:
        SerializationError: as a `refusal`, if a key has a type that cannot be stored, or if two keys would be read as
            one, or if too many have the same hash.
    """
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
    return json.dumps({"version": _VERSION, "keys": tagged_keys}, separators=(",", ":")).encode()


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
        if depth == _MAX_DEPTH:
            raise refusal(f"a dict key has more than {_MAX_DEPTH} levels of tuples, which cannot be serialized")
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
    """The inverse of `keys_to_bytes`. NaN is read as `math.nan`: in Python, a NaN key equals only the same object.

    Raises:
        ValueError: the bytes are not what `keys_to_bytes` returns for some keys.
    """
    try:
        decoded = json.loads(auxdata)
        version = decoded["version"]
        keys = tuple(_untagged(key) for key in decoded["keys"]) if version == _VERSION else ()
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise ValueError(f"these are not dict keys: {type(error).__name__}: {error!s:.100}") from cause(error)
    if version != _VERSION:
        raise ValueError(
            f"dict keys of version {version!r:.40}; this jaxexp reads version {_VERSION}: a newer one may help"
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
        if depth == _MAX_DEPTH:
            raise ValueError(f"more than {_MAX_DEPTH} levels of tuples")
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
