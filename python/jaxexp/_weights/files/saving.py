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
What one artifact of the folder needs, another one does not replace. Files can be made again from tensors that are
elsewhere, such as in an archive (`Unpacking`).
"""

from __future__ import annotations

import contextlib
import filecmp
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError, WeightsError
from jaxexp._kernel.io import files
from jaxexp._kernel.io.lock import folder_locked
from jaxexp._kernel.io.other_files import MARK, MARK_AT

from . import header, places, reading, writing
from .header import Source, StoredFile, Table
from .reading import TensorFile, Tensors

# What an artifact has a file for.
Role: TypeAlias = Literal["weights", "cases"]
Used: TypeAlias = "list[tuple[Role, StoredFile]]"


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

    `name` is that of the file in the folder of the program; it and `max_file_size` are as in `writing.write_apart`.
    `write_program` saves the program, given the table for its trailer.

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

    table, temporary = writing.write_apart(path, sources, max_file_size=max_file_size, check_target=check_target)
    written = dict(zip(table.files, temporary, strict=True))
    try:
        with folder_locked(folder):
            _replace(program, path, table, written, role, lambda: write_program(table))
    finally:
        writing.discard(temporary)


def check_is_no_link(program: str | os.PathLike[str], role: Role) -> None:
    """Raises an ExportError for a symbolic link: the files would be beside it, and not beside the program."""
    if os.path.islink(program):
        raise ExportError(
            f"saving {role}: expected {os.fsdecode(program)!r} to be a file, found a symbolic link to "
            f"{os.path.realpath(os.fsdecode(program))!r}, which would not find its {role} beside the link: save under "
            "that path"
        )


def _replace(
    program: str, path: str, table: Table, written: Mapping[StoredFile, str], role: Role, write: Callable[[], None]
) -> None:
    """Steps 2 to 5."""
    folder, name = os.path.split(path)
    own = used_by(program)
    index = os.path.join(folder, places.index_name(name)) if len(written) > 1 else None
    check_unused(program, own, role, written, index)
    # The second names of the old files: a process may have died while it saved them.
    old = {file.second_name for of, file in own if of == role}
    old = {second for second in old if os.path.lexists(os.path.join(folder, second))}
    new: list[str] = []
    try:
        for file, temporary in written.items():
            second = os.path.join(folder, file.second_name)
            new += [] if os.path.lexists(second) else [second]  # a program may need one that was there
            os.replace(temporary, second)
            old |= _with_second_name(folder, file.name)
        write()
    except BaseException:
        # An interruption may come when the new program is there already.
        if not any(of == role and file in written for of, file in used_by(program)):
            writing.discard(new)
        raise
    writing.publish(path, table)
    if old := old - {file.second_name for file in written}:  # they have their own names
        needed = {file.second_name for _, _, file in _used_in(folder)}
        writing.discard(os.path.join(folder, second) for second in old - needed)


def _with_second_name(folder: str, name: str) -> set[str]:
    """Gives a file its second name beside its own, and returns it; nothing if no program of jaxexp needs it."""
    path = os.path.join(folder, name)
    found = _there(path)
    if found is None or not found.content:
        return set()
    try:
        os.link(path, os.path.join(folder, found.second_name))
    except FileExistsError:  # from a process that died, or because the new content is the same
        pass
    except OSError:  # a file system without links
        os.rename(path, os.path.join(folder, found.second_name))
    return {found.second_name}


def _there(path: str) -> StoredFile | None:
    """The file of a path, as it says itself; None if there is none, or one that is of no use to an artifact."""
    try:
        file = reading.open_file(path)
        return StoredFile(os.path.basename(path), file.size, bytes.fromhex(file.content or ""))
    except (WeightsError, OSError, ValueError):
        return None


# --- files that artifacts use ---------------------------------------------------------------------------------------


def used_by(artifact: str) -> Used:
    """The files that the trailer of an artifact names; none of what is no artifact, or a damaged one."""
    try:
        with files.regular(artifact) as file:
            if file.read(MARK_AT.stop)[MARK_AT] != MARK:
                return []
        content: Any = files.file_bytes(artifact)  # which types can say since Python 3.12
        found = _native.Artifact(content)
    except (OSError, DeserializationError):
        return []
    weights, cases = found.weights(), found.cases()
    used: Used = [] if weights is None else [("weights", StoredFile._make(file)) for file in weights[0]]
    return used if cases is None else used + [("cases", StoredFile._make(file)) for file in cases[2]]


def _used_in(folder: str) -> list[tuple[str, Role, StoredFile]]:
    """The same for all artifacts in a folder, each with its name."""
    names = sorted(name for name in os.listdir(folder or os.curdir) if not files.is_temporary(name))
    return [(name, role, file) for name in names for role, file in used_by(os.path.join(folder, name))]


def check_unused(
    program: str,
    own: Used,
    role: Role,
    written: Mapping[StoredFile, str | None],
    index: str | None,
    advice: str = "",
) -> None:
    """Raises an ExportError if artifacts need files as they are that a program at this path would replace.

    It may replace the files that it had for the same role (`own` is what `used_by` says of the program that is there),
    whoever else uses them, and files that no artifact in its folder uses. `written` has the new files, and where they
    are now, if they are written already; `index` is the path of the index that would be replaced, if there are several.
    By default, the advice is what `save` allows.
    """
    folder, name = os.path.split(program)
    all_used = None
    new = {file.name: (file, path) for file, path in written.items()}
    for target in [*new, *(shard for shard in (_shards(index) if index else ()) if shard not in new)]:
        path = os.path.join(folder, target) if target in new else index
        for other_role, file in own:
            if other_role != role and _are_one(file.name, target):
                raise _in_use(role, path, other_role, name, name, advice)
        found = _there(os.path.join(folder, target))
        if found is None or (role, found) in own or _is_equal(folder, found, *new.get(target, (None, None))):
            continue
        all_used = _used_in(folder) if all_used is None else all_used
        for user, other_role, file in all_used:
            if file[1:] == found[1:] and _are_one(file.name, target):
                raise _in_use(role, path, other_role, user, name, advice)


def _is_equal(folder: str, found: StoredFile, new: StoredFile | None, path: str | None) -> bool:
    """Whether a file that is there is the same as a new one. One that is written already is compared with it byte for
    byte, because equal digests can be forged.
    """
    is_equal = new is not None and found[1:] == new[1:]
    return is_equal and (path is None or filecmp.cmp(os.path.join(folder, found.name), path, shallow=False))


def _in_use(role: Role, path: str | None, other_role: Role, user: str, name: str, advice: str) -> ExportError:
    if not advice and role == "cases" and user == name:
        advice = "save it with its weights in another file first, with weights="
    elif not advice:
        advice = f"save under another path{', or name another file with weights=' if role == 'weights' else ''}"
    return ExportError(
        f"saving {role} of {name!r}: expected {path!r} to be missing, or a file that no artifact needs, found the "
        f"{other_role} of {user!r}, which would be lost: {advice}"
    )


def _are_one(name: str, other: str) -> bool:
    return name.casefold() == other.casefold()  # some file systems have one file under both names


def _shards(index: str) -> list[str]:
    """The files of an index."""
    try:
        names = dict.fromkeys(reading.read_index(index).values())
        for name in names:
            places.check_name(name)
    except (DeserializationError, OSError):
        return []
    return list(names)


# --- files that are made again --------------------------------------------------------------------------------------

# The identities of files that were written here, or compared with tensors, and where these are: many programs may need
# one file.
_whole: set[object] = set()


class Unpacking:
    """The files that programs need beside them, each written once in a folder."""

    def __init__(self) -> None:
        self._planned: dict[str, StoredFile] = {}

    def plan(self, folder: str, tensors: Tensors, refuse_existing: Callable[[str], None]) -> list[tuple[str, int]]:
        """Where the files of a program will be: each path, with the number of the file in the program's table.

        Programs from different places may have different files with the same name. All but the first get their second
        names, under which their programs find them. `refuse_existing` is called with each path of a file that would be
        replaced.
        """
        found = []
        for number, file in enumerate(tensors.table.files):
            places.check_name(file.name)
            path = os.path.join(folder, file.name)
            if self._planned.get(path, file) != file:
                path = os.path.join(folder, file.second_name)
            if path not in self._planned:
                self._planned[path] = file
                if not _says_so(path, file):
                    refuse_existing(path)
            found.append((path, number))
        return found

    def write(self, planned: list[tuple[str, int]], tensors: Tensors) -> int:
        """Writes the missing and the damaged files of a program, and returns how many bytes were written."""
        written = 0
        sources = tensors.sources()
        for path, number in planned:
            file = tensors.table.files[number]
            own = [s for s, t in zip(sources, tensors.table.tensors, strict=True) if t.file == number]
            if not _is_whole(path, file, own):
                writing.write_again(path, own, file.size, file.content)
                _whole.add(_identity(reading.open_file(path), own))
                written += file.size
        return written


def _says_so(path: str, file: StoredFile) -> bool:
    """Whether there is a file that says that it is this one."""
    with contextlib.suppress(WeightsError, OSError):
        return reading.open_file(path).is_same(file)
    return False


def _is_whole(path: str, file: StoredFile, tensors: list[Source]) -> bool:
    """Whether there is this file, and it is whole. A WeightsError if it has other tensors with the same digests, which
    somebody can make.
    """
    try:
        found = reading.open_file(path)
        if not found.is_same(file):
            return False
        if (key := _identity(found, tensors)) in _whole:
            return True
        there = [found.source(tensor.name, tensor.digest) for tensor in tensors]
        for tensor in there:
            reading.check_digest(tensor)
    except (WeightsError, OSError, KeyError):
        return False
    for one, other in zip(tensors, there, strict=True):
        if header.sha256(one.pieces()) != header.sha256(other.pieces()):
            found_one = "one of the same digest with other bytes: unpack into another folder"
            raise WeightsError(one.name, "the tensor that is to be written", found_one, file=path)
    if all(tensor.origin is not None for tensor in tensors):
        _whole.add(key)
    return True


def _identity(found: TensorFile, tensors: Iterable[Source]) -> tuple[object, ...]:
    return found.identity, *(tensor.origin for tensor in tensors)
