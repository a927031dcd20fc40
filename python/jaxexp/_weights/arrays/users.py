"""Which artifacts of a folder use a file of tensors: what one of them needs, another one does not replace."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError, WeightsError
from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import MARK, MARK_AT
from jaxexp._weights.files import places, reading
from jaxexp._weights.files.writing import WrittenFile

from .stored import StoredFile

# What an artifact has a file for.
Role: TypeAlias = Literal["weights", "cases"]
Used: TypeAlias = "list[tuple[Role, StoredFile]]"


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


def used_in(folder: str) -> list[tuple[str, Role, StoredFile]]:
    """The same for all artifacts in a folder, each with its name."""
    names = sorted(name for name in os.listdir(folder or os.curdir) if not files.is_temporary(name))
    return [(name, role, file) for name in names for role, file in used_by(os.path.join(folder, name))]


def check(
    program: str,
    own: Used,
    role: Role,
    written: Iterable[WrittenFile | StoredFile],
    index: str | None,
    advice: str = "",
) -> None:
    """Refuses to replace files that artifacts need as they are.

    A program may replace the files that it had for the same role, whoever else uses them, and files that no artifact
    in its folder uses.

    Args:
        program: the path of the program that is about to be saved.
        own: what `used_by` says of the program that is there.
        role: what the new files have.
        written: the new files.
        index: the path of the index that would be replaced, if there are several.
        advice: what the user can do; by default, what `save` allows.

    Raises:
        ExportError: a file is in use.
    """
    folder, name = os.path.split(program)
    all_used = None
    new = {file.name: file for file in written}
    for target in [*new, *(shard for shard in _shards(index) if shard not in new)]:
        path = os.path.join(folder, target) if target in new else index
        for other_role, file in own:
            if other_role != role and _key(file.name) == _key(target):
                raise _in_use(role, path, other_role, name, name, advice)
        found = _there(folder, target)
        if found is None or (role, found) in own or _is_equal(folder, found, new.get(target)):
            continue
        all_used = used_in(folder) if all_used is None else all_used
        for user, other_role, file in all_used:
            if file[1:] == found[1:] and _key(file.name) == _key(target):
                raise _in_use(role, path, other_role, user, name, advice)


def _is_equal(folder: str, found: StoredFile, new: WrittenFile | StoredFile | None) -> bool:
    """Whether a file that is there is the same as a new one. One that is written already is compared with it byte for
    byte, because equal digests can be forged.
    """
    if new is None or found[1:] != (new.size, new.content):
        return False
    return isinstance(new, StoredFile) or filecmp.cmp(os.path.join(folder, found.name), new.temporary, shallow=False)


def _in_use(role: Role, path: str | None, other_role: Role, user: str, name: str, advice: str) -> ExportError:
    if not advice and role == "cases" and user == name:
        advice = "save it with its weights in another file first, with weights="
    elif not advice:
        advice = f"save under another path{', or name another file with weights=' if role == 'weights' else ''}"
    return ExportError(
        f"saving {role} of {name!r}: expected {path!r} to be missing, or a file that no artifact needs, found the "
        f"{other_role} of {user!r}, which would be lost: {advice}"
    )


def _key(name: str) -> str:
    return name.casefold()  # some file systems have one file under both names


def _there(folder: str, name: str) -> StoredFile | None:
    """The file of a name, as it says itself; None if there is none, or one that is of no use to an artifact."""
    path = os.path.join(folder, name)
    try:
        file = reading.TensorFile(path, places.FileInPieces(places.open_named(path)))
        return StoredFile(name, file.size, bytes.fromhex(file.content or ""))
    except (WeightsError, OSError, ValueError):
        return None


def _shards(index: str | None) -> list[str]:
    """The files of an index."""
    if index is None:
        return []
    try:
        names = dict.fromkeys(reading.read_index(index).values())
        for name in names:
            places.check_name(name)
    except (WeightsError, DeserializationError, OSError):
        return []
    return list(names)
