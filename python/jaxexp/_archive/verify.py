"""Verifying an archive: its index, its members, their weights, and the directory that `unzip` uses."""

from __future__ import annotations

import copy
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxexp import _native
from jaxexp._errors import DeserializationError, PolicyError
from jaxexp._io.workers import worker_count

from .opened import Opened, batches
from .verify_weights import damaged_members, damaged_tensors

_Damaged = tuple[int, str, str, str]  # the number of a member, where, what was expected, and what was found


def verify(
    opened: Opened, names: Sequence[str] | None, workers: int | None
) -> Iterator[tuple[int, list[tuple[str, DeserializationError]]]]:
    """Yields, step by step, how many members were verified, and the errors of those that are damaged.

    Raises:
        DeserializationError: the index or the ZIP file's directory is damaged.
    """
    threads = worker_count(workers)
    verification = Verification(opened, names)
    for owners, damaged in _steps(opened, list(verification.units), threads):
        yield verification.verified(owners), verification.errors(damaged)
    yield 0, verification.finish()


def damaged(opened: Opened, numbers: Sequence[int], threads: int) -> list[_Damaged]:
    """What is wrong with some members of an archive whose index was checked. Members that share bytes with these are
    not looked at."""
    return [wrong for _, found in _steps(opened, list(numbers), threads) for wrong in found]


class Verification:
    """An archive that is being verified: members that share their bytes are verified once.

    Attributes:
        opened: the archive.
        units: the numbers of the members that are read.
        is_whole: whether they stand for all members.
    """

    def __init__(self, opened: Opened, names: Sequence[str] | None) -> None:
        """Checks the index, and of a whole archive the ZIP file's directory.

        Raises:
            DeserializationError: one of the two is damaged.
        """
        self.opened, self.is_whole = opened, names is None
        index = opened.index
        opened.check()
        if names is None:
            _check_directory(opened)
        with opened.placed():
            self._numbers: Sequence[int] = range(len(index)) if names is None else index.find_all(list(names))
            owners = index.owners(list(self._numbers))
        self._others: dict[int, list[int]] = {}  # with the bytes of another member, by that one
        for number, owner in zip(self._numbers, owners, strict=True):
            if number != owner:
                self._others.setdefault(owner, []).append(number)
        self.units: Sequence[int] = sorted(set(owners)) if self._others else self._numbers
        self._broken: set[int] = set()

    def __len__(self) -> int:
        return len(self._numbers)

    def verified(self, units: Iterable[int]) -> int:
        """How many members some units stand for."""
        return sum(1 + len(self._others.get(number, ())) for number in units)

    def errors(self, damaged: Iterable[_Damaged]) -> list[tuple[str, DeserializationError]]:
        """The errors of members by their names, for units that are damaged."""
        return [error for number, *what in damaged for error in self.error(number, DeserializationError(*what))]

    def error(self, unit: int, error: Any) -> list[tuple[str, Any]]:
        """The error of a unit for each member that it stands for."""
        found = []
        for number in (unit, *self._others.get(unit, ())):
            self._broken.add(number)
            name = self.opened.index.name(number)
            again = copy.copy(error)
            if isinstance(again, (DeserializationError, PolicyError)):
                again.file = self.opened.label(name)
            found.append((name, again))
        return found

    def finish(self, bad: dict[bytes, bytes] | None = None) -> list[tuple[str, DeserializationError]]:
        """The errors of members whose weights are damaged, after all others were found.

        Args:
            bad: what others found in all files of weights; None to read them here.

        Raises:
            DeserializationError: a file of weights is damaged outside of its tensors.
        """
        if bad is None and self.is_whole:
            bad = damaged_tensors(self.opened)
        whole = (number for number in self._numbers if number not in self._broken)
        return list(damaged_members(self.opened, whole, bad))


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
