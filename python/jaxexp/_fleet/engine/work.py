"""What a pass works on: inputs, cut into shares by bytes. What crosses to a worker are names and numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from jaxexp._errors import ExportError

# The first of a place that is a file: its path and its name follow. What other places are, is up to their rooms.
FILE = "file"
# Sizes are looked up for so many units at once, so cutting a large input takes little memory.
_LOOKED_UP = 4096


# What a worker gets to know of parts: where they are, and the numbers of units there.
Parts: TypeAlias = Sequence[tuple[tuple[Any, ...], Sequence[int]]]
# Errors that are about an artifact, and not about the pass.
OF_ARTIFACTS = (ExportError, OSError, ImportError)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Input:
    """Something to read: a file, which is one unit, or an archive, whose members are units.

    Attributes:
        name: what messages and journals call it.
        identity: what is different when its content is; a value of JSON.
        place: how a worker finds it; of built-in types only.
        numbers: what a worker calls the units; a range wherever that is possible, which is small when it crosses.
        sizes: the bytes of units, by the first and the one behind the last of them.
        about: whatever whoever made it needs when results arrive; it never crosses.
    """

    name: str
    identity: Any
    place: tuple[Any, ...]
    numbers: Sequence[int]
    sizes: Callable[[int, int], Iterable[int]]
    about: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Unusable:
    """An input that cannot be read at all.

    Attributes:
        name: as of an input.
        error: why.
    """

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
        """What a worker gets to know of it."""
        numbers = self.numbers
        return self.input.place, numbers if isinstance(numbers, range) else list(numbers)


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What a worker does in one go.

    Attributes:
        parts: of one input or of several.
        deaths: how many workers died of it while they had nothing else to do.
    """

    parts: tuple[Part, ...]
    deaths: int = 0

    @property
    def units(self) -> int:
        return sum(part.units for part in self.parts)

    def halves(self) -> tuple[Share, Share]:
        """Two shares of about as many units; it has more than one."""
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
    """Shares of so many bytes, or a little more: a unit is never cut. Nothing is looked at before it is needed.

    Args:
        parts: what there is to do; None for a pause, which is passed on.
        share_bytes: how large a share is.
        unit_bytes: what a unit counts beside its own bytes: the work that does not depend on its size.
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
    """What a function finds in each part, or the error of a part that it cannot read."""
    results = []
    for place, numbers in parts:
        try:
            results.append(do(place, numbers))
        except OF_ARTIFACTS as error:
            results.append(error)
    return results
