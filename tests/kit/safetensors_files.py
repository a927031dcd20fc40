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


def data_at(file: bytes) -> int:
    """Where the tensors begin."""
    return 8 + int.from_bytes(file[:8], "little")
