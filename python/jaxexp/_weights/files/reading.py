"""Tensors in files: one file, or several with an index. Files are mapped, copied or read in pieces; files behind URLs
are read by ranges."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from jaxexp import _native
from jaxexp._errors import WeightsError
from jaxexp._kernel.io import files
from jaxexp._kernel.io.sources import open_source

from . import header, places
from .content import CONTENT
from .header import LENGTH_SIZE, Header, Tensor
from .writing import Source, damaged, is_own_index

if TYPE_CHECKING:
    from typing_extensions import Buffer

Check: TypeAlias = "Callable[[str, Buffer], None]"

# How much of a tensor is written at once, or fetched.
PIECE = 1 << 24


class TensorFile:
    """One file: mapped, copied to memory, read in pieces, or behind a URL.

    Attributes:
        name: what messages call it.
        identity: a key that no other file has, and no earlier or later state of this one; None if it is not known.
        header: which tensors it has.
        is_described: whether the log says how its tensors are used.
    """

    def __init__(self, name: str, found: places.MappedFile | places.FileInPieces | _Behind) -> None:
        """Reads and checks the header; a WeightsError names the file."""
        self.name = name
        self.identity: tuple[int, ...] | None = found.identity
        self.is_described = False
        self._bytes = found
        with files.named_in_errors(name):
            first = bytes(found.read(0, min(LENGTH_SIZE, self.size)))
            end = header.size_of_header(first, self.size)
            self.header: Header = header.read(first + bytes(found.read(LENGTH_SIZE, end)), self.size)

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return self._bytes.size

    @property
    def content(self) -> str | None:
        """The digest of the file's content in its header (`content_of`); None if another program wrote the file."""
        return self.header.metadata.get(CONTENT)

    def bytes_of(self, tensor: Tensor) -> memoryview:
        """The bytes of a tensor: a read-only view if the file is mapped."""
        start = self.header.size
        return self._read(start + tensor.start, start + tensor.end)

    def pieces_of(self, tensor: Tensor) -> Iterator[memoryview]:
        """The same in pieces. Of a file that is neither mapped nor copied, one piece is held at a time."""
        start, end = self.header.size + tensor.start, self.header.size + tensor.end
        for piece in range(start, end, PIECE):
            yield self._read(piece, min(piece + PIECE, end))

    def _read(self, start: int, end: int) -> memoryview:
        with files.named_in_errors(self.name):
            return self._bytes.read(start, end)


def is_of_others(path: str) -> bool:
    """Whether there is a file, or an index, that jaxexp did not write, or of which it cannot tell. An empty file has
    nothing to lose.
    """
    try:
        if not os.path.getsize(path):
            return False
        found = places.FileInPieces(places.open_named(path))
        if path.endswith(places.INDEX_SUFFIX):
            return not is_own_index(bytes(found.read(0, found.size)))
        return TensorFile(path, found).content is None
    except FileNotFoundError:
        return False
    except WeightsError:
        return True


class HoldsTensors(Protocol):
    """A file that holds tensors, or a part of one."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def identity(self) -> tuple[int, ...] | None:
        """As in `TensorFile`; None if it is not known."""
        ...

    def bytes_of(self, tensor: Tensor) -> memoryview: ...


def digest_of(file: HoldsTensors, tensor: Tensor) -> bytes:
    """The XXH3 digest of a tensor's bytes."""
    if not isinstance(file, TensorFile):
        return _native.digest(file.bytes_of(tensor))
    digester = _native.Digester()
    for piece in file.pieces_of(tensor):
        digester.update(piece)
    return digester.digest()


def check_digest(file: HoldsTensors, tensor: Tensor, expected: bytes) -> None:
    """Raises a WeightsError if the bytes of a tensor have another digest."""
    if (found := digest_of(file, tensor)) != expected:
        raise damaged(file.name, tensor.name, expected, found)


def source_in(file: HoldsTensors, tensor: Tensor, digest: bytes | None) -> Source:
    """A tensor as it is written to another file; `digest` as in `Source`."""

    def pieces() -> Iterator[memoryview]:
        if isinstance(file, TensorFile):
            yield from file.pieces_of(tensor)
            return
        whole = file.bytes_of(tensor)
        for start in range(0, len(whole), PIECE):
            yield whole[start : start + PIECE]

    origin = None if file.identity is None else (*file.identity, tensor.start, tensor.end)
    return Source(tensor.name, tensor.dtype, tensor.shape, pieces, origin, digest, tensor.of)


class Tensors(Mapping[str, Tensor]):
    """The tensors of one or several files, by their names."""

    def __init__(self, tensor_files: list[TensorFile]) -> None:
        self.files = tensor_files
        self._file_of: dict[str, TensorFile] = {}
        for file in tensor_files:
            for name in file.header.tensors:
                if name in self._file_of:
                    found = f"one in {self._file_of[name].name!r}"
                    raise WeightsError(name, "a tensor of this name in one file", found, file=file.name)
                self._file_of[name] = file

    def __getitem__(self, name: str) -> Tensor:
        return self._file_of[name].header.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def file_of(self, name: str) -> TensorFile:
        """The file that a tensor is in."""
        return self._file_of[name]


def open_tensors(
    path: str | os.PathLike[str], take: places.Take = places.mapped, check: Check | None = None
) -> Tensors:
    """Opens a safetensors file, or several of them by their index (``.safetensors.index.json``).

    `take` makes the bytes of each file. Of one that is not copied, only the header is read. `check` sees the path and
    the bytes of each file, also of the index, before anything else does.

    Raises:
        WeightsError: a file cannot be read; the error names it.
        OSError: it cannot be opened.
    """
    name = os.fsdecode(path)
    with files.named_in_errors(name):
        if not name.endswith(places.INDEX_SUFFIX):
            content = take(places.open_named(name))
            if check is not None:
                check(name, content.read(0, content.size))
            return Tensors([TensorFile(name, content)])
        weight_map = read_index(name, check)
        tensor_files = [open_beside(name, shard, take, check) for shard in dict.fromkeys(weight_map.values())]
        found = Tensors(tensor_files)
        _check_map(found, weight_map)
        return found


def read_index(path: str, check: Check | None = None) -> dict[str, str]:
    """The file of each tensor, by its name, as an index says. `check` as in `open_tensors`.

    Raises:
        WeightsError: it is no index, or too large.
        OSError: it cannot be opened.
    """
    found = places.FileInPieces(places.open_named(path))
    # Native code says what is wrong with a larger one.
    content = found.read(0, min(found.size, _native.MAX_TENSORS_INDEX_SIZE + 1))
    if check is not None:
        check(path, content)
    return _native.read_weight_map(content)


def open_beside(path: str | os.PathLike[str], name: str, take: places.Take, check: Check | None = None) -> TensorFile:
    """Opens a safetensors file whose name comes from another file. It must be beside that file.

    `check` sees its path and its bytes, which must be in memory, before anything else does.
    """
    beside = os.fsdecode(path)
    with files.named_in_errors(beside):
        places.check_name(name)
    shown = os.path.join(os.path.dirname(beside), name)
    with files.named_in_errors(shown):
        try:
            descriptor = places.open_beside(beside, name)
        except FileNotFoundError:
            raise _missing(os.path.basename(beside)) from None
        found = take(descriptor)
        if check is not None:
            check(shown, found.read(0, found.size))
        return TensorFile(shown, found)


def open_behind(url: str, beside: str) -> TensorFile:
    """Opens a safetensors file behind a URL; no more than a piece of it is held at a time.

    Messages say that its name comes from the file `beside`.
    """
    with files.named_in_errors(url):
        try:
            return TensorFile(url, _Behind(url))
        except FileNotFoundError:
            raise _missing(beside) from None


class _Behind:
    """The bytes of a file behind a URL."""

    identity = None

    def __init__(self, url: str) -> None:
        self._source = open_source(url, {})
        self.size = self._source.size
        if not self.size:
            raise WeightsError("", "a safetensors file", "an empty file")

    def read(self, start: int, end: int) -> memoryview:
        return memoryview(self._source.read(start, end - start))


def _missing(beside: str) -> WeightsError:
    return WeightsError("", f"a file that {beside!r} names", f"none of this name: copy it beside {beside!r}, too")


def _check_map(tensors: Tensors, weight_map: Mapping[str, str]) -> None:
    for name, shard in weight_map.items():
        if name not in tensors:
            raise WeightsError(name, f"this tensor in {shard!r}", "none of this name")
        if os.path.basename(tensors.file_of(name).name) != shard:
            raise WeightsError(name, f"this tensor in {shard!r}", f"it in {tensors.file_of(name).name!r}")
    for name in tensors:
        if name not in weight_map:
            file = os.path.basename(tensors.file_of(name).name)
            raise WeightsError(name, "every tensor of its files in the weight_map", f"it only in {file!r}")
