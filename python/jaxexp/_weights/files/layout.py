"""Lays tensors out in files: aligned, without holes, and in several files if they are large."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Protocol

from jaxexp._errors import ExportError
from jaxexp._kernel.artifact.words import is_text

from . import header, places
from .content import Typed
from .dtypes import size_of
from .header import ALIGNMENT, LENGTH_SIZE, MAX_HEADER_SIZE, Tensor


class Planned(Typed, Protocol):
    """A tensor that is to be written; its fields are those of `Tensor`."""

    @property
    def of(self) -> str | None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that is to be written; its tensors are in the order of their positions."""

    name: str
    tensors: tuple[Tensor, ...]

    @property
    def data_size(self) -> int:
        """How many bytes come after the header."""
        return self.tensors[-1].end if self.tensors else 0


def plan(name: str, tensors: Iterable[Planned], max_file_size: int | None) -> list[PlannedFile]:
    """Distributes tensors over files, of which each has at most `max_file_size` bytes of tensors.

    A larger tensor has a file to itself. An ExportError if a header would be too long to be read again, or if a name
    cannot stand in it.
    """
    groups: list[list[Tensor]] = [[]]
    size = 0
    for tensor in map(_measured, tensors):
        if max_file_size is not None and groups[-1] and size + tensor.size > max_file_size:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.size
    files = [
        PlannedFile(file_name(name, number, len(groups)), tuple(_placed(group)))
        for number, group in enumerate(groups, start=1)
    ]
    for file in files:
        length = len(header.compose(file.tensors, {})) - LENGTH_SIZE
        if length > MAX_HEADER_SIZE - _ROOM_FOR_METADATA:
            raise ExportError(
                f"{file.name} would have a header of {length:,} bytes for its {len(file.tensors):,} tensors, and at "
                f"most {MAX_HEADER_SIZE:,} can be read: write several files, with a smaller max_weights_file_size"
            )
    return files


_ROOM_FOR_METADATA = 4096


def _measured(tensor: Planned) -> Tensor:
    name, dtype, shape = tensor.name, tensor.dtype, tensor.shape
    if name == header.METADATA or not is_text(name):
        raise ExportError(f"a tensor in a safetensors file cannot be called {name!r}")
    if len(shape) > header.MAX_RANK:
        raise ExportError(f"the tensor {name!r} has rank {len(shape)}; at most {header.MAX_RANK} can be read again")
    size = size_of(dtype, shape)
    assert size is not None  # `held_as` chose the dtype
    return Tensor(name, dtype, shape, 0, size, tensor.of)


def _placed(tensors: Iterable[Tensor]) -> Iterable[Tensor]:
    """One after the other. Holes are forbidden, so tensors whose size keeps the next one aligned come first. The rest
    are still aligned for their own elements.
    """
    end = 0
    for tensor in sorted(tensors, key=lambda t: math.gcd(t.size, ALIGNMENT), reverse=True):
        yield dataclasses.replace(tensor, start=end, end=end + tensor.size)
        end += tensor.size


def index_name(name: str) -> str:
    """The name of the index of several files."""
    return name.removesuffix(places.SUFFIX) + places.INDEX_SUFFIX


def file_name(name: str, number: int, count: int) -> str:
    """The name of one of several files, in the form that other tools write."""
    return name if count == 1 else f"{name.removesuffix(places.SUFFIX)}-{number:05}-of-{count:05}{places.SUFFIX}"
