"""Files in the safetensors format, right and wrong ones, made byte by byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    """What a header says of a tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def a_file(header: Mapping[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with a header, which is JSON or bytes, and the bytes of the tensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


ONE = entry("U8", [1], 0, 1)
# Files that are refused, and what the message says in Python.
WRONG = {
    "nothing": (b"", "expected a safetensors file, found an empty file"),
    "no length": (b"1234567", "begins with the length of its header, found 7 bytes"),
    "long length": (a_file(b"{}", length=1 << 63), "at most 16,777,216 bytes"),
    "length outside": (a_file(b"{}", length=3), "a header of 3 bytes, found 2 bytes up to the end"),
    "no object": (a_file(b"[]"), "a JSON object, found one that begins with b'\\[\\]'"),
    "space": (a_file(b' {"x":1}'), "a JSON object"),
    "no json": (a_file(b"{'x':1}"), "in JSON and UTF-8"),
    "two objects": (a_file(b"{}{}"), "in JSON and UTF-8"),
    "zero": (a_file(b"{}\0"), "in JSON and UTF-8"),
    "no utf-8": (a_file(b'{"\xff":1}'), "in JSON and UTF-8"),
    "deep": (a_file(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "one of more than 64 levels"),
    "twice": (a_file(b'{"x":{},"y":{},"x":{}}'), "names that are different, found 'x' twice"),
    "key twice": (a_file(b'{"x":{"dtype":"U8","dtype":"U8"}}'), "found 'dtype' twice"),
    "no entry": (a_file({"x": 1}), "tensor 'x': expected dtype, shape and data_offsets, found 1"),
    "missing key": (a_file({"x": {"dtype": "U8", "shape": [1]}}), "expected dtype, shape and data_offsets"),
    "other key": (a_file({"x": {**ONE, "y": 1}}), "expected dtype, shape and data_offsets"),
    "dtype": (a_file({"x": {**ONE, "dtype": "U9"}}), "a dtype that is one of BOOL, .*, found 'U9'"),
    "dtype of a list": (a_file({"x": {**ONE, "dtype": ["U8"]}}), "a dtype that is one of"),
    "shape": (a_file({"x": {**ONE, "shape": 1}}), "a shape of at most 64"),
    "truth in a shape": (a_file({"x": {**ONE, "shape": [True]}}), "a shape of at most 64"),
    "rank": (a_file({"x": {**ONE, "shape": [1] * 65}}), "a shape of at most 64"),
    "negative": (a_file({"x": {**ONE, "shape": [-1]}}), "natural numbers below 2\\*\\*63, found '-1'"),
    "float": (a_file({"x": {**ONE, "shape": [1.0]}}), "natural numbers below 2\\*\\*63, found '1.0'"),
    "nan": (a_file(b'{"x":NaN}'), "natural numbers below 2\\*\\*63, found 'NaN'"),
    "digits": (a_file(b'{"x":' + b"9" * 5000 + b"}"), "natural numbers below 2\\*\\*63, found '999.*\\.\\.\\."),
    "offsets": (a_file({"x": {**ONE, "data_offsets": [0]}}), "two natural numbers"),
    "backwards": (a_file({"x": entry("U8", [1], 1, 0)}, b"1"), "1 bytes for U8\\[1\\], found -1 bytes"),
    "size": (a_file({"x": entry("F32", [2], 0, 4)}, bytes(4)), "8 bytes for F32\\[2\\], found 4 bytes"),
    "overflow": (a_file({"x": entry("F32", [1 << 62, 4], 0, 0)}), "found 0 bytes between"),
    "half a byte": (a_file({"x": entry("F4", [3], 0, 1)}, b"1"), "a shape that fills whole bytes"),
    "hole in front": (a_file({"x": entry("U8", [1], 1, 2)}, b"12"), "tensor 'x': expected that it begins at 0"),
    "hole": (a_file({"x": ONE, "y": entry("U8", [1], 2, 3)}, b"123"), "tensor 'y': expected that it begins at 1"),
    "overlap": (a_file({"x": ONE, "y": ONE}, b"1"), "tensor 'y': expected that it begins at 1, .*found 0"),
    "shortened": (a_file({"x": ONE}), "6. bytes, as its header says, found 6. bytes"),
    "longer": (a_file({"x": ONE}, b"12"), "as its header says"),
    "metadata": (a_file({"__metadata__": {"x": 1}}), "a __metadata__ that maps text to text"),
    "list of metadata": (a_file({"__metadata__": []}), "a __metadata__ that maps text to text"),
    "surrogate": (a_file(b'{"\\ud800":{}}'), "a name that is Unicode text"),
}

# What an index may not call its files.
NO_PLAIN_NAMES = [
    "../x.safetensors", "folder/x.safetensors", "/etc/x.safetensors", "folder\\x.safetensors", "..\\x.safetensors",
    "C:x.safetensors", "C:\\x.safetensors", "\\\\server\\share\\x.safetensors", "./x.safetensors",
    "\x9b31mx.safetensors", "x.safetensors/", "x.safetensors/.", "..", ".", "", "passwd", "x.safetensors\0",
    "x\0.safetensors", "x\n.safetensors", "\u202ex.safetensors", "\ud800.safetensors", "x" * 300 + ".safetensors",
]  # fmt: skip
