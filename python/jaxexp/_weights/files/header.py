"""The header of a file: which tensors it has and where. Native code reads and checks headers from others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import WeightsError
from jaxexp._kernel.artifact.words import dtype_and_shape
from jaxexp._kernel.io.other_files import instead_of_weights

from .dtypes import held_as, unnamed

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The first eight bytes of a file: how long its header is.
LENGTH_SIZE = 8

# A mapped file begins at a page, so a multiple of this in the file is also aligned in memory, well enough for JAX to
# use the tensor without a copy.
ALIGNMENT = 64

# The largest header that native code reads; a tensor takes about 100 bytes of it.
MAX_HEADER_SIZE = _native.MAX_TENSORS_HEADER_SIZE
MAX_RANK = _native.MAX_TENSOR_RANK
METADATA = "__metadata__"  # no tensor can have this name
_DTYPE = "dtype:"  # and the name of a tensor, in the metadata: its JAX dtype


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a file; positions are in bytes, from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    of: str | None = None  # the JAX dtype, if it is known and not the one that the format calls `dtype`

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return dtype_and_shape(self.dtype, self.shape) + (f" of {self.of}" if self.of else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The parts of a header; the tensors are in the order of their positions."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    size: int  # of the header with its length: the tensors begin there


def size_of_header(first_bytes: bytes, file_size: int) -> int:
    """How many bytes the header takes with its length, which is in the first eight bytes; or a WeightsError."""
    length = int.from_bytes(first_bytes[:LENGTH_SIZE], "little")
    if length > MAX_HEADER_SIZE and (other := instead_of_weights(first_bytes)):
        raise WeightsError("", "a safetensors file", f"one of {file_size:,} bytes{other}")
    return _native.size_of_tensors_header(first_bytes, file_size)


def read(head: Buffer, file_size: int) -> Header:
    """Reads and checks a header, its length included. A WeightsError says which tensor is wrong.

    Tensors must lie one after the other and fill the file. Each must have the size of its dtype and shape.
    """
    tensors, metadata, size = _native.read_tensors_header(head, file_size)
    found = (Tensor(*tensor, of=_unnamed(metadata, *tensor[:3])) for tensor in tensors)
    return Header({tensor.name: tensor for tensor in found}, metadata, size)


def _unnamed(metadata: Mapping[str, str], name: str, dtype: str, shape: tuple[int, ...]) -> str | None:
    """The JAX dtype of a tensor in a file that says so."""
    said = metadata.get(_DTYPE + name)
    if said is None or unnamed(said, whole := shape[:-1] if said == "complex128" else shape) is None:
        return None
    return said if held_as(said, whole) == (dtype, shape) else None


def compose(tensors: Iterable[Tensor], metadata: Mapping[str, str], size: int | None = None) -> bytes:
    """The bytes in front of the tensors, padded so that these are aligned, or padded to `size` if they fit."""
    tensors = tuple(tensors)
    said = {**metadata, **{_DTYPE + tensor.name: tensor.of for tensor in tensors if tensor.of}}
    entries: dict[str, Any] = {METADATA: said} if said else {}
    for tensor in tensors:
        offsets = [tensor.start, tensor.end]
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(LENGTH_SIZE + len(text)) % ALIGNMENT if size is None else size - LENGTH_SIZE - len(text))
    return len(text).to_bytes(LENGTH_SIZE, "little") + text
