"""Saving weights and the program beside them: at every moment, the program on disk finds its own weights.

Two files cannot be replaced at once. So a file of tensors has a second name, which begins with a dot and contains the
digest of its content. A program looks there if the file with the plain name is missing or is another one:

    1. the new weights are written under a temporary name
    2. the new and the old weights get their second names
    3. the new program takes the place of the old one
    4. the new weights take the plain name from the old ones
    5. the second name of the old weights is removed, and one that the old program found its weights under, unless
       another program needs them

Only one writer at a time takes steps 2 to 5 in a folder: of two, one would remove what the other one's program needs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence

from jaxexp._errors import ExportError, WeightsError
from jaxexp._kernel.io.lock import folder_locked
from jaxexp._weights.files import content, places, reading, writing
from jaxexp._weights.files.layout import index_name
from jaxexp._weights.files.writing import Source, WrittenFile

from . import users
from .stored import StoredFile, Table
from .users import Role


def save(
    program: str | os.PathLike[str],
    name: str,
    sources: Sequence[Source],
    write_program: Callable[[Table], None],
    *,
    role: Role = "weights",
    max_file_size: int | None = None,
) -> None:
    """Saves weights, in the order of the program's arguments, and the program that needs them; or arrays of its cases.

    Args:
        program: the path of the program.
        name: of the file, in the folder of the program; this and `max_file_size` are as in `writing.write_apart`.
        sources: the tensors.
        write_program: saves the program, given the table of the files for its trailer.
        role: what the tensors are.

    Raises:
        ExportError: jaxexp did not write a file that would be replaced, or an artifact needs it; or the program is a
            symbolic link. Nothing is written.
        BusyError: another writer saves files in the folder for a minute. Nothing is written.
    """
    check_is_no_link(program, role)
    program = os.fsdecode(program)
    folder = os.path.dirname(program)
    path = os.path.join(folder, name)

    def check_target(target: str) -> None:
        if reading.is_of_others(target):
            raise ExportError(
                f"saving {role}: expected {target!r} to be missing, or a file that jaxexp wrote, found one of another "
                "program, or a damaged one, which is not replaced: save under another path"
                + (", or name another file with weights=" if role == "weights" else "")
            )

    written = writing.write_apart(path, sources, max_file_size=max_file_size, check_target=check_target)
    try:
        with folder_locked(folder):
            _replace(program, path, written, role, lambda: write_program(Table.of_written(written, sources)))
    finally:
        writing.discard(written)


def check_is_no_link(program: str | os.PathLike[str], role: Role) -> None:
    """Raises an ExportError for a symbolic link: the files would be beside it, and not beside the program."""
    if os.path.islink(program):
        raise ExportError(
            f"saving {role}: expected {os.fsdecode(program)!r} to be a file, found a symbolic link to "
            f"{os.path.realpath(os.fsdecode(program))!r}, which would not find its {role} beside the link: save under "
            "that path"
        )


def _replace(
    program: str, path: str, written: Sequence[WrittenFile], role: Role, write_program: Callable[[], None]
) -> None:
    """Steps 2 to 5."""
    folder, name = os.path.split(path)
    own = users.used_by(program)
    index = os.path.join(folder, index_name(name)) if len(written) > 1 else None
    users.check(program, own, role, written, index)
    old = _left_behind(folder, own, role)  # second names
    new: list[str] = []
    try:
        for file in written:
            new += writing.name_apart(folder, file)
            old |= _with_second_name(folder, file.name)
        write_program()
    except BaseException:
        # An interruption may come when the new program is there already.
        if not _is_needed(program, role, written):
            _unlink(new)
        raise
    writing.publish(path, written)
    if old := old - {file.second_name for file in written}:  # they have their own names
        needed = {_second(file) for _, _, file in users.used_in(folder)}
        _unlink(os.path.join(folder, second) for second in old - needed)


def _unlink(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _is_needed(program: str, role: Role, written: Sequence[WrittenFile]) -> bool:
    """Whether the program that is there names one of the files, as they are."""
    new = {(file.name, file.content) for file in written}
    return any(of == role and (file.name, file.content) in new for of, file in users.used_by(program))


def _left_behind(folder: str, own: users.Used, role: Role) -> set[str]:
    """The second names of a program's files, if they are there: a process died while it saved them."""
    names = {_second(file) for of, file in own if of == role}
    return {name for name in names if os.path.lexists(os.path.join(folder, name))}


def _second(file: StoredFile) -> str:
    return content.second_name(file.name, file.content)


def _with_second_name(folder: str, name: str) -> set[str]:
    """Gives a file its second name beside its own, and returns it; nothing if no program of jaxexp needs it."""
    path = os.path.join(folder, name)
    try:
        found = reading.TensorFile(path, places.FileInPieces(places.open_named(path))).content
        second = content.second_name(name, bytes.fromhex(found or ""))
    except (WeightsError, OSError, ValueError):
        return set()
    if found is None:
        return set()
    try:
        os.link(path, os.path.join(folder, second))
    except FileExistsError:  # from a process that died, or because the new content is the same
        pass
    except OSError:  # a file system without links
        os.rename(path, os.path.join(folder, second))
    return {second}
