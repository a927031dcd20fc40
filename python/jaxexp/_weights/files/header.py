"""The header of a file: which tensors it has and where. Native code reads and checks what others wrote."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import WeightsError
from jaxexp._kernel.io.other_files import instead_of_weights

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The first eight bytes of a file: how long its header is.
LENGTH_SIZE = 8

# A mapped file begins at a page, so what is at a multiple of this in the file is aligned in memory, too, well enough
# for JAX to use it where it is.
ALIGNMENT = 64

# What the native code reads: a tensor takes about 100 bytes of it.
MAX_HEADER_SIZE = _native.MAX_TENSORS_HEADER_SIZE
MAX_RANK = _native.MAX_TENSOR_RANK
METADATA = "__metadata__"  # which no tensor can be called


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a file; positions are in bytes, from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """What a header says; the tensors are in the order of their positions."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    size: int  # of the header with its length, which is where the tensors begin


def size_of_header(first_bytes: bytes, file_size: int) -> int:
    """How many bytes the header takes with its length, given the first eight bytes of a file.

    Raises:
        WeightsError: the file is too short for it, or it is too long to be read.
    """
    length = int.from_bytes(first_bytes[:LENGTH_SIZE], "little")
    if length > MAX_HEADER_SIZE and (other := instead_of_weights(first_bytes)):
        raise WeightsError("", "a safetensors file", f"one of {file_size:,} bytes{other}")
    return _native.size_of_tensors_header(first_bytes, file_size)


def read(head: Buffer, file_size: int) -> Header:
    """Reads and checks a header, its length included.

    Tensors must lie one behind the other and fill the file, and each must have the size that its dtype and shape say.

    Raises:
        WeightsError: says which tensor is wrong, what was expected, and what was found.
    """
    tensors, metadata, size = _native.read_tensors_header(head, file_size)
    return Header({tensor[0]: Tensor(*tensor) for tensor in tensors}, metadata, size)


def compose(tensors: Iterable[Tensor], metadata: Mapping[str, str], size: int | None = None) -> bytes:
    """The bytes in front of the tensors, which they leave aligned; or so many bytes, where that is possible."""
    entries: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    for tensor in tensors:
        offsets = [tensor.start, tensor.end]
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(LENGTH_SIZE + len(text)) % ALIGNMENT if size is None else size - LENGTH_SIZE - len(text))
    return len(text).to_bytes(LENGTH_SIZE, "little") + text


def is_text(name: str) -> bool:
    """Whether a name is Unicode text: JSON's escapes also write halves of surrogate pairs."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
