"""Saves a program and its weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jaxexp._errors import ExportError
from jaxexp._function.data import ExportedData
from jaxexp._weights import saving
from jaxexp._weights.stored import Table
from jaxexp._weights.weights import Weights
from jaxexp._write import serialize

_SUFFIX = ".safetensors"


def save(
    program: ExportedData,
    weights: Weights,
    path: str | os.PathLike[str],
    vjp_order: int,
    compatibility: str | None,
    metadata: Mapping[str, Any] | None,
    strict: bool,
    name: str | None,
    max_file_size: int | None,
) -> None:
    """`BoundExported.save`."""
    folder, program_name = os.path.split(os.fsdecode(path))
    if name is not None and (os.path.basename(name) != name or not name.endswith(_SUFFIX)):
        raise ExportError(
            f"saving {program.fun_name}: weights={name!r} has to be the name of a file in the folder of the program, "
            f"such as {os.path.splitext(program_name)[0] + _SUFFIX!r}"
        )
    if max_file_size is not None and max_file_size <= 0:
        raise ExportError(f"saving {program.fun_name}: max_weights_file_size={max_file_size} has to be positive")

    def save_program(table: Table) -> None:
        in_trailer = table.for_trailer()
        serialize.save(program, path, vjp_order, compatibility, True, metadata, strict, in_trailer)

    stored = weights.stored
    if stored is not None and name is None and max_file_size is None and _is_in(stored.path, folder):
        stored.check_files()
        save_program(stored.table)
        return
    sources = weights.sources()
    sizes = {source.name: source.size for source in sources}
    weights_path = os.path.join(folder, name or os.path.splitext(program_name)[0] + _SUFFIX)
    saving.save(weights_path, sources, sizes, save_program, max_file_size=max_file_size)


def _is_in(path: str, folder: str) -> bool:
    return os.path.realpath(os.path.dirname(path)) == os.path.realpath(folder)
