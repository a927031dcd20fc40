"""Writes files of tensors piece by piece, so that no tensor must be in memory as a whole."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import ExportError, WeightsError
from jaxexp._kernel.io import files

from . import header
from .content import CONTENT, content_of, is_content, second_name
from .dtypes import size_of
from .layout import PlannedFile, index_name, plan

if TYPE_CHECKING:
    from typing_extensions import Buffer

_UNKNOWN = "0" * 32  # the content is known when all tensors are written


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A tensor that is to be written.

    Attributes:
        name: its name in the file.
        dtype: its dtype, as the format names it.
        shape: its shape in the file.
        pieces: makes its bytes, row by row, in pieces of any size.
        origin: the source of the bytes, if they cannot change: an array, or a key for part of a file. Otherwise None.
        digest: the XXH3 digest of its bytes, if it is known from elsewhere and must match.
        of: as in `Tensor`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[Buffer]]
    origin: Any = None
    digest: bytes | None = None
    of: str | None = None

    @property
    def size(self) -> int:
        """How many bytes it takes in the file."""
        size = size_of(self.dtype, self.shape)
        assert size is not None  # `held_as` chose the dtype
        return size

    def checked(self, digest: bytes) -> bytes:
        """The digest of the bytes that were made; a WeightsError if another one is known."""
        if self.digest is not None and digest != self.digest:
            raise damaged("", self.name, self.digest, digest)
        return digest


def damaged(file: str, name: str, expected: bytes, found: bytes) -> WeightsError:
    """The error for a tensor with a wrong digest."""
    said = f"bytes with the digest {expected.hex()}", f"the digest {found.hex()}"
    return WeightsError(name, *said, file=file or None)


@dataclasses.dataclass(frozen=True, slots=True)
class WrittenFile:
    """A written file.

    Attributes:
        name: the name that it is to get, without its folder.
        size: of the file, and `data_size` without its header.
        digests: of its tensors, by their names.
        content: the digest of all of them.
        temporary: its path until it gets its second name.
    """

    name: str
    size: int
    data_size: int
    digests: dict[str, bytes]
    content: bytes
    temporary: str

    @property
    def second_name(self) -> str:
        return second_name(self.name, self.content)


def write_apart(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    *,
    max_file_size: int | None = None,
    check_target: Callable[[str], None] = lambda path: None,
) -> list[WrittenFile]:
    """Writes tensors to files that have temporary names, until `name_apart` and `publish` give them theirs.

    Args:
        path: the file, ``NAME.safetensors``. If there are several, they are ``NAME-00001-of-00003.safetensors`` and so
            on, and ``NAME.safetensors.index.json``.
        sources: the tensors, in the order in which several files take them; no two have one name.
        max_file_size: how many bytes of tensors a file may have; None for one file.
        check_target: is called with each path that `publish` will replace, before anything is written, and may raise.

    Raises:
        ExportError: a name cannot stand in a file, or a source makes another number of bytes.
        OSError: a file cannot be written. Existing files are unchanged.
    """
    folder, name = os.path.split(os.fsdecode(path))
    by_name = {source.name: source for source in sources}
    planned = plan(name, sources, max_file_size)
    for target in [*(file.name for file in planned), *([index_name(name)] if len(planned) > 1 else [])]:
        check_target(os.path.join(folder, target))
    written: list[WrittenFile] = []
    try:
        for file in planned:
            written.append(_write(folder, file, by_name))
    except BaseException:
        discard(written)
        raise
    return written


def name_apart(folder: str, file: WrittenFile) -> list[str]:
    """Gives a file that `write_apart` wrote its second name, and returns its path; nothing if there was one already,
    which a program may need.
    """
    second = os.path.join(folder, file.second_name)
    was_there = os.path.lexists(second)
    os.replace(file.temporary, second)
    return [] if was_there else [second]


def publish(path: str | os.PathLike[str], written: Sequence[WrittenFile]) -> None:
    """Gives their own names to files that have their second ones, and then writes their index."""
    folder, name = os.path.split(os.fsdecode(path))
    for file in written:
        second, final = os.path.join(folder, file.second_name), os.path.join(folder, file.name)
        os.replace(second, final)
    if len(written) > 1:
        with files.replacing(os.path.join(folder, index_name(name))) as index:
            index.write(_index(written))


def discard(written: Iterable[WrittenFile]) -> None:
    """Removes those files that `write_apart` wrote that have still their temporary names."""
    for file in written:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.temporary)


def head_of(planned: PlannedFile, content: str = _UNKNOWN) -> bytes:
    """The bytes in front of the tensors of a file."""
    return header.compose(planned.tensors, {"writer": files.WRITER, CONTENT: content})


def write_again(path: str, sources: Sequence[Source], size: int, content: bytes) -> None:
    """Replaces a file by one of the same size and content, made from tensors whose digests are known.

    A WeightsError if these tensors do not make such a file, or if one of them is damaged.
    """
    (planned,) = plan(os.path.basename(path), sources, None)
    by_name = {source.name: source for source in sources}
    digests = {source.name: source.digest or b"" for source in sources}
    is_right = is_content(content.hex(), sources, digests)
    # Another version may have written another name for itself, which is not needed, and no dtypes.
    metadata = ({"writer": files.WRITER, CONTENT: content.hex()}, {CONTENT: content.hex()})
    without_dtypes = tuple(dataclasses.replace(tensor, of=None) for tensor in planned.tensors)
    for tensors, said in itertools.product((planned.tensors, without_dtypes), metadata):
        head = header.compose(tensors, said, size - planned.data_size)
        if is_right and len(head) + planned.data_size == size:
            break
    else:
        found = content_of(sources, digests).hex()
        raise WeightsError("", f"tensors for a file of {size:,} bytes, content {content.hex()}", f"content {found}")
    with files.replacing(path) as file:
        file.write(head)
        for tensor in planned.tensors:
            _write_tensor(file, tensor.size, by_name[tensor.name])


def _write(folder: str, planned: PlannedFile, sources: dict[str, Source]) -> WrittenFile:
    head = head_of(planned)
    digests = {}
    path = files.temporary_in(folder)
    with files.replacing(path, like=os.path.join(folder, planned.name)) as file:
        file.write(head)
        for tensor in planned.tensors:
            digests[tensor.name] = _write_tensor(file, tensor.size, sources[tensor.name])
        content = content_of(planned.tensors, digests)
        file.seek(head.index(_UNKNOWN.encode()))  # the metadata come first
        file.write(content.hex().encode())
    return WrittenFile(planned.name, len(head) + planned.data_size, planned.data_size, digests, content, path)


def _write_tensor(file: IO[bytes], size: int, source: Source) -> bytes:
    """Writes the pieces of a tensor, and returns the digest of all of them."""
    digester = _native.Digester()
    written = 0
    for piece in source.pieces():
        digester.update(piece)
        written += file.write(piece)
    if written != size:
        raise ExportError(f"writing the tensor {source.name!r}: expected {size:,} bytes, found {written:,}")
    return source.checked(digester.digest())


def is_own_index(text: bytes) -> bool:
    """Whether jaxexp wrote an index of several files."""
    try:
        return str(json.loads(text)["metadata"]["writer"]).startswith("jaxexp ")
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def _index(written: Iterable[WrittenFile]) -> bytes:
    weight_map = {tensor: file.name for file in written for tensor in file.digests}
    total = sum(file.data_size for file in written)
    index = {"metadata": {"total_size": total, "writer": files.WRITER}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(index, indent=2, ensure_ascii=False).encode()
