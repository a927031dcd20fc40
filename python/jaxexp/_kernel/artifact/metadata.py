"""The user's metadata of an artifact: a mapping of strings to JSON values, kept in its trailer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from jaxexp._errors import DeserializationError, ExportError, ExportTypeError, cause


def to_json(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Each value as a JSON text.

    Raises:
        ExportError: a key is not a string, or a value has no JSON form; the message names it. If the type is wrong, the
            error is also a TypeError.
    """
    if not isinstance(metadata, Mapping):
        raise ExportTypeError(f"metadata has to be a mapping of strings to JSON values, found {type(metadata)}")
    return {_key(key): _text(key, value) for key, value in metadata.items()}


def from_json(texts: Mapping[str, str]) -> dict[str, Any]:
    """The values behind the texts."""
    return {key: _value(key, text) for key, text in texts.items()}


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ExportTypeError(f"the keys of metadata have to be strings, found {key!r} ({type(key)})")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise ExportError(f"the metadata key {key!r} is not Unicode text: {error.reason}") from error
    return key


def _text(key: str, value: Any) -> str:
    expected = f"metadata[{key!r}] has to be a JSON value (None, bool, int, float, str, or lists and dicts of these)"
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except TypeError as error:
        raise ExportTypeError(f"{expected}: {error}") from cause(error)
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{expected}: {error}") from cause(error)


def _value(key: str, text: str) -> Any:
    try:
        value, end = _DECODER.raw_decode(text := text.strip(_WHITESPACE))
        return value if end == len(text) else _DECODER.decode(text)  # which says what is behind the value
    except (ValueError, RecursionError) as error:
        raise DeserializationError(f"trailer.metadata[{key!r}]", "JSON", str(error)) from cause(error)


def _finite(text: str) -> float:
    """A float that `to_json` can write again: "1e400" is JSON, but not a finite float."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40}, which is not a finite number")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is not JSON")


_WHITESPACE = " \t\n\r"
# json.loads would make another one for each text.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
