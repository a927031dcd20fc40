"""Puts large arrays of cases into a file of tensors beside the artifact, and finds them there. Without JAX."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp import _native
from jaxexp._errors import SUFFIX_OF_CASES
from jaxexp._kernel.artifact.cases import Case, Cases, Table, Value, values_of, with_values
from jaxexp._weights.files import header, saving
from jaxexp._weights.files.dtypes import held_as, size_of, unnamed
from jaxexp._weights.files.header import Source, damaged
from jaxexp._weights.files.places import name_beside

if TYPE_CHECKING:
    from jaxexp._kernel.artifact import cases
    from jaxexp._weights.files.reading import Tensors

# How many bytes of arrays a trailer takes; the largest ones go to a file if there are more.
MOST_INLINE = 1 << 16


def save(path: str | os.PathLike[str], given: Sequence[Case], write: Callable[[Cases], None]) -> None:
    """Saves cases, and the program in a file that they were recorded of: `write` writes it, given the cases for its
    trailer.

    Raises:
        ExportError: another program wrote the file that arrays would go to, or an artifact has its weights or cases
            there. Nothing is written.
        OSError: a file cannot be written.
    """
    if sources := sources_of(given):
        name = name_beside(os.fsdecode(path), SUFFIX_OF_CASES)
        saving.save(path, name, sources, lambda table: write(with_files(given, table)), role="cases")
    else:
        write(with_files(given))


def sources_of(given: Sequence[Case]) -> list[Source]:
    """The arrays of cases that do not fit into a trailer, for a file of tensors."""
    return [_source(name, value) for name, value in _apart(given).values()]


def with_files(given: Sequence[Case], table: header.Table = header.NO_TABLE) -> Cases:
    """The cases for a trailer, which names the files that the arrays of `sources_of` are in."""
    names = _apart(given)

    def placed(value: Value) -> Value:
        if id(value) in names:
            return dataclasses.replace(
                value, _bytes=None, _tensor=(names[id(value)][0], lambda _: (value.buffer(), lambda: None))
            )
        return value if value.drawn is not None else dataclasses.replace(value, _bytes=value.buffer(), _tensor=None)

    return Cases(tuple(with_values(case, placed) for case in given), Table(table.files, table.tensors))


def _apart(given: Sequence[Case]) -> dict[int, tuple[str, Value]]:
    """The arrays that go to a file, each with its name there, by their identities: as few as possible."""
    held = [(name, value) for case in given for name, value in _named(case) if value.drawn is None]
    left = sum(value.nbytes for _, value in held)
    found: dict[int, tuple[str, Value]] = {}
    for name, value in sorted(held, key=lambda one: one[1].nbytes, reverse=True):
        if left <= MOST_INLINE:
            break
        found[id(value)] = name, value
        left -= value.nbytes
    return found


def _named(case: Case) -> Iterator[tuple[str, Value]]:
    for what, values in (("arguments", case.arguments), ("results", case.results)):
        for index, value in enumerate(values):
            yield f"{case.name}/{what}/{index}", value
    if case.trace is not None:
        yield f"{case.name}/trace", case.trace


def _source(name: str, value: Value) -> Source:
    """An array for a file of tensors, as what it is if the format has its dtype, else as bytes."""
    type_ = _held_type(value)
    held = held_as(*type_)
    assert held is not None
    return Source(name, *held, lambda: [value.buffer()], of=unnamed(*type_))


def _held_type(value: Value) -> Type:
    """The type of an array in a file."""
    held = held_as(value.dtype, value.shape)
    is_held = held is not None and size_of(*held) == value.nbytes
    return Type(value.dtype, value.shape) if is_held else Type("uint8", (value.nbytes,))


def of_trailer(said: Any) -> header.Table | None:
    """The files in what `_native.Artifact.cases` returned; None if there are none."""
    return header.Table.of_trailer(said[2], said[3]) if said is not None and said[2] else None


class Type(NamedTuple):
    """The type of an array in a file, for files that have no types."""

    dtype: str
    shape: tuple[int, ...]


def types_of(said: Any) -> dict[str, Type]:
    """The types of the tensors in what `_native.Artifact.cases` returned, by their names."""
    values = (value for case in Cases.of_trailer(said).all for value in values_of(case))
    return {value.tensor: _held_type(value) for value in values if value.tensor is not None}


def reader_of(found: Tensors) -> cases.Source:
    """What reads arrays of cases from files."""

    def read(name: str) -> tuple[Any, Callable[[], None]]:
        tensor = found.find(name)
        data, expected = tensor.data(), tensor.digest

        def check() -> None:
            if expected is not None and (digest := _native.digest(data)) != expected:
                raise damaged(tensor.file, name, expected, digest)

        return data, check

    return read
