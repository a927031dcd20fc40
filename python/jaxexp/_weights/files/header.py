"""The header of a file: which tensors it has and where. What others wrote is checked before it is believed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from jaxexp._errors import WeightsError
from jaxexp._kernel.io.other_files import instead_of_weights

from .dtypes import BITS, size_of

# The first eight bytes of a file: how long its header is.
LENGTH_SIZE = 8

# A mapped file begins at a page, so what is at a multiple of this in the file is aligned in memory, too, well enough
# for JAX to use it where it is.
ALIGNMENT = 64

# JSON takes about ten times its size in memory, and a tensor takes about 100 bytes of it.
MAX_HEADER_SIZE = 16 << 20
MAX_RANK = 64
_MAX_DIGITS = 19  # of numbers below 2**63
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
    if len(first_bytes) < LENGTH_SIZE:
        _refuse("", "a safetensors file, which begins with the length of its header", f"{file_size} bytes")
    length = int.from_bytes(first_bytes[:LENGTH_SIZE], "little")
    if length > MAX_HEADER_SIZE:
        if other := instead_of_weights(first_bytes):
            _refuse("", "a safetensors file", f"one of {file_size:,} bytes{other}")
        _refuse("", f"a header of at most {MAX_HEADER_SIZE:,} bytes", f"one of {length:,} bytes")
    if length > file_size - LENGTH_SIZE:
        _refuse("", f"a header of {length:,} bytes", f"{file_size - LENGTH_SIZE:,} bytes up to the end of the file")
    return LENGTH_SIZE + length


def read(text: bytes, file_size: int) -> Header:
    """Reads and checks the header's text.

    Tensors must lie one behind the other and fill the file, and each must have the size that its dtype and shape say.

    Raises:
        WeightsError: says which tensor is wrong, what was expected, and what was found.
    """
    entries = json_object(text, "a header")
    metadata = _metadata(entries.pop(METADATA, {}))
    tensors = sorted((_tensor(name, entry) for name, entry in entries.items()), key=lambda t: (t.start, t.end))
    end = 0
    for tensor in tensors:
        if tensor.start != end:
            _refuse(tensor.name, f"that it begins at {end:,}, where the one before it ends", f"{tensor.start:,}")
        end = tensor.end
    size = LENGTH_SIZE + len(text)
    if file_size - size != end:
        _refuse("", f"{size + end:,} bytes, as its header says", f"{file_size:,} bytes")
    return Header({tensor.name: tensor for tensor in tensors}, metadata, size)


def compose(tensors: Iterable[Tensor], metadata: Mapping[str, str], size: int | None = None) -> bytes:
    """The bytes in front of the tensors, which they leave aligned; or so many bytes, where that is possible."""
    entries: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    for tensor in tensors:
        offsets = [tensor.start, tensor.end]
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(LENGTH_SIZE + len(text)) % ALIGNMENT if size is None else size - LENGTH_SIZE - len(text))
    return len(text).to_bytes(LENGTH_SIZE, "little") + text


def json_object(text: bytes, what: str, *, floats: bool = False) -> dict[str, Any]:
    """A JSON object whose keys are unique and whose numbers are natural numbers, or also floats.

    Raises:
        WeightsError: it is not.
    """
    if not text.startswith(b"{"):
        _refuse("", f"{what} that is a JSON object", f"one that begins with {bytes(text[:8])!r}")
    try:
        found = json.loads(
            text.decode(),
            object_pairs_hook=_unique,
            parse_int=_natural,
            parse_float=float if floats else _no_number,
            parse_constant=_no_number,
        )
    except RecursionError:
        _refuse("", f"{what} that is a JSON object", "one of too many levels")
    except ValueError as error:  # also of decode
        if isinstance(error, WeightsError):
            raise
        _refuse("", f"{what} in JSON and UTF-8", str(error))
    assert isinstance(found, dict)  # by its first character
    return found


def is_text(name: str) -> bool:
    """Whether a name is Unicode text: JSON's escapes also write halves of surrogate pairs."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _metadata(entries: Any) -> dict[str, str]:
    if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
        _refuse("", f"a {METADATA} that maps text to text", _shown(entries))
    if not all(is_text(text) for entry in entries.items() for text in entry):
        _refuse("", f"a {METADATA} that is Unicode text", "half of a surrogate pair")
    return entries


def _tensor(name: str, entry: Any) -> Tensor:
    if not is_text(name):
        _refuse(name, "a name that is Unicode text", "half of a surrogate pair")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        _refuse(name, "dtype, shape and data_offsets", _shown(entry))
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        _refuse(name, f"a dtype that is one of {', '.join(BITS)}", _shown(dtype))
    if not _are_numbers(shape) or len(shape) > MAX_RANK:
        _refuse(name, f"a shape of at most {MAX_RANK} natural numbers", _shown(shape))
    if not _are_numbers(offsets) or len(offsets) != 2:
        _refuse(name, "data_offsets that are two natural numbers", _shown(offsets))
    tensor = Tensor(name, dtype, tuple(shape), *offsets)
    size = size_of(dtype, shape)
    if size is None:
        _refuse(name, "a shape that fills whole bytes", str(tensor))
    if tensor.size != size:
        _refuse(name, f"{size:,} bytes for {tensor}", f"{tensor.size:,} bytes between its data_offsets")
    return tensor


def _are_numbers(found: Any) -> bool:
    return isinstance(found, list) and all(type(number) is int for number in found)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                _refuse("", "names that are different", f"{_shown(name)} twice")
            seen.add(name)
    return found


def _natural(digits: str) -> int:
    if digits.startswith("-") or len(digits) > _MAX_DIGITS or (number := int(digits)) >> 63:
        _no_number(digits)
    return number


def _no_number(digits: str) -> NoReturn:
    _refuse("", "natural numbers below 2**63", _shown(digits))


def _shown(found: Any) -> str:
    text = repr(found)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _refuse(tensor: str, expected: str, found: str) -> NoReturn:
    raise WeightsError(tensor, expected, found)
