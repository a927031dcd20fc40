"""Archives as inputs of passes: members by number, in an archive that each worker opens for itself."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Generator, Iterable, Sequence
from typing import Any

from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._fleet.engine.work import Input
from jaxexp._kernel.io.sources import open_source

from .opened import Opened

ARCHIVE = "archive"


def place_of(opened: Opened, what: str) -> tuple[Any, ...]:
    """How workers find an archive.

    Raises:
        ExportError: they cannot, because it is in a file object.
    """
    if opened.source.address is None:
        opened.__reduce__()
    assert opened.source.address is not None
    path, options = opened.source.address
    _opened[_key(path, opened.pointer.root_digest.hex())] = opened
    return ARCHIVE, what, path, options, opened.pointer.root_digest.hex()


def identity_of(opened: Opened, numbers: Sequence[int]) -> list[Any]:
    """A value that changes when the archive changes, or when other members of it are asked for."""
    changed = os.stat(opened.source.name).st_mtime_ns if opened.source.whole is not None else 0
    chosen: list[Any] = [len(numbers), numbers[0] if numbers else 0]
    if not isinstance(numbers, range):
        chosen.append(_native.digest(b"".join(number.to_bytes(8, "little") for number in numbers)).hex())
    return [opened.source.size, changed, opened.pointer.root_digest.hex(), chosen]


def input_of(opened: Opened, numbers: Sequence[int], what: str, about: Any) -> Input:
    """Some members of an archive whose index was checked. `what` is for workers, and `about` for the maker."""

    def sizes(start: int, stop: int) -> Iterable[int]:
        for _, size, modules in opened.index.extents(list(numbers[start:stop])):
            yield size + sum(module for _, module in modules)

    return Input(opened.source.name, identity_of(opened, numbers), place_of(opened, what), numbers, sizes, about)


@contextlib.contextmanager
def opened_in_worker(path: str, options: dict[str, Any], root_digest: str) -> Generator[Opened]:
    """Opens the archive of a place.

    Raises:
        DeserializationError: it has changed since the pass began, or is damaged.
        OSError: it cannot be opened.
    """
    if "://" not in path:
        with contextlib.closing(_same(Opened(open_source(path, {})), root_digest)) as opened:
            yield opened
        return
    # For a URL, the whole index was read. This process keeps it for the next share, or has had it since the pass began.
    key = _key(path, root_digest)
    known = _opened.get(key)
    if known is None or known.is_closed or known.source.address != (path, options):
        known = _opened[key] = _here.kept = _same(Opened(open_source(path, options)), root_digest)
    yield known


_here = threading.local()  # keeps one archive open
# Open archives by process and thread: a forked process and other threads open archives for themselves.
_opened: weakref.WeakValueDictionary[tuple[int, int, str, str], Opened] = weakref.WeakValueDictionary()


def _key(path: str, root_digest: str) -> tuple[int, int, str, str]:
    return os.getpid(), threading.get_ident(), path, root_digest


def _same(opened: Opened, root_digest: str) -> Opened:
    if opened.pointer.root_digest.hex() != root_digest:
        opened.close()
        expected = "the archive as it was when the pass began"
        raise DeserializationError("", expected, "another one: begin again", opened.source.name)
    return opened
