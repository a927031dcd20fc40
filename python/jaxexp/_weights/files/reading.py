"""Tensors in files: in one or several that the user names, and in those that an artifact's trailer names."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from jaxexp import _native
from jaxexp._errors import WeightsError
from jaxexp._kernel.io import files
from jaxexp._kernel.io.sources import open_source

from . import header, places
from .header import CONTENT, LENGTH_SIZE, NO_TABLE, Header, Source, StoredFile, StoredTensor, Table, damaged, xxh3
from .places import Take

if TYPE_CHECKING:
    from typing_extensions import Buffer

Check: TypeAlias = "Callable[[str, Buffer], None]"

# How much of a tensor is written at once, or fetched.
PIECE = 1 << 24


class TensorFile:
    """One file: mapped, copied to memory, read in pieces, or behind a URL.

    Attributes:
        name: what messages call it.
        size: how many bytes it has.
        identity: a key that no other file has, and no earlier or later state of this one; None if it is not known.
        header: which tensors it has.
    """

    def __init__(self, name: str, found: places.Bytes | places.FileInPieces) -> None:
        """Reads and checks the header; a WeightsError names the file."""
        self.name = name
        self.size, self.identity = found.size, found.identity
        self._bytes = found
        with files.named_in_errors(name):
            first = bytes(found.read(0, min(LENGTH_SIZE, self.size)))
            end = header.size_of_header(first, self.size)
            self.header: Header = header.read(first + bytes(found.read(LENGTH_SIZE, end)), self.size)

    @property
    def content(self) -> str | None:
        """The digest of the file's content in its header (`content_of`); None if another program wrote the file."""
        return self.header.metadata.get(CONTENT)

    def is_same(self, stored: StoredFile) -> bool:
        """Whether the file says that it is the one that a trailer describes."""
        return self.size == stored.size and self.content == stored.content.hex()

    def source(self, name: str, digest: bytes | None = None) -> Source:
        """A tensor; KeyError if there is none of this name. `digest` as in `Source`.

        Of a file that is neither mapped nor copied, one piece is held at a time.
        """
        tensor = self.header.tensors[name]
        start, end = self.header.size + tensor.start, self.header.size + tensor.end

        def pieces() -> Iterator[memoryview]:
            return (self._read(piece, min(piece + PIECE, end)) for piece in range(start, end, PIECE))

        origin = None if self.identity is None else (*self.identity, start, end)
        whole = functools.partial(self._read, start, end)
        return Source(name, tensor.dtype, tensor.shape, pieces, origin, digest, tensor.of, self.name, whole)

    def _read(self, start: int, end: int) -> memoryview:
        with files.named_in_errors(self.name):
            return self._bytes.read(start, end)


def in_pieces(data: memoryview) -> Iterator[memoryview]:
    """Bytes as `Source.pieces` makes them."""
    return (data[start : start + PIECE] for start in range(0, len(data), PIECE))


def check_digest(source: Source) -> None:
    """Raises a WeightsError if the bytes of a tensor have another digest than the one that is known."""
    if source.digest is not None and (found := xxh3(source.pieces())) != source.digest:
        raise damaged(source.file, source.name, source.digest, found)


# --- files that the user names --------------------------------------------------------------------------------------


class TensorFiles(dict[str, Source]):
    """The tensors of one or several files, by their names."""

    def __init__(self, tensor_files: list[TensorFile]) -> None:
        super().__init__()
        self.files = tensor_files
        for file in tensor_files:
            for name in file.header.tensors:
                if name in self:
                    found = f"another one in {self[name].file!r}"
                    raise WeightsError(name, "a tensor of this name in one file", found, file=file.name)
                self[name] = file.source(name)


def open_tensors(path: str | os.PathLike[str], take: Take = "mapped", check: Check | None = None) -> TensorFiles:
    """Opens a safetensors file, or several of them by their index (``.safetensors.index.json``).

    Of a file that is not copied, only the header is read. `check` sees the path and the bytes of each file, also of the
    index, before anything else does. A WeightsError names the file that cannot be read.
    """
    name = os.fsdecode(path)
    with files.named_in_errors(name):
        if not name.endswith(places.INDEX_SUFFIX):
            return TensorFiles([_opened(name, places.open_named(name), take, check)])
        weight_map = read_index(name, check)
        found = TensorFiles([_open_beside(name, file, take, check) for file in dict.fromkeys(weight_map.values())])
        _check_map(found, weight_map)
        return found


def open_file(path: str, check: Check | None = None) -> TensorFile:
    """One file, read in pieces; at once, if `check` has to see its bytes before anything else does."""
    return _opened(path, places.open_named(path), "in pieces" if check is None else "copied", check)


def _opened(name: str, descriptor: int, take: Take, check: Check | None = None, size: int | None = None) -> TensorFile:
    found = places.taken(descriptor, take, size)
    if check is not None:
        check(name, found.read(0, found.size))
    return TensorFile(name, found)


def read_index(path: str, check: Check | None = None) -> dict[str, str]:
    """The file of each tensor, by its name, as an index says; a WeightsError if it is none, or too large."""
    found = places.FileInPieces(places.open_named(path))
    # Native code says what is wrong with a larger one.
    content = found.read(0, min(found.size, _native.MAX_TENSORS_INDEX_SIZE + 1))
    if check is not None:
        check(path, content)
    return _native.read_weight_map(content)


def _check_map(tensors: TensorFiles, weight_map: Mapping[str, str]) -> None:
    for name, shard in weight_map.items():
        if name not in tensors:
            raise WeightsError(name, f"this tensor in {shard!r}", "none of this name")
        if os.path.basename(file := tensors[name].file) != shard:
            raise WeightsError(name, f"this tensor in {shard!r}", f"it in {file!r}")
    for name in tensors:
        if name not in weight_map:
            file = os.path.basename(tensors[name].file)
            raise WeightsError(name, "an entry for this tensor in the weight_map", f"it only in {file!r}")


def is_of_others(path: str) -> bool:
    """Whether there is a file, or an index, that jaxexp did not write, or of which it cannot tell. An empty file has
    nothing to lose.
    """
    try:
        if not os.path.getsize(path):
            return False
        if not path.endswith(places.INDEX_SUFFIX):
            return open_file(path).content is None
        index = places.FileInPieces(places.open_named(path))
        found = json.loads(bytes(index.read(0, index.size)))
        return not str(found["metadata"]["writer"]).startswith("jaxexp ")
    except FileNotFoundError:
        return False
    except (WeightsError, ValueError, LookupError, TypeError, RecursionError):
        return True


def _open_beside(path: str, name: str, take: Take, check: Check | None = None, size: int | None = None) -> TensorFile:
    """Opens a file whose name comes from another file. It must be beside that file."""
    with files.named_in_errors(path):
        places.check_name(name)
    shown = os.path.join(os.path.dirname(path), name)
    with files.named_in_errors(shown):
        try:
            descriptor = places.open_beside(path, name)
        except FileNotFoundError:
            raise _missing(path) from None
        return _opened(shown, descriptor, take, check, size)


def _missing(path: str) -> WeightsError:
    beside = os.path.basename(path)
    return WeightsError("", f"a file that {beside!r} names", f"none of this name: copy it beside {beside!r}, too")


# --- files that an artifact names -----------------------------------------------------------------------------------


class Tensors:
    """Tensors by the names that a program has for them, wherever they are."""

    def __init__(
        self,
        names: Iterable[str],
        find: Callable[[int], Source],
        where: str,
        *,
        stable: bool = False,
        table: Table = NO_TABLE,
        named: Iterable[TensorFile] = (),
    ) -> None:
        """Args:
        names: the names.
        find: returns the tensor of a place among the names, without reading it. It raises a WeightsError if the tensor
            is missing, or differs from the table.
        where: what messages say of the place.
        stable: whether they are copied to memory, where other files would be mapped.
        table: what a trailer says of them; empty if no trailer names them.
        named: the files that they are in, if the user named these, until the log says how they are used.
        """
        self.where, self.stable, self.table, self.named = where, stable, table, list(named)
        self._places = {name: place for place, name in enumerate(names)}
        self._find = find

    def find(self, name: str) -> Source:
        return self._find(self._places[name])

    def sources(self) -> list[Source]:
        """All of the table. None is read."""
        return [self._find(place) for place in range(len(self.table.tensors))]

    def check_digests(self) -> None:
        """Compares each tensor of the table with its digest; a WeightsError if one is damaged."""
        for place in range(len(self.table.tensors)):
            check_digest(self._find(place))


def together(*parts: Tensors | None) -> Tensors | None:
    """The tensors of several tables, for whoever moves all files of an artifact; None if there are none. Tensors of two
    tables may have one name, so none of these is found by its name.
    """
    found = [part for part in parts if part is not None]
    if len(found) < 2:
        return found[0] if found else None
    stored: list[StoredFile] = []
    tensors: list[StoredTensor] = []
    for part in found:
        tensors += [tensor._replace(file=tensor.file + len(stored)) for tensor in part.table.tensors]
        stored += part.table.files
    find = [functools.partial(part._find, place) for part in found for place in range(len(part.table.tensors))]
    return Tensors((), lambda place: find[place](), "", table=Table(tuple(stored), tuple(tensors)))


class Opening(NamedTuple):
    """How the files of a table are opened."""

    take: Take = "mapped"  # behind URLs, they are read by ranges
    check: Check | None = None  # sees the path and the bytes of each file before anything else does
    own_names: bool = False  # whether second names do not count: files that are signed have only their own
    url_of: Callable[[str], str] | None = None  # for an artifact behind a URL: the URL of a file, by its name

    @classmethod
    def signed(cls, check: Check) -> Opening:
        """For files that have to be signed. None is between two steps of saving: it was signed after the last one."""
        return cls("copied", check, own_names=True)


MAPPED = Opening()


class StoredTensors(Tensors):
    """The tensors of a table in files beside an artifact. Each file is opened when one of its tensors is needed."""

    def __init__(self, path: str | os.PathLike[str], table: Table, how: Opening = MAPPED) -> None:
        """`path` is that of the artifact, or its URL. With `how.check`, all files are opened now."""
        # Files are opened later, perhaps from another folder.
        self.path = os.fsdecode(path) if how.url_of else os.path.abspath(os.fsdecode(path))
        names, is_stable = (tensor.name for tensor in table.tensors), how.take == "copied"
        super().__init__(names, self._found, f"beside {self.path!r}", stable=is_stable, table=table)
        self._how = how
        self._open: Callable[[int], TensorFile] = functools.cache(self._opened)
        if how.check is not None:
            self.sources()

    def paths(self) -> list[str]:
        """The path or the URL of each file, under the name that it was found by; each is opened."""
        return [self._open(number).name for number in range(len(self.table.files))]

    def check_whole(self) -> None:
        """Raises a WeightsError if files have more tensors than the table, which then cannot make them again."""
        for number in range(len(self.table.files)):
            names = {tensor.name for tensor in self.table.tensors if tensor.file == number}
            file = self._open(number)
            if others := [name for name in file.header.tensors if name not in names]:
                expected = f"only the tensors of {os.path.basename(self.path)!r}"
                raise WeightsError("", expected, f"{others[0]!r}, too", file=file.name)

    def are_there(self, folder: str, name: str) -> bool:
        """Whether the files are those that would be written to a folder under this name, where somebody may have put
        others since they were opened. Copied ones are compared by their digests.
        """
        count = len(self.table.files)
        names = [places.shard_name(name, number, count) for number in range(1, count + 1)]
        is_folder = os.path.realpath(os.path.dirname(self.path)) == os.path.realpath(folder)
        if not is_folder or [file.name for file in self.table.files] != names:
            return False
        self.sources()  # raises an error if files that are opened now are not those of the table
        return all(map(self._is_there, range(count)))

    def _is_there(self, number: int) -> bool:
        file, identity = self.table.files[number], self._open(number).identity
        try:
            if identity is not None:  # its ctime may differ: a new name changes that
                now = places.identity_of(os.stat(os.path.join(os.path.dirname(self.path), file.name)))
                return now[:-1] == identity[:-1]
            there = _open_beside(self.path, file.name, "in pieces")
            for stored in self.table.tensors:
                if stored.file == number:
                    check_digest(there.source(stored.name, stored.digest))
            return there.is_same(file)
        except (WeightsError, OSError, KeyError):
            return False

    def _found(self, place: int) -> Source:
        stored = self.table.tensors[place]
        file = self._open(stored.file)
        tensor = file.header.tensors.get(stored.name)
        if tensor is None or tensor.size != stored.size:
            found = str(tensor) if tensor else "none of this name"
            raise WeightsError(stored.name, f"a tensor of {stored.size:,} bytes", found, file=file.name)
        return file.source(stored.name, stored.digest)

    def _opened(self, number: int) -> TensorFile:
        """A file; a WeightsError if it is damaged, or not the one that the artifact was saved with."""
        stored = self.table.files[number]
        second = stored.second_name
        # Between two steps of saving, or after a process died there, the file has only its second name. That name is
        # tried again, because the file may have got its own in the meantime. No program saves behind a URL.
        names = (stored.name, second) if self._how.url_of else (second, stored.name, second)
        for name in () if self._how.own_names else names:
            with contextlib.suppress(FileNotFoundError, WeightsError):
                file = self._opened_as(name, stored.size)
                if file.is_same(stored):
                    return file
        try:
            file = self._opened_as(stored.name, stored.size)
            if not file.is_same(stored):
                program = os.path.basename(self.path)
                content = "without a digest" if file.content is None else f"content {file.content}"
                raise WeightsError(
                    "",
                    f"the file that {program!r} was saved with ({stored.size:,} bytes, content {stored.content.hex()})",
                    f"another one ({file.size:,} bytes, {content}). To use other weights, pass them to with_weights",
                    file=file.name,
                )
        except WeightsError as error:
            if self._how.own_names and os.path.lexists(os.path.join(os.path.dirname(self.path), second)):
                error.found += (
                    f". {second!r} is there, as after a process that died while it saved: save the artifact again, or "
                    "rename that file"
                )
            raise
        return file

    def _opened_as(self, name: str, size: int) -> TensorFile:
        if self._how.url_of is None:
            return _open_beside(self.path, name, self._how.take, self._how.check, size)
        with files.named_in_errors(self.path):
            places.check_name(name)
            if "::" in name:
                raise WeightsError("", "a name without '::', which joins URLs", repr(name))
        url = self._how.url_of(name)
        with files.named_in_errors(url):
            try:
                source = open_source(url, {})
                places.check_size(source.size)
                found = places.Bytes(source.size, lambda start, end: memoryview(source.read(start, end - start)))
                return TensorFile(url, found)
            except FileNotFoundError:
                raise _missing(self.path) from None
