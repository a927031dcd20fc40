"""The work of a pass: inputs, cut into shares by bytes. Only names and numbers are sent to a worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from jaxexp._errors import ExportError

# The first item of a place that is a file: its path and its name follow. Other rooms define other places.
FILE = "file"
# Sizes are looked up for this many units at once, so cutting a large input takes little memory.
_LOOKED_UP = 4096


# What is sent to a worker: places, and the numbers of units there.
Parts: TypeAlias = Sequence[tuple[tuple[Any, ...], Sequence[int]]]
# Errors that concern an artifact, not the pass.
OF_ARTIFACTS = (ExportError, OSError, ImportError)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Input:
    """Something to read: a file, which is one unit, or an archive, whose members are units.

    Attributes:
        name: what messages and journals call it.
        identity: a JSON value that changes when the content changes.
        place: how a worker finds it; built-in types only.
        numbers: what a worker calls the units; a range if possible, because that pickles small.
        sizes: the bytes of units, given the first unit and the one after the last.
        about: whatever the maker needs when results arrive; it is never sent.
    """

    name: str
    identity: Any
    place: tuple[Any, ...]
    numbers: Sequence[int]
    sizes: Callable[[int, int], Iterable[int]]
    about: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Unusable:
    """An input that cannot be read at all, and why."""

    name: str
    error: Exception
    about: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Units of one input, from `start` up to `stop`."""

    input: Input
    start: int
    stop: int

    @property
    def units(self) -> int:
        return self.stop - self.start

    @property
    def numbers(self) -> Sequence[int]:
        return self.input.numbers[self.start : self.stop]

    def crossing(self) -> tuple[tuple[Any, ...], Sequence[int]]:
        """What is sent to a worker."""
        numbers = self.numbers
        return self.input.place, numbers if isinstance(numbers, range) else list(numbers)


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What a worker does in one go: parts of one input or of several."""

    parts: tuple[Part, ...]
    deaths: int = 0  # how many workers died while this share was all that they had to do

    @property
    def units(self) -> int:
        return sum(part.units for part in self.parts)

    def halves(self) -> tuple[Share, Share]:
        """Two shares with about as many units each; the share must have more than one."""
        left, right, wanted = [], [], self.units // 2
        for part in self.parts:
            middle = part.start + max(0, min(wanted, part.units))
            wanted -= part.units
            if middle > part.start:
                left.append(Part(part.input, part.start, middle))
            if middle < part.stop:
                right.append(Part(part.input, middle, part.stop))
        return Share(tuple(left)), Share(tuple(right))


def cut(parts: Iterable[Part | None], share_bytes: int, unit_bytes: int) -> Iterator[Share | None]:
    """Shares of this many bytes, or a little more: a unit is never cut. Nothing is looked at before it is needed.

    Args:
        parts: the work; None for a pause, which is passed on.
        share_bytes: how large a share is.
        unit_bytes: bytes added for each unit: the work that does not depend on its size.
    """
    share: list[Part] = []
    weight = 0
    for part in parts:
        if part is None:
            yield None
            continue
        begin = part.start
        for first in range(part.start, part.stop, _LOOKED_UP):
            sizes = part.input.sizes(first, min(first + _LOOKED_UP, part.stop))
            for behind, size in enumerate(sizes, first + 1):
                weight += size + unit_bytes
                if weight >= share_bytes:
                    yield Share((*share, Part(part.input, begin, behind)))
                    share, weight, begin = [], 0, behind
        if begin < part.stop:
            share.append(Part(part.input, begin, part.stop))
    if share:
        yield Share(tuple(share))


def each(parts: Parts, do: Callable[[tuple[Any, ...], Sequence[int]], Any]) -> list[Any]:
    """The results of a function for each part, or the error of a part that it cannot read."""
    results = []
    for place, numbers in parts:
        try:
            results.append(do(place, numbers))
        except OF_ARTIFACTS as error:
            results.append(error)
    return results
