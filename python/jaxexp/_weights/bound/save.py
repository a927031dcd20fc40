"""Saves a program and its weights."""

from __future__ import annotations

import os

from jaxexp._errors import ExportError
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.io.lock import folder_locked
from jaxexp._kernel.write import serialize
from jaxexp._kernel.write.options import Writing
from jaxexp._weights.arrays import saving
from jaxexp._weights.arrays.stored import Stored, Table
from jaxexp._weights.arrays.weights import Weights
from jaxexp._weights.files.layout import file_name
from jaxexp._weights.files.places import SUFFIX, is_name_beside, name_beside


def save(
    program: ExportedData,
    weights: Weights,
    path: str | os.PathLike[str],
    how: Writing,
    name: str | None,
    max_file_size: int | None,
) -> None:
    """`BoundExported.save`."""
    folder, program_name = os.path.split(os.fsdecode(path))
    saving.check_is_no_link(path, "weights")
    if name is not None and not is_name_beside(name):
        raise ExportError(
            f"saving {program.fun_name}: weights={name!r} has to be the name of a {SUFFIX} file in the folder of the "
            f"program, such as {name_beside(program_name, SUFFIX)!r}"
        )
    weights_name = name or name_beside(program_name, SUFFIX)
    if weights_name == program_name:
        raise ExportError(
            f"saving {program.fun_name}: {program_name!r} would be the file of the weights, too: give the program "
            f"another name, such as {os.path.splitext(program_name)[0] + '.jaxexp'!r}"
        )
    if max_file_size is not None and max_file_size <= 0:
        raise ExportError(f"saving {program.fun_name}: max_weights_file_size={max_file_size} has to be positive")

    def save_program(table: Table) -> None:
        if how.cases is not None and {file.name for file in table.files} & {
            file.name for file in how.cases.table.files
        }:
            raise ExportError(
                f"saving {program.fun_name}: {weights_name!r} would be the file of the cases, too: name another file "
                "with weights="
            )
        serialize.save(program, path, how._replace(weights=table.with_other_names(weights.other_names)))

    stored = weights.stored
    if stored is not None and max_file_size is None:
        with folder_locked(folder):
            if _is_there(stored, folder, weights_name):
                save_program(stored.table)
                return
    saving.save(path, weights_name, weights.sources(), save_program, max_file_size=max_file_size)


def _is_there(stored: Stored, folder: str, name: str) -> bool:
    """Whether the files that weights were loaded from are those that they would be written to, and still there."""
    if os.path.realpath(os.path.dirname(stored.path)) != os.path.realpath(folder):
        return False
    count = len(stored.table.files)
    names = [file_name(name, number, count) for number in range(1, count + 1)]
    return [file.name for file in stored.table.files] == names and stored.are_there()
