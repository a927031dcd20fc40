"""Loading and verifying many members of an archive, from wherever it is read."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import _native, _zip
from ._errors import DeserializationError

if TYPE_CHECKING:
    from ._archive import _Reader
    from ._policy import Policy

# How much is fetched at once from where an archive is not in memory, and verified without a sign of life.
_AT_ONCE = 1 << 26


def load(reader: _Reader, names: Iterable[str], workers: int | None, on_error: str, policy: Policy | None) -> list[Any]:
    """What `Archive.load_all` returns."""
    from . import _bulk

    names = list(names)
    with reader.placed():
        numbers = reader.index.find_all(names)
        if len(numbers) > 1:
            reader.index.check()
        extents = reader.index.extents(numbers)
    loaded: list[Any] = []
    for first, last in [(0, len(extents))] if reader.source.whole is not None else _batches(extents):
        owner, places = _in_one_buffer(reader, extents[first:last])
        labels = [reader.label(name) for name in names[first:last]]
        loaded += _bulk.load_slices(owner, places, labels, workers=workers, on_error=on_error, policy=policy)
    for i, text in reader.index.own_metadata(numbers):
        if not isinstance(loaded[i], Exception):
            with reader.placed(names[i]):
                loaded[i].__dict__["_metadata"] = reader.object(text)
    return loaded


def verify(
    reader: _Reader, names: Sequence[str] | None, workers: int | None
) -> Iterator[tuple[str, DeserializationError | None]]:
    """For each member, in some order, what is wrong with it.

    Raises:
        DeserializationError: the index or the ZIP file's directory is damaged.
    """
    from ._workers import worker_count

    reader.check()
    if names is None:
        _check_directory(reader)
        names = reader.names()
    threads = worker_count(workers)
    with reader.placed():
        numbers = reader.index.find_all(list(names))
        extents = reader.index.zip_extents(numbers)
    # Those who share bytes are as good as each other; the one whose header is in front of them stands for all.
    same: dict[int, list[int]] = {}
    for i, extent in enumerate(extents):
        members = same.setdefault(extent[0], [])
        members.insert(0 if not extent[3] else len(members), i)
    groups = list(same.values())
    chosen = [extents[group[0]] for group in groups]
    for first, last in _batches(chosen):
        parts = _parts(reader, chosen[first:last])
        batch = groups[first:last]
        errors: dict[int, DeserializationError] = {}
        for i, *what in reader.index.verify([numbers[group[0]] for group in batch], parts, threads):
            errors[i] = DeserializationError(*what)
        for i, group in enumerate(batch):
            for member in group:
                error = errors.get(i)
                if error is not None:
                    error = DeserializationError(error.path, error.expected, error.found)
                    error.file = reader.label(names[member])
                yield names[member], error


def _check_directory(reader: _Reader) -> None:
    """Compares what stands behind the index with what has to be there."""
    pointer, index = reader.pointer, reader.index_bytes
    start = pointer.position + pointer.size
    crc32 = zlib.crc32(index)
    with reader.placed():
        most = min(_MOST_HEADER, pointer.position)
        before = bytes(reader.source.read(pointer.position - most, most))
        behind = bytes(reader.source.read(start, reader.end - start))
        for header in range(most, 0, -1):  # it is as long as its own beginning asks for
            begin = pointer.position - header
            if before[most - header :] == _native.zip_local_header(_zip.INDEX_NAME, pointer.size, crc32, begin):
                place = {"position": pointer.position, "stored_size": pointer.size, "crc32": crc32, "header": header}
                if behind == reader.index.last_bytes(place, start, pointer.comment()):
                    return
        raise DeserializationError(
            "", "the directory of a ZIP file with these members", "another; get another copy of the archive"
        )


_MOST_HEADER = 128


def _batches(extents: Sequence[Any]) -> Iterator[tuple[int, int]]:
    first = size = 0
    for i, extent in enumerate(extents):
        size += extent[1] + sum(module for _, module in extent[2])
        if size >= _AT_ONCE:
            yield first, i + 1
            first, size = i + 1, 0
    if first < len(extents):
        yield first, len(extents)


def _parts(reader: _Reader, extents: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
    """The bytes of members and those of their modules."""
    ranges = [place for position, size, modules, *_ in extents for place in ((position, size), *modules)]
    found = iter(reader.source.read_many(ranges))
    return [(next(found), [next(found) for _ in modules]) for _, _, modules, *_ in extents]


def _in_one_buffer(reader: _Reader, extents: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """A buffer that holds members and their modules, and where they are in it."""
    if reader.source.whole is not None:
        return reader.source.whole, extents
    pieces: list[Any] = []
    end = 0

    def place(data: Any) -> tuple[int, int]:
        nonlocal end
        position, size = end, len(data)
        padding = -size % 8  # numbers in artifacts are read where they lie
        pieces.extend((data, bytes(padding)))
        end += size + padding
        return position, size

    places = [
        (*place(member), tuple(place(module) for module in modules)) for member, modules in _parts(reader, extents)
    ]
    return b"".join(pieces), places
