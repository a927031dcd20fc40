"""Writing files of tensors: piece by piece, so that no tensor has to be in memory as a whole."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import IO, TYPE_CHECKING

from jaxexp import _native
from jaxexp._errors import ExportError
from jaxexp._io import files
from jaxexp._version import __version__

from . import header, places
from .content import CONTENT, content_of
from .layout import PlannedFile, plan

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WRITER = f"jaxexp {__version__}"
_UNKNOWN = "0" * 32  # the content is known when all tensors are written


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A tensor that is to be written.

    Attributes:
        name: its name in the file.
        dtype: its dtype, as the format names it.
        shape: its shape in the file.
        pieces: makes its bytes, row by row, in pieces of any size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[Buffer]]


@dataclasses.dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was written.

    Attributes:
        name: its name, without its folder.
        size: how many bytes it has.
        digests: the XXH3 digest of each tensor's bytes, by the tensor's name.
    """

    name: str
    size: int
    digests: dict[str, bytes]


def write(
    path: str | os.PathLike[str], sources: Sequence[Source], *, max_file_size: int | None = None
) -> list[WrittenFile]:
    """Writes tensors to a safetensors file, or to several ones and an index beside them.

    Each file is complete when it gets its name, and the index is the last one.

    Args:
        path: the file, ``NAME.safetensors``. If there are several, they are ``NAME-00001-of-00003.safetensors`` and so
            on, and ``NAME.safetensors.index.json``.
        sources: the tensors, in the order in which several files take them.
        max_file_size: how many bytes of tensors a file may have; None for one file.

    Raises:
        ExportError: the path has another ending, names are not unique, or a source makes other bytes than it says.
        OSError: a file cannot be written. What was there before is unchanged.
    """
    folder, name = os.path.split(os.fsdecode(path))
    if not name.endswith(places.SUFFIX):
        raise ExportError(f"a file of tensors is called NAME{places.SUFFIX}, not {name!r}")
    by_name = {source.name: source for source in sources}
    if len(by_name) != len(sources):
        raise ExportError("tensors that are written to one file need names that are different")
    planned = plan(name, ((s.name, s.dtype, s.shape) for s in sources), max_file_size)
    written = [_write(os.path.join(folder, file.name), file, by_name) for file in planned]
    if len(planned) > 1:
        index = _index(planned)
        with files.replacing(os.path.join(folder, name.removesuffix(places.SUFFIX) + places.INDEX_SUFFIX)) as file:
            file.write(index)
    return written


def _write(path: str, planned: PlannedFile, sources: dict[str, Source]) -> WrittenFile:
    head = header.compose(planned.tensors, {"writer": _WRITER, CONTENT: _UNKNOWN})
    digests = {}
    with files.replacing(path) as file:
        file.write(head)
        for tensor in planned.tensors:
            digests[tensor.name] = _write_tensor(file, tensor.size, sources[tensor.name])
        file.seek(head.index(_UNKNOWN.encode()))  # the metadata come first
        file.write(content_of(digests).hex().encode())
    return WrittenFile(planned.name, len(head) + planned.data_size, digests)


def _write_tensor(file: IO[bytes], size: int, source: Source) -> bytes:
    """Writes the pieces of a tensor, and returns the digest of all of them."""
    digester = _native.Digester()
    written = 0
    for piece in source.pieces():
        digester.update(piece)
        written += file.write(piece)
    if written != size:
        raise ExportError(f"writing the tensor {source.name!r}: expected {size:,} bytes, found {written:,}")
    return digester.digest()


def _index(planned: Iterable[PlannedFile]) -> bytes:
    weight_map = {tensor.name: file.name for file in planned for tensor in file.tensors}
    total = sum(file.data_size for file in planned)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(index, indent=2, ensure_ascii=False).encode()
