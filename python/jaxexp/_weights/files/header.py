"""What a file of tensors says of itself: where each tensor lies in it, and the digest of its content.

Native code reads and checks the headers of files that others may have written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp import _native
from jaxexp._errors import ExportError, WeightsError
from jaxexp._kernel.artifact.words import dtype_and_shape, is_text
from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import instead_of_weights

from . import places
from .dtypes import held_as, size_of, unnamed

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The first eight bytes of a file: how long its header is.
LENGTH_SIZE = 8

# A mapped file begins at a page, so a multiple of this in the file is also aligned in memory, well enough for JAX to
# use the tensor without a copy.
ALIGNMENT = 64

# The largest header that native code reads; a tensor takes about 100 bytes of it.
MAX_HEADER_SIZE = _native.MAX_TENSORS_HEADER_SIZE
_ROOM_FOR_METADATA = 4096

CONTENT = "content"  # the key for the digest of the content in a file's metadata, in hexadecimal
UNKNOWN = "0" * 32  # this digest, until all tensors are written
_METADATA = "__metadata__"  # no tensor can have this name
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
class Source:
    """A tensor, wherever its bytes are."""

    name: str
    dtype: str  # as the format names it
    shape: tuple[int, ...]  # in a file
    pieces: Callable[[], Iterable[Buffer]]  # makes its bytes, row by row, in pieces of any size
    origin: Any = None  # the source of the bytes, if they cannot change: an array, or a key for part of a file
    digest: bytes | None = None  # the XXH3 digest of its bytes, if it is known from elsewhere and must match
    of: str | None = None  # as in `Tensor`
    file: str = ""  # what messages call the file that it is in; empty for an array
    whole: Callable[[], memoryview] | None = None  # makes all bytes at once, if that is not to join the pieces

    @property
    def size(self) -> int:
        """How many bytes it takes in a file."""
        size = size_of(self.dtype, self.shape)
        assert size is not None  # `held_as` chose the dtype
        return size

    def __str__(self) -> str:
        return str(Tensor(self.name, self.dtype, self.shape, 0, self.size, self.of))

    def data(self) -> memoryview:
        """All of its bytes: a read-only view if they are in a mapped file."""
        if self.whole is not None:
            return self.whole()
        pieces = list(self.pieces())
        return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def checked(self, digest: bytes) -> bytes:
        """The digest of the bytes that were made; a WeightsError if another one is known."""
        if self.digest is not None and digest != self.digest:
            raise damaged("", self.name, self.digest, digest)
        return digest


def damaged(file: str, name: str, expected: bytes, found: bytes) -> WeightsError:
    said = f"bytes with the digest {expected.hex()}", f"the digest {found.hex()}"
    return WeightsError(name, *said, file=file or None)


class StoredFile(NamedTuple):
    """A file of tensors, as a trailer describes it."""

    name: str
    size: int
    content: bytes

    @property
    def second_name(self) -> str:
        return places.second_name(self.name, self.content)


class StoredTensor(NamedTuple):
    name: str
    file: int
    size: int
    digest: bytes


class Table(NamedTuple):
    """What a trailer says about weights: the files, and a tensor in one of them for each of the first arguments.

    It is also what `_native.Artifact.weights` returns, and `_native.Notes` takes.
    """

    files: tuple[StoredFile, ...] = ()
    tensors: tuple[StoredTensor, ...] = ()
    other_names: tuple[tuple[str, int], ...] = ()  # of tied weights: a further name, and which tensor it is

    @classmethod
    def of_trailer(cls, files: Iterable[Any], tensors: Iterable[Any], other_names: Iterable[Any] = ()) -> Table:
        return cls(tuple(map(StoredFile._make, files)), tuple(map(StoredTensor._make, tensors)), tuple(other_names))

    def with_other_names(self, other_names: Mapping[str, str]) -> Table:
        """The same table with further names of tensors, given with their own names."""
        place = {tensor.name: number for number, tensor in enumerate(self.tensors)}
        return self._replace(other_names=tuple((n, place[own]) for n, own in other_names.items()))

    def named_otherwise(self) -> dict[str, str]:
        """The further names of tensors, with their own names."""
        return {other: self.tensors[number].name for other, number in self.other_names}


NO_TABLE = Table()


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
        raise WeightsError("", "a safetensors file", f"a file of {file_size:,} bytes{other}")
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


def compose(tensors: Collection[Tensor | Source], metadata: Mapping[str, str], size: int | None = None) -> bytes:
    """The bytes in front of tensors that lie one after the other, padded so that these are aligned, or padded to `size`
    if they fit.
    """
    said = {**metadata, **{_DTYPE + tensor.name: tensor.of for tensor in tensors if tensor.of}}
    entries: dict[str, Any] = {_METADATA: said} if said else {}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.size
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(LENGTH_SIZE + len(text)) % ALIGNMENT if size is None else size - LENGTH_SIZE - len(text))
    return len(text).to_bytes(LENGTH_SIZE, "little") + text


# --- files that are to be written -----------------------------------------------------------------------------------


class PlannedFile(NamedTuple):
    """A file that is to be written; its tensors lie one after the other."""

    name: str
    tensors: list[Source]

    @property
    def data_size(self) -> int:
        """How many bytes come after the header."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def size(self) -> int:
        return len(self.head()) + self.data_size

    def head(self, content: str = UNKNOWN) -> bytes:
        """The bytes in front of the tensors."""
        return compose(self.tensors, {"writer": files.WRITER, CONTENT: content})


def plan(name: str, sources: Iterable[Source], max_file_size: int | None = None) -> list[PlannedFile]:
    """Distributes tensors over files, of which each has at most `max_file_size` bytes of tensors.

    A larger tensor has a file to itself. An ExportError if a header would be too long to be read again, or if a name
    cannot stand in it.
    """
    groups: list[list[Source]] = [[]]
    size, most = 0, _native.MAX_TENSOR_RANK
    for source in sources:
        if source.name == _METADATA or not is_text(source.name):
            raise ExportError(f"a tensor in a safetensors file cannot be called {source.name!r}")
        if len(source.shape) > most:
            raise ExportError(
                f"the tensor {source.name!r} has rank {len(source.shape)}; at most {most} can be read again"
            )
        if max_file_size is not None and groups[-1] and size + source.size > max_file_size:
            groups.append([])
            size = 0
        groups[-1].append(source)
        size += source.size
    planned = []
    for number, group in enumerate(groups, start=1):
        # Holes are forbidden, so tensors whose size keeps the next one aligned come first. The rest are still aligned
        # for their own elements.
        group.sort(key=lambda source: math.gcd(source.size, ALIGNMENT), reverse=True)
        file = PlannedFile(places.shard_name(name, number, len(groups)), group)
        length = len(compose(file.tensors, {})) - LENGTH_SIZE
        if length > MAX_HEADER_SIZE - _ROOM_FOR_METADATA:
            raise ExportError(
                f"{file.name} would have a header of {length:,} bytes for its {len(file.tensors):,} tensors, and at "
                f"most {MAX_HEADER_SIZE:,} can be read: write several files, with a smaller max_weights_file_size"
            )
        planned.append(file)
    return planned


# --- content: whether a file was replaced ---------------------------------------------------------------------------


def content_of(tensors: Iterable[Tensor | Source], digests: Mapping[str, bytes]) -> bytes:
    """The XXH3 digest of the names, dtypes, shapes and digests of a file's tensors, as JSON in the order of the names
    in UTF-8. `digests` has those of the tensors by name.
    """
    in_order = sorted(tensors, key=lambda tensor: tensor.name.encode())
    rows = [(tensor.name, tensor.dtype, tensor.shape, digests[tensor.name].hex()) for tensor in in_order]
    return _native.digest(json.dumps(rows, separators=(",", ":")).encode())


def is_content(content: str, tensors: Iterable[Tensor | Source], digests: Mapping[str, bytes]) -> bool:
    """Whether this is that digest in hexadecimal, also as the first files had it: of the tensors' digests alone."""
    first = _native.digest(b"".join(digests[name] for name in sorted(digests, key=str.encode)))
    return content in (content_of(tensors, digests).hex(), first.hex())


def xxh3(pieces: Iterable[Buffer]) -> bytes:
    """The XXH3 digest of bytes, which finds accidents. Equal ones can be forged."""
    digester = _native.Digester()
    for piece in pieces:
        digester.update(piece)
    return digester.digest()


def sha256(pieces: Iterable[Buffer]) -> bytes:
    """The SHA-256 of bytes, for comparisons where somebody may have made an equal XXH3 digest."""
    digester = hashlib.sha256()
    for piece in pieces:
        digester.update(piece)
    return digester.digest()
