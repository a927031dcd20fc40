"""Loading and verifying many members of an archive, from wherever it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import _native, _zip
from ._errors import DeserializationError

if TYPE_CHECKING:
    from ._archive import _Reader
    from ._policy import Policy

# How much is fetched at once from where an archive is not in memory, and verified without a sign of life.
_AT_ONCE = 1 << 26


def load(
    reader: _Reader, names: Iterable[str], workers: int | None, on_error: str, policy: Policy | None
) -> list[Any]:
    """What `Archive.load_all` returns."""
    from . import _bulk

    names = list(names)
    with reader.placed():
        numbers = reader.index.find_all(names)
        if len(numbers) > 1:
            reader.index.check()
        extents = reader.index.extents(numbers)
    loaded: list[Any] = []
    for first, last in _batches(reader, extents):
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
        extents = reader.index.extents(numbers)
    headers = [reader.index.header(number) for number in numbers]
    # Those who share bytes are as good as each other.
    first_of: dict[int, int] = {}
    for i, (position, _, _) in enumerate(extents):
        first_of.setdefault(position, i)
    chosen = list(first_of.values())
    with_headers = [
        (extents[i][0] - headers[i], extents[i][1] + headers[i], extents[i][2]) for i in chosen
    ]
    ...


def _check_directory(reader: _Reader) -> None: ...


def _batches(reader: _Reader, extents: Sequence[Any]) -> Iterator[tuple[int, int]]: ...


def _in_one_buffer(reader: _Reader, extents: Sequence[Any]) -> Any: ...
