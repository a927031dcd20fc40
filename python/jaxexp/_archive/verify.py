"""Verifying an archive: its index, its members, their weights, and the directory that `unzip` uses."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence

from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._io.workers import worker_count

from .opened import Opened, batches
from .verify_weights import damaged_members

_Damaged = tuple[int, str, str, str]  # the number of a member, where, what was expected, and what was found


def verify(
    opened: Opened, names: Sequence[str] | None, workers: int | None
) -> Iterator[tuple[int, list[tuple[str, DeserializationError]]]]:
    """Yields, step by step, how many members were verified, and the errors of those that are damaged.

    Raises:
        DeserializationError: the index or the ZIP file's directory is damaged.
    """
    threads = worker_count(workers)
    index = opened.index
    opened.check()
    if names is None:
        _check_directory(opened)
    numbers = list(range(len(index))) if names is None else index.find_all(list(names))
    owners = index.owners(numbers)
    sharing: dict[int, list[int]] = {}  # all members with the same bytes, by the one that is verified
    if owners != numbers:
        for number, owner in zip(numbers, owners, strict=True):
            sharing.setdefault(owner, []).append(number)
        owners = list(sharing)
    broken: set[int] = set()
    for step, found in _steps(opened, owners, threads):
        verified = sum(len(sharing[owner]) for owner in step) if sharing else len(step)
        damaged = [(i, what) for owner, *what in found for i in sharing.get(owner, (owner,))]
        yield verified, _errors(opened, damaged)
        broken.update(i for i, _ in damaged)
    yield 0, list(damaged_members(opened, (i for i in numbers if i not in broken), whole=names is None))


def _steps(opened: Opened, numbers: list[int], threads: int) -> Iterator[tuple[list[int], list[_Damaged]]]:
    """Members that were verified together, and what is wrong with some of them."""
    verification = _native.ArchiveVerification(opened.index)
    file = opened.source.whole
    if file is not None:
        first = 0
        while first < len(numbers):
            begin = first
            first, damaged = verification.step_of_file(file, numbers, first, threads)
            yield numbers[begin:first], damaged
        return
    pending = iter(numbers)
    # What one step has is not in the next one again: so extents are asked for step by step.
    for extents in batches(verification.extent(number) for number in numbers):
        step = list(itertools.islice(pending, len(extents)))
        yield step, verification.step(step, opened.parts_of(extents), threads)


def _errors(opened: Opened, damaged: Iterable[tuple[int, list[str]]]) -> list[tuple[str, DeserializationError]]:
    errors = []
    for number, what in damaged:
        error = DeserializationError(*what)
        name = opened.index.name(number)
        error.file = opened.label(name)
        errors.append((name, error))
    return errors


def _check_directory(opened: Opened) -> None:
    """Compares the bytes after the index with what they must be."""
    pointer = opened.pointer
    start = pointer.index_position + pointer.index_size
    with opened.placed():
        crc32 = zlib.crc32(opened.source.read(pointer.index_position, pointer.index_size))
        most = min(_MOST_HEADER, pointer.index_position)
        before = opened.source.read(pointer.index_position - most, most)
        behind = opened.source.read(start, opened.end - start)
        for header in range(most, 0, -1):  # it is as long as its own beginning asks for
            begin = pointer.index_position - header
            if before[most - header :] == _native.zip_local_header(
                _native.ARCHIVE_INDEX_NAME, pointer.index_size, crc32, begin
            ):
                place = _native.MemberPlace(pointer.index_position, pointer.index_size, crc32, header)
                if behind == opened.index.last_bytes(place, start, pointer.comment()):
                    return
        raise DeserializationError(
            "", "the directory of a ZIP file with these members", "a different one; get another copy of the archive"
        )


_MOST_HEADER = 128
