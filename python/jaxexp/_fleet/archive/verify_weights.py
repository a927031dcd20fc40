"""Verifying the weights in an archive: their files, and the arrays that members make of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp import _native
from jaxexp._errors import DeserializationError, WeightsError, of_file
from jaxexp._kernel.io.files import named_in_errors
from jaxexp._weights.files import header
from jaxexp._weights.files.header import Tensor, damaged

from .member_weights import cases_of, of_artifact
from .opened import Opened

if TYPE_CHECKING:
    from jaxexp._weights.files.reading import Tensors

_PIECE = 1 << 24


class InWeights(NamedTuple):
    """The result for files of weights.

    Attributes:
        seen: how many tensors the files have.
        bad: the digests of damaged tensors, each with the digest of the bytes in its place.
    """

    seen: int
    bad: dict[Any, Any]


def damaged_members(
    opened: Opened, numbers: Iterable[int], bad: dict[bytes, bytes] | None
) -> Iterator[tuple[str, Exception]]:
    """The members whose weights or cases are damaged, with their errors.

    `bad` are the damaged tensors of all files; None to read only the tensors that these members use.
    """
    if not opened.has_weights or bad == {}:
        return
    numbers, good = list(numbers), set[bytes]()
    found: dict[int, DeserializationError | None] = {}
    for number, owner in zip(numbers, opened.index.owners(numbers), strict=True):
        label = opened.label(name := opened.index.name(number))
        if owner not in found:  # many members may share the bytes of one
            found[owner] = _damage(opened, number, label, bad, good)
        if (error := found[owner]) is not None:
            yield name, of_file(error, label)


def _damage(
    opened: Opened, number: int, label: str, bad: dict[bytes, bytes] | None, good: set[bytes]
) -> DeserializationError | None:
    try:
        with named_in_errors(label):
            artifact = _native.Artifact(*opened.parts(number))
            for of in (of_artifact, cases_of):
                if (tensors := of(opened, label, artifact)) is not None:
                    _compare(tensors, bad, good)
    except DeserializationError as error:
        return error
    return None


def _compare(tensors: Tensors, bad: dict[bytes, bytes] | None, good: set[bytes]) -> None:
    """Compares tensors with their digests; a WeightsError if one is damaged."""
    for stored in tensors.table.tensors:
        tensor = tensors.find(stored.name)
        if bad is not None:
            found = bad.get(stored.digest, stored.digest)
        elif stored.digest in good:
            continue
        else:
            found = _native.digest(tensor.data())
        if found != stored.digest:
            raise damaged("", stored.name, stored.digest, found)
        good.add(stored.digest)


def check_seen(opened: Opened, seen: int) -> None:
    """Checks that the index has no tensors besides those that were seen.

    Raises:
        DeserializationError: it has others, which are not in any file.
    """
    if missing := len(opened.index.tensors()) - seen:
        with opened.placed():
            raise DeserializationError("index.weights", "tensors that are in files of weights", f"{missing:,} others")


def damaged_in_files(opened: Opened, numbers: Iterable[int]) -> InWeights:
    """Reads some of the files of weights.

    Raises:
        DeserializationError: one of them is damaged outside of its tensors.
    """
    places = {digest: place for digest, *place in opened.index.tensors()}
    files = opened.index.weights_files()
    seen, bad = 0, dict[bytes, bytes]()
    for number in numbers:
        with named_in_errors(opened.label(_native.archive_weights_name(number))):
            seen += _look(opened, number, files[number], places, bad)
    return InWeights(seen, bad)


def _look(
    opened: Opened,
    number: int,
    file: tuple[int, int, int, int],
    places: dict[bytes, list[int]],
    bad: dict[bytes, bytes],
) -> int:
    """Reads a file of weights: removes its tensors from `places`, and adds damaged ones to `bad`."""
    name, (position, size, crc32, header_size) = _native.archive_weights_name(number), file
    zip_header = opened.source.read(position - header_size, header_size)
    if zip_header != _native.zip_local_header(name, size, crc32, position - header_size):
        raise DeserializationError("", "its header in the ZIP file", "a different one; get another copy of the archive")
    length = header.size_of_header(opened.source.read(position, min(size, header.LENGTH_SIZE)), size)
    head = opened.source.read(position, length)
    found_crc = zlib.crc32(head)
    wrong = False
    tensors = header.read(head, size).tensors
    for tensor in tensors.values():
        digest = _digest_in_name(tensor)
        at = position + length + tensor.start
        found, found_crc = _read(opened, at, tensor.size, found_crc)
        if places.pop(digest, None) != [at, tensor.size]:
            raise WeightsError(tensor.name, "a tensor that is where the index says", "another one")
        if found != digest:
            wrong = True
            bad[digest] = found
    if found_crc != crc32 and not wrong:
        raise DeserializationError("", "the bytes as they were written", "other bytes in its header")
    return len(tensors)


def _read(opened: Opened, position: int, size: int, crc32: int) -> tuple[bytes, int]:
    """The digest of a tensor, and the CRC-32 of its file up to its end."""
    digester = _native.Digester()
    for start in range(0, size, _PIECE):
        piece = opened.source.read(position + start, min(_PIECE, size - start))
        digester.update(piece)
        crc32 = zlib.crc32(piece, crc32)
    return digester.digest(), crc32


def _digest_in_name(tensor: Tensor) -> bytes:
    try:
        return bytes.fromhex(tensor.name)
    except ValueError:
        raise WeightsError(tensor.name, "a digest for a name", "another name") from None
