"""Archives in files."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxexp import Archive, _native
from jaxexp._fleet.archive import writer as writing

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def make(path: Path, members: dict[str, Any], **options: Any) -> Path:
    """An archive of artifacts, in memory or in files."""
    with Archive.create(path, **options) as archive:
        for name, member in members.items():
            (archive.add_file if isinstance(member, Path) else archive.add)(name, member)
    return path


@contextlib.contextmanager
def metadata_in_the_index() -> Iterator[None]:
    """As in archives that were made before: only the index has the metadata that comes with any artifact."""
    with pytest.MonkeyPatch.context() as patched:

        def noted(blob: Any, metadata: Any, _: Any = None) -> Any:
            return blob, _native.Artifact(blob), writing.metadata_text(metadata)

        patched.setattr(writing, "_noted", noted)
        yield


def assert_sound(path: Path, expected: dict[str, bytes]) -> None:
    """The archive has these artifacts, nothing in it is damaged, and ZIP tools agree."""
    with Archive.open(path) as archive:
        assert {name: bytes(handle.read()) for name, handle in archive.items()} == expected
        assert archive.verify() == {}
        assert archive.unfinished_bytes == 0
        own = [name for name in archive if not archive[name].shares_modules]
    with zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() is None
        names = zipped.namelist()
        assert len(names) == len(set(names))
        assert names[-1] == ".jaxexp/index"
        stored = [name for name in names if not name.startswith(".jaxexp/")]
        assert set(stored) <= set(own)
        for name in stored:
            assert zipped.read(name) == expected[name]
            assert zipped.getinfo(name).compress_type == zipfile.ZIP_STORED
        # Whoever is not there under its own name has the bytes, or the modules, of somebody who is.
        for name in set(expected) - set(stored):
            assert f".jaxexp/apart/{name}" in names or expected[name] in (expected[other] for other in expected)


def with_index(data: bytes, records: _native.ArchiveRecords, writer: str, position: int = 0) -> bytes:
    """What begins at a position of a file with a section's head and members, and with an index and an end behind it."""
    at = position + len(data)
    header = len(_native.zip_local_header(_native.ARCHIVE_INDEX_NAME, 0, 0, at))
    start = at + header
    pieces: list[bytes] = []
    size, root_position, root_size, digest = records.write(writer, start, pieces.append)
    index = b"".join(pieces)
    assert len(index) == size
    place = _native.MemberPlace(start, size, zlib.crc32(index), header)
    data += _native.zip_local_header(_native.ARCHIVE_INDEX_NAME, size, place.crc32, at) + index
    pointer = _native.ArchiveEnd(start, size, root_position, root_size, digest)
    pieces.clear()
    records.write_directory(place, position + len(data), pointer.comment(), 0, pieces.append)
    return data + b"".join(pieces)


def of_one_section(data: bytes) -> bytes:
    """An archive whose first head says that it ends where it does, with the last bytes that it has."""
    head = _native.archive_section_head(0, len(data), data[-_native.ARCHIVE_END_SIZE :])
    return head + data[len(head) :]
