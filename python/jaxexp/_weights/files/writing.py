"""Writes files of tensors piece by piece, so that no tensor must be in memory as a whole."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import IO

from jaxexp import _native
from jaxexp._errors import ExportError, WeightsError
from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import INDEX, WEIGHTS

from . import header
from .header import CONTENT, UNKNOWN, PlannedFile, Source, StoredFile, StoredTensor, Table, content_of, is_content, plan
from .places import index_name


def write_apart(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    *,
    max_file_size: int | None = None,
    check_target: Callable[[str], None] = lambda path: None,
) -> tuple[Table, list[str]]:
    """Writes tensors to files that have temporary names, until they get their second ones, and `publish` renames them.
    Returns a table of the files, and of the tensors in the order of their sources; and the temporary paths.

    If a limit on the bytes of tensors in a file makes several of ``NAME.safetensors``, they are called
    ``NAME-00001-of-00003.safetensors`` and so on, and ``NAME.safetensors.index.json``. They take the tensors, of which
    no two have one name, in their order. `check_target` is called with each path that `publish` will replace, before
    anything is written, and may raise. An ExportError if a name cannot stand in a file, or if a source makes another
    number of bytes. Existing files are unchanged then.
    """
    folder, name = os.path.split(os.fsdecode(path))
    planned = plan(name, sources, max_file_size)
    for target in [*(file.name for file in planned), *([index_name(name)] if len(planned) > 1 else [])]:
        check_target(os.path.join(folder, target))
    stored: list[StoredFile] = []
    temporary: list[str] = []
    tensors: dict[str, StoredTensor] = {}
    try:
        for number, file in enumerate(planned):
            temporary.append(files.temporary_in(folder))
            found, digests = _write(temporary[-1], os.path.join(folder, file.name), file)
            stored.append(found)
            for tensor in file.tensors:
                tensors[tensor.name] = StoredTensor(tensor.name, number, tensor.size, digests[tensor.name])
    except BaseException:
        discard(temporary)
        raise
    return Table(tuple(stored), tuple(tensors[source.name] for source in sources)), temporary


def publish(path: str | os.PathLike[str], table: Table) -> None:
    """Gives their own names to files that have their second ones, and then writes their index."""
    folder, name = os.path.split(os.fsdecode(path))
    for file in table.files:
        os.replace(os.path.join(folder, file.second_name), os.path.join(folder, file.name))
    if len(table.files) > 1:
        weight_map = {tensor.name: table.files[tensor.file].name for tensor in table.tensors}
        metadata = {"total_size": sum(tensor.size for tensor in table.tensors), "writer": files.WRITER}
        text = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
        with files.replacing(os.path.join(folder, index_name(name)), INDEX) as index:
            index.write(json.dumps(text, indent=2, ensure_ascii=False).encode())


def discard(paths: Iterable[str]) -> None:
    """Removes those of these files that are still there."""
    for path in paths:
        files.remove(path)


def write_again(path: str, sources: Sequence[Source], size: int, content: bytes) -> None:
    """Replaces a file by one of the same size and content, made from tensors whose digests are known.

    A WeightsError if these tensors do not make such a file, or if one of them is damaged.
    """
    (planned,) = plan(os.path.basename(path), sources)
    digests = {source.name: source.digest or b"" for source in sources}
    is_right = is_content(content.hex(), sources, digests)
    # Another version may have written another name for itself, which is not needed, and no dtypes.
    metadata = ({"writer": files.WRITER, CONTENT: content.hex()}, {CONTENT: content.hex()})
    without_dtypes = [dataclasses.replace(tensor, of=None) for tensor in planned.tensors]
    for tensors, said in itertools.product((planned.tensors, without_dtypes), metadata):
        head = header.compose(tensors, said, size - planned.data_size)
        if is_right and len(head) + planned.data_size == size:
            break
    else:
        found = content_of(sources, digests).hex()
        raise WeightsError("", f"tensors for a file of {size:,} bytes, content {content.hex()}", f"content {found}")
    with files.replacing(path, WEIGHTS) as file:
        file.write(head)
        for tensor in planned.tensors:
            _write_tensor(file, tensor)


def _write(path: str, target: str, planned: PlannedFile) -> tuple[StoredFile, dict[str, bytes]]:
    """Writes a file that will replace another one, and returns the digests of its tensors, too."""
    head = planned.head()
    with files.replacing(path, WEIGHTS, like=target) as file:
        file.write(head)
        digests = {tensor.name: _write_tensor(file, tensor) for tensor in planned.tensors}
        content = content_of(planned.tensors, digests)
        file.seek(head.index(UNKNOWN.encode()))  # the metadata come first
        file.write(content.hex().encode())
    return StoredFile(planned.name, len(head) + planned.data_size, content), digests


def _write_tensor(file: IO[bytes], source: Source) -> bytes:
    """Writes the pieces of a tensor, and returns the digest of all of them."""
    digester = _native.Digester()
    written = 0
    for piece in source.pieces():
        digester.update(piece)
        written += file.write(piece)
    if written != source.size:
        raise ExportError(f"writing the tensor {source.name!r}: expected {source.size:,} bytes, found {written:,}")
    return source.checked(digester.digest())
