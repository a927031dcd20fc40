"""Writing weights into an archive: each tensor once, however many functions use it."""

from __future__ import annotations

import dataclasses
import weakref
import zlib
from collections.abc import Sequence
from typing import Any

from jaxexp import _native
from jaxexp._errors import ExportError
from jaxexp._weights.files.header import Source, content_of, plan, xxh3

from .output import Output


class WeightsWriter:
    """Adds files of tensors to an archive. In the archive, the name of a tensor is the digest of its bytes."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._records = output.records
        self._seen = _Seen()

    def add(self, sources: Sequence[Source]) -> dict[str, bytes]:
        """Writes the tensors that are not in the archive yet, and returns the digests of all by name.

        Raises:
            ExportError: a tensor has the digest of another one.
            WeightsError: one is damaged in its source.
        """
        digests: dict[str, bytes] = {}
        unseen: list[Source] = []
        new: dict[bytes, Source] = {}
        for source in sources:
            digest = self._seen.digest_of(source)
            if digest is None or source.digest not in (None, digest):
                digest = source.checked(xxh3(source.pieces()))
                unseen.append(source)
                if self._records.tensor(digest) is None:
                    new.setdefault(digest, source)
            digests[source.name] = digest
        if new:
            self._write(new)
        for source in unseen:
            digest = digests[source.name]
            if new.get(digest) is not source:
                place = self._records.tensor(digest)
                assert place is not None
                self._compare(source, *place)
            self._seen.add(source, digest)
        return digests

    def _write(self, new: dict[bytes, Source]) -> None:
        names = {digest.hex(): digest for digest in new}
        named = (dataclasses.replace(new[digest], name=name, of=None) for name, digest in names.items())
        (planned,) = plan("weights.safetensors", named)
        head = planned.head(content_of(planned.tensors, names).hex())
        size = len(head) + planned.data_size
        name, start = _native.archive_weights_name(self._records.weights_file_count), self._output.end
        header = len(_native.zip_local_header(name, size, 0, start))
        position = start + header
        self._output.write_at(position, head)
        crc32 = zlib.crc32(head)
        places, at = [], position + len(head)
        for tensor in planned.tensors:
            places.append((names[tensor.name], at, tensor.size))
            crc32 = self._write_tensor(at, tensor.size, new[names[tensor.name]], names[tensor.name], crc32)
            at += tensor.size
        self._output.write_at(start, _native.zip_local_header(name, size, crc32, start))
        self._records.add_weights(position, size, crc32, header, places)
        self._output.end = position + size

    def _write_tensor(self, position: int, size: int, source: Source, digest: bytes, crc32: int) -> int:
        """Writes one tensor, and returns the CRC-32 of the file up to its end."""
        digester = _native.Digester()
        written = 0
        for piece in source.pieces():
            digester.update(piece)
            crc32 = zlib.crc32(piece, crc32)
            self._output.write_at(position + written, piece)
            written += memoryview(piece).nbytes
        if written != size or digester.digest() != digest:
            raise ExportError(f"the weight {source.name!r} changed while it was written to an archive")
        return crc32

    def _compare(self, source: Source, position: int, size: int) -> None:
        """Compares the bytes, because equal digests can be forged."""
        if size != source.size:
            raise _forged(source)
        for piece in source.pieces():
            count = memoryview(piece).nbytes
            if not _native.equal_bytes(self._output.read(position, count), piece):
                raise _forged(source)
            position += count


class _Seen:
    """Digests of tensors in the archive, by their sources: the next function may have the same ones."""

    def __init__(self) -> None:
        self._of_files: dict[tuple[Any, ...], bytes] = {}
        self._of_arrays: dict[int, tuple[weakref.ref[Any], bytes]] = {}

    def digest_of(self, source: Source) -> bytes | None:
        if isinstance(source.origin, tuple):
            return self._of_files.get(source.origin)
        found = self._of_arrays.get(id(source.origin))
        return found[1] if found is not None and found[0]() is source.origin else None

    def add(self, source: Source, digest: bytes) -> None:
        if isinstance(source.origin, tuple):
            self._of_files[source.origin] = digest
        elif source.origin is not None:
            self._of_arrays[id(source.origin)] = weakref.ref(source.origin), digest


def _forged(source: Source) -> ExportError:
    return ExportError(
        f"the weight {source.name!r} has the digest of another tensor in the archive, and other bytes. That is no "
        "accident: look where it comes from"
    )
