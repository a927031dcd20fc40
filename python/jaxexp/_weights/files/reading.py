"""Tensors in files: one file, or several with an index. Files are mapped, and read when they are used; files behind
URLs are read by ranges."""

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
    """One file: mapped, copied to memory, or behind a URL.

    Attributes:
        name: what messages call it.
        identity: a key that no other file has, and no earlier or later state of this one; None if it is not known.
        header: which tensors it has.
        is_described: whether the log says how its tensors are used.
    """

    def __init__(self, name: str, found: places.MappedFile | _Behind) -> None:
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
        return self._bytes.read(start + tensor.start, start + tensor.end)

    def pieces_of(self, tensor: Tensor) -> Iterator[memoryview]:
        """The same in pieces. A file behind a URL holds one piece at a time."""
        start, end = self.header.size + tensor.start, self.header.size + tensor.end
        for piece in range(start, end, PIECE):
            yield self._bytes.read(piece, min(piece + PIECE, end))


def is_of_others(path: str) -> bool:
    """Whether there is a file, or an index, that jaxexp did not write, or of which it cannot tell. An empty file has
    nothing to lose.
    """
    try:
        if not os.path.getsize(path):
            return False
        found = places.mapped(places.open_named(path))
        if path.endswith(places.INDEX_SUFFIX):
            return not is_own_index(found.memory[:])
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


def check_digest(file: HoldsTensors, tensor: Tensor, expected: bytes) -> None:
    """Raises a WeightsError if the bytes of a tensor have another XXH3 digest."""
    if isinstance(file, TensorFile) and file.identity is None:  # behind a URL, so a piece at a time
        digester = _native.Digester()
        for piece in file.pieces_of(tensor):
            digester.update(piece)
        found = digester.digest()
    else:
        found = _native.digest(file.bytes_of(tensor))
    if found != expected:
        raise damaged(file.name, tensor.name, expected, found)


def source_in(file: HoldsTensors, tensor: Tensor, digest: bytes | None) -> Source:
    """A tensor as it is written to another file; `digest` as in `Source`."""

    def pieces() -> Iterator[memoryview]:
        whole = file.bytes_of(tensor)
        for start in range(0, len(whole), PIECE):
            yield whole[start : start + PIECE]

    origin = None if file.identity is None else (*file.identity, tensor.start, tensor.end)
    return Source(tensor.name, tensor.dtype, tensor.shape, pieces, origin, digest)


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


def open_tensors(path: str | os.PathLike[str], stable: bool = False) -> Tensors:
    """Opens a safetensors file, or several of them by their index (``.safetensors.index.json``).

    Only headers are read. If another program shortens a file while it is mapped, this process may end with SIGBUS. With
    `stable`, files are copied to memory instead.

    Raises:
        WeightsError: a file cannot be read; the error names it.
        OSError: it cannot be opened.
    """
    name = os.fsdecode(path)
    with files.named_in_errors(name):
        if not name.endswith(places.INDEX_SUFFIX):
            return Tensors([TensorFile(name, places.taken(places.open_named(name), stable))])
        weight_map = _native.read_weight_map(places.copied(places.open_named(name)).memory)
        tensor_files = [_shard(name, shard, stable) for shard in dict.fromkeys(weight_map.values())]
        found = Tensors(tensor_files)
        _check_map(found, weight_map)
        return found


def open_beside(
    path: str | os.PathLike[str], name: str, stable: bool = False, check: Check | None = None
) -> TensorFile:
    """Opens a safetensors file whose name comes from another file. It must be beside that file.

    With `stable`, the file is copied to memory instead of mapped. `check` sees its path and its bytes before anything
    else does.
    """
    return _shard(os.fsdecode(path), name, stable, check)


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


def _shard(path: str, name: str, stable: bool, check: Check | None = None) -> TensorFile:
    with files.named_in_errors(path):
        places.check_name(name)
    shown = os.path.join(os.path.dirname(path), name)
    with files.named_in_errors(shown):
        try:
            descriptor = places.open_beside(path, name)
        except FileNotFoundError:
            raise _missing(os.path.basename(path)) from None
        found = places.taken(descriptor, stable)
        if check is not None:
            check(shown, found.memory)
        return TensorFile(shown, found)


def _missing(beside: str) -> WeightsError:
    return WeightsError("", f"a file that {beside!r} names", "none of this name")


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
