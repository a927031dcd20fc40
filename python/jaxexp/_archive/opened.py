"""An archive that is open: its file and its index, which slices, handles and bulk loading share."""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError
from jaxexp._io.files import empty, named_in_errors
from jaxexp._io.sources import Source

if TYPE_CHECKING:
    from jaxexp._exported import Exported

# What is read from the end of a file that takes a request for each range: with luck the whole index.
_FIRST_FETCH = 1 << 16
# How much is fetched at once from where an archive is not in memory, and verified without a sign of life.
_AT_ONCE = 1 << 26


class Opened:
    """An open file and its index: what an archive, its slices and its handles share."""

    def __init__(self, source: Source, open_again: Callable[..., Any] | None = None) -> None:
        """Reads the end of the file, and the root of the index.

        Args:
            source: the file.
            open_again: opens an archive by its address; what a pickle of this calls.
        """
        self.source = source
        self.loaded: weakref.WeakValueDictionary[int, Exported] = weakref.WeakValueDictionary()
        self.kept: dict[int, Exported] = {}
        self._open_again = open_again
        self._names: list[str] | None = None
        try:
            with self.placed():
                self.end, self.pointer, self.index_bytes, root = _find_index(source)
                self.index = _native.ArchiveIndex(
                    self.index_bytes, root, self.pointer.root_digest, self.pointer.index_position
                )
        finally:
            source.opened()

    @property
    def unfinished_bytes(self) -> int:
        return self.source.size - self.end

    def label(self, name: str) -> str:
        """What messages call a member."""
        return f"{self.source.name}::{name}"

    def placed(self, name: str | None = None) -> named_in_errors:
        """A context in which errors get the name of the file, and of the member, that they are about."""
        return named_in_errors(self.source.name if name is None else self.label(name))

    def check(self) -> None:
        """Checks all of the index."""
        with self.placed():
            self.index.check()

    def find(self, name: object) -> int | None:
        if not isinstance(name, str):
            return None
        try:
            name.encode()
        except UnicodeEncodeError:
            return None
        with self.placed():
            return self.index.find(name)

    def names(self) -> list[str]:
        if self._names is None:
            with self.placed():
                self._names = self.index.names()
        return self._names

    def metadata(self, number: int) -> dict[str, Any]:
        member = self.index.member(number)
        if member.metadata is not None:
            return self.object(member.metadata)
        if member.own_metadata:
            return {}
        from jaxexp._artifact.metadata import from_json  # takes a while to import, for what few ask

        return from_json(_native.Artifact(*self.parts(number)).metadata() or {})

    @staticmethod
    def object(text: str) -> dict[str, Any]:
        """What a JSON text of the index says."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DeserializationError("index.metadata", "JSON", str(error)) from error
        if not isinstance(value, dict):
            raise DeserializationError("index.metadata", "a JSON object", f"a {type(value).__name__}")
        return value

    def parts(self, number: int) -> tuple[Any, list[Any]]:
        """The bytes of a member, and of its modules if they are apart."""
        position, size, modules = self.index.extent(number)
        image, *parts = self.source.read_many([(position, size), *modules])
        return image, parts

    def parts_of(self, extents: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
        """The bytes of several members, and of their modules, by their extents."""
        ranges = [place for position, size, modules, *_ in extents for place in ((position, size), *modules)]
        found = iter(self.source.read_many(ranges))
        return [(next(found), [next(found) for _ in modules]) for _, _, modules, *_ in extents]

    def artifact_bytes(self, number: int) -> Any:
        image, modules = self.parts(number)
        return bytes(_native.join(image, modules)) if modules else image

    def close(self) -> None:
        """Releases the file and the functions that are kept for it."""
        self.kept.clear()
        self.source.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickling opens the whole archive again."""
        if self.source.address is None or self._open_again is None:
            raise ExportError(
                f"an archive in a file object cannot be pickled: another process could not open {self.source.name}. "
                "Open it by its path or URL"
            )
        path, options = self.source.address
        return functools.partial(self._open_again, **options) if options else self._open_again, (path,)


def batches(extents: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Groups of members, of a limited size: the number of the first, and the number after the last."""
    first = size = 0
    for i, extent in enumerate(extents):
        size += extent[1] + sum(module for _, module in extent[2])
        if size >= _AT_ONCE:
            yield first, i + 1
            first, size = i + 1, 0
    if first < len(extents):
        yield first, len(extents)


def _find_index(source: Source) -> tuple[int, _native.ArchiveEnd, Any, Any]:
    """Where the archive ends, what its last bytes say, the bytes of its index, and those of the index's root."""
    if source.size == 0:
        raise empty("an archive of artifacts")
    first = min(source.size, _FIRST_FETCH if source.whole is None else _native.ARCHIVE_END_SIZE)
    last = source.copy(source.size - first, first)
    tail = last[-_native.ARCHIVE_END_SIZE :]
    end, pointer = source.size, _native.ArchiveEnd.read(tail)
    if pointer is None:
        if _native.ArchiveEnd.is_resembled_by(tail):
            raise DeserializationError("", "an archive's end", "a damaged one; get another copy of the archive")
        end, pointer = _earlier_end(source)
    start = pointer.index_position
    if (
        start + pointer.index_size > end - _native.ARCHIVE_END_SIZE
        or pointer.root_position + pointer.root_size > pointer.index_size
    ):
        raise DeserializationError(
            "",
            f"an index of {pointer.index_size} bytes at {start}",
            f"an archive of {end} bytes; get another copy of it",
        )
    inside = start - (source.size - first)
    index = last[inside : inside + pointer.index_size] if inside >= 0 else source.read(start, pointer.index_size)
    if source.whole is not None:
        return end, pointer, index, source.copy(start + pointer.root_position, pointer.root_size)
    return end, pointer, index, index[pointer.root_position : pointer.root_position + pointer.root_size]


def _earlier_end(source: Source) -> tuple[int, _native.ArchiveEnd]:
    """The end of the archive before an append that was not finished."""
    found = source.size
    while (found := source.rfind(_native.ARCHIVE_END_MAGIC, found)) >= _native.ARCHIVE_END_MAGIC_AT:
        start = found - _native.ARCHIVE_END_MAGIC_AT
        if start + _native.ARCHIVE_END_SIZE > source.size:
            continue
        pointer = _native.ArchiveEnd.read(bytes(source.read(start, _native.ARCHIVE_END_SIZE)))
        if pointer is not None:
            return start + _native.ARCHIVE_END_SIZE, pointer
    is_zip = bytes(source.read(0, min(4, source.size))) in (b"PK\3\4", b"PK\5\6")
    raise DeserializationError(
        "",
        "an archive of artifacts, with an index that its end points to",
        "a ZIP file without one: `jaxexp pack` makes an archive from its members" if is_zip else "something else",
    )
