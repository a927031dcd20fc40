"""Files of tensors that were changed in one place: what `reader_fuzz.py tensors` makes, and what has to come out."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import safetensors

from jaxexp._errors import WeightsError
from jaxexp._weights.files import reading
from jaxexp._weights.files.dtypes import BITS

NUMBERS = [-1, 0, 1, 2, 3, 7, 8, 63, 64, 65, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**19, 1.0, 1e400, True, None]
TEXTS = ["", "w", "b", "__metadata__", "F32", "f32", "BF16", "F4", "C64", "é", "\0", "../w", "x" * 3000, "\ud800"]
OTHERS: list[Any] = [[], {}, [0], [0, 0], [[]], [1] * 70, {"dtype": "U8"}, [2**62, 4], [0, 5, 2**40]]


def seed_file(source: random.Random) -> tuple[dict[str, Any], bytes]:
    """A header, and the bytes behind it."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}} if source.random() < 0.5 else {}
    end = 0
    for i in range(source.randrange(4)):
        dtype = source.choice(["F32", "BF16", "U8", "F4", "BOOL", "I64"])
        shape = [source.choice([0, 1, 2, 4]) for _ in range(source.randrange(3))]
        bits = BITS[dtype] * math.prod(shape)
        if bits % 8:
            continue
        header[f"t{i}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + bits // 8]}
        end += bits // 8
    return header, source.randbytes(end)


def changed_value(source: random.Random, value: Any) -> Any:
    """Another value in the place of one inside of a header."""
    if isinstance(value, dict) and value and source.random() < 0.8:
        key = source.choice(list(value))
        new = dict(value)
        match source.randrange(4):
            case 0:
                del new[key]
            case 1:
                new[source.choice([*TEXTS, *new])] = new[key]
            case _:
                new[key] = changed_value(source, value[key])
        return new
    if isinstance(value, list) and value and source.random() < 0.7:
        at = source.randrange(len(value))
        return [*value[:at], changed_value(source, value[at]), *value[at + 1 :]]
    if isinstance(value, int) and source.random() < 0.5:
        return value + source.choice([-8, -1, 1, 8])
    return source.choice([*NUMBERS, *TEXTS, *OTHERS])


def changed_file(source: random.Random) -> bytes:
    header, data = seed_file(source)
    for _ in range(source.choice([0, 1, 1, 1, 2])):
        header = changed_value(source, header)
    text = json.dumps(header).encode() + b" " * source.randrange(3)
    if source.random() < 0.3:
        at = source.randrange(len(text))
        piece = source.choice([b"", b"\0", b'"', b"{", b"[" * 500, b"\xff", text[at // 2 : at]])
        text = text[:at] + piece + text[at + 1 :]
    wrong = [0, 1, max(0, len(text) - 1), len(text) + 1, 2**32, 2**63]
    length = len(text) if source.random() < 0.9 else source.choice(wrong)
    blob = length.to_bytes(8, "little") + text + data
    if source.random() < 0.1:
        blob = blob[: source.randrange(len(blob) + 1)] + source.choice([b"", b"\0"])
    return blob


def look_at(path: Path, blob: bytes) -> str:
    """What reading makes of a file: "refused", or "read" if the safetensors package finds the same tensors in it.

    Anything else is an exception of another type, or an AssertionError.
    """
    path.write_bytes(blob)
    try:
        found = reading.open_tensors(path)
    except WeightsError as error:
        assert error.expected, repr(error)
        assert error.found, repr(error)
        assert error.file == str(path), repr(error)
        assert len(str(error)) < 4000, "an error is a sentence"
        str(error).encode("utf-8", "backslashreplace")
        return "refused"
    theirs = dict(safetensors.deserialize(blob))
    assert found.keys() == theirs.keys()
    for name, tensor in found.items():
        assert list(tensor.shape) == theirs[name]["shape"]
        assert tensor.dtype == theirs[name]["dtype"]
        assert bytes(tensor.data()) == bytes(theirs[name]["data"])
    return "read"


def look(blob: bytes) -> str:
    with TemporaryDirectory() as folder:
        return look_at(Path(folder, "x.safetensors"), blob)
