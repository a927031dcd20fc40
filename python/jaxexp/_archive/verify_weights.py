"""Verifying the weights in an archive: the files that they are in, and what members make of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from jaxexp import _native
from jaxexp._errors import DeserializationError, WeightsError
from jaxexp._io.files import named_in_errors
from jaxexp._safetensors import header
from jaxexp._safetensors.header import Tensor

from .member_weights import of_artifact
from .opened import Opened

_PIECE = 1 << 24


def damaged_members(
    opened: Opened, numbers: Iterable[int], *, whole: bool
) -> Iterator[tuple[str, DeserializationError]]:
    """The members whose weights are damaged, with their errors.

    Args:
        opened: the archive.
        numbers: the members.
        whole: whether they are all members; then all files of weights are read, each once. Otherwise only the tensors
            that these members use.

    Raises:
        DeserializationError: a file of weights is damaged outside of its tensors.
    """
    if not opened.has_weights:
        return
    bad = dict(_damaged_tensors(opened)) if whole else None
    if bad == {}:
        return
    good: set[bytes] = set()
    for number in numbers:
        label = opened.label(name := opened.index.name(number))
        try:
            with named_in_errors(label):
                weights = of_artifact(opened, label, _native.Artifact(*opened.parts(number)))
                for stored in () if weights is None else weights.table.tensors:
                    file, tensor = weights.find(stored.name)  # type: ignore[union-attr]
                    if bad is not None:
                        found = bad.get(stored.digest, stored.digest)
                    elif stored.digest in good:
                        continue
                    else:
                        found = _native.digest(file.bytes_of(tensor))
                    if found != stored.digest:
                        raise _other_bytes(stored.name, stored.digest, found)
                    good.add(stored.digest)
        except DeserializationError as error:
            yield name, error


def _damaged_tensors(opened: Opened) -> Iterator[tuple[bytes, bytes]]:
    """The digests of damaged tensors, and those that were found in their places."""
    places = {digest: place for digest, *place in opened.index.tensors()}
    for number, (position, size, crc32, header_size) in enumerate(opened.index.weights_files()):
        name = _native.archive_weights_name(number)
        with named_in_errors(opened.label(name)):
            zip_header = opened.source.read(position - header_size, header_size)
            if zip_header != _native.zip_local_header(name, size, crc32, position - header_size):
                raise DeserializationError("", "its header in the ZIP file", "another; get another copy of the archive")
            length = header.size_of_header(opened.source.read(position, min(size, header.LENGTH_SIZE)), size)
            head = opened.source.read(position, length)
            found_crc = zlib.crc32(head)
            wrong = False
            for tensor in header.read(head[header.LENGTH_SIZE :], size).tensors.values():
                digest = _digest_in_name(tensor)
                at = position + length + tensor.start
                found, found_crc = _read(opened, at, tensor.size, found_crc)
                if places.pop(digest, None) != [at, tensor.size]:
                    raise WeightsError(tensor.name, "a tensor that is where the index says", "another one")
                if found != digest:
                    wrong = True
                    yield digest, found
            if found_crc != crc32 and not wrong:
                raise DeserializationError("", "the bytes as they were written", "others in its header")
    if places:
        raise DeserializationError("index.weights", "tensors that are in files of weights", f"{len(places):,} others")


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


def _other_bytes(name: str, expected: bytes, found: bytes) -> WeightsError:
    return WeightsError(name, f"bytes with the digest {expected.hex()}", f"the digest {found.hex()}")
