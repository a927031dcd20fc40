"""Loading and verifying many members of an archive, from wherever it is read."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from . import _native
from ._errors import DeserializationError, PolicyError

if TYPE_CHECKING:
    from ._archive import _Reader
    from ._bulk import OnError
    from ._policy import Policy

# How much is fetched at once from where an archive is not in memory, and verified without a sign of life.
_AT_ONCE = 1 << 26


def load(
    reader: _Reader, names: Iterable[str] | None, workers: int | None, on_error: OnError, policy: Policy | None
) -> list[Any]:
    """What `Archive.load_all` returns."""
    from . import _bulk

    with reader.placed():
        numbers = list(range(len(reader.index))) if names is None else reader.index.find_all(list(names))
        if len(numbers) > 1:
            reader.index.check()
        extents = reader.index.extents(numbers)
    labels = _Labels(reader, numbers)
    if policy is None and reader.source.whole is not None:
        loaded = _bulk.load_slices(reader.source.whole, extents, labels, workers=workers, on_error=on_error)
    else:
        loaded = []
        for first, last in _batches(extents):
            part = slice(first, last)
            loaded += _load_copies(reader, extents[part], labels[part], workers, on_error, policy)
    for i, text in reader.index.own_metadata(numbers):
        if not isinstance(loaded[i], Exception):
            with reader.placed(reader.index.name(numbers[i])):
                loaded[i].__dict__["_metadata"] = reader.object(text)
    return loaded


def _load_copies(
    reader: _Reader,
    extents: Sequence[Any],
    labels: Sequence[str],
    workers: int | None,
    on_error: OnError,
    policy: Policy | None,
) -> list[Any]:
    """Members that are not used where they lie: with a policy, what runs has to be what was checked."""
    from . import _bulk

    loaded: list[Any] = [None] * len(extents)
    chosen = []
    for i, (_, size, modules) in enumerate(extents):
        try:
            if policy is not None:
                policy.check_size(size + sum(module for _, module in modules))
            chosen.append(i)
        except PolicyError as error:
            error.file = labels[i]
            if on_error == "raise":
                raise
            loaded[i] = error
    owner, places = _in_one_buffer(reader, [extents[i] for i in chosen])
    names = [labels[i] for i in chosen]
    found = _bulk.load_slices(owner, places, names, workers=workers, on_error=on_error, policy=policy)
    for i, exported in zip(chosen, found, strict=True):
        loaded[i] = exported
    return loaded


class _Labels(Sequence[str]):
    """What messages call members, made when there is a message."""

    def __init__(self, reader: _Reader, numbers: Sequence[int]) -> None:
        self._reader = reader
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> _Labels: ...
    def __getitem__(self, index: int | slice) -> str | _Labels:
        if isinstance(index, slice):
            return _Labels(self._reader, self._numbers[index])
        return self._reader.label(self._reader.index.name(self._numbers[index]))


def verify(
    reader: _Reader, names: Sequence[str] | None, workers: int | None
) -> Iterator[tuple[int, list[tuple[str, DeserializationError]]]]:
    """As it goes on, how many members were verified at once, and what is wrong with those that are damaged.

    Raises:
        DeserializationError: the index or the ZIP file's directory is damaged.
    """
    from ._workers import worker_count

    threads = worker_count(workers)
    index = reader.index
    reader.check()
    if names is None:
        _check_directory(reader)
    if names is None and reader.source.whole is not None:
        number = 0
        while number < len(index):
            end, damaged = index.verify_from(number, reader.source.whole, threads)
            yield end - number, _errors(reader, ((i, what) for owner, *what in damaged for i in index.sharing(owner)))
            number = end
        return
    numbers = list(range(len(index))) if names is None else index.find_all(list(names))
    extents = index.zip_extents(numbers)
    for first, last in _batches(extents):
        damaged = index.verify(numbers[first:last], _parts(reader, extents[first:last]), threads)
        yield last - first, _errors(reader, ((number, what) for number, *what in damaged))


def _errors(reader: _Reader, damaged: Iterable[tuple[int, list[str]]]) -> list[tuple[str, DeserializationError]]:
    errors = []
    for number, what in damaged:
        error = DeserializationError(*what)
        name = reader.index.name(number)
        error.file = reader.label(name)
        errors.append((name, error))
    return errors


def _check_directory(reader: _Reader) -> None:
    """Compares what stands behind the index with what has to be there."""
    pointer, index = reader.pointer, reader.index_bytes
    start = pointer.index_position + pointer.index_size
    crc32 = zlib.crc32(index)
    with reader.placed():
        most = min(_MOST_HEADER, pointer.index_position)
        before = bytes(reader.source.read(pointer.index_position - most, most))
        behind = bytes(reader.source.read(start, reader.end - start))
        for header in range(most, 0, -1):  # it is as long as its own beginning asks for
            begin = pointer.index_position - header
            if before[most - header :] == _native.zip_local_header(
                _native.ARCHIVE_INDEX_NAME, pointer.index_size, crc32, begin
            ):
                place = _native.MemberPlace(pointer.index_position, pointer.index_size, crc32, header)
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
    """A buffer of their own for members and their modules, and where they are in it."""
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
