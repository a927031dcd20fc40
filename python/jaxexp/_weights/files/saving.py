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

import dataclasses
import filecmp
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, Literal, TypeAlias

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError, WeightsError
from jaxexp._kernel.io import files
from jaxexp._kernel.io.lock import folder_locked
from jaxexp._kernel.io.other_files import INDEX, MARK, MARK_AT, WEIGHTS

from . import header, places, reading
from .header import CONTENT, UNKNOWN, Source, StoredFile, StoredTensor, Table, content_of, is_content, plan
from .places import index_name
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

    `name` is that of the file in the folder of the program; it and `max_file_size` are as in `write_apart`.
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

    table, temporary = write_apart(path, sources, max_file_size=max_file_size, check_target=check_target)
    written = dict(zip(table.files, temporary, strict=True))
    try:
        with folder_locked(folder):
            _replace(program, path, table, written, role, lambda: write_program(table))
    finally:
        discard(temporary)


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
    index = os.path.join(folder, index_name(name)) if len(written) > 1 else None
    _check_unused(program, own, role, written, index)
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
            discard(new)
        raise
    publish(path, table)
    if old := old - {file.second_name for file in written}:  # they have their own names
        needed = {file.second_name for _, _, file in _used_in(folder)}
        discard(os.path.join(folder, second) for second in old - needed)


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


# --- files of tensors, written piece by piece, so that no tensor must be in memory as a whole -------------------------


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
            head = file.head()
            with files.replacing(temporary[-1], WEIGHTS, like=os.path.join(folder, file.name)) as output:
                output.write(head)
                digests = {tensor.name: _write_tensor(output, tensor) for tensor in file.tensors}
                content = content_of(file.tensors, digests)
                output.seek(head.index(UNKNOWN.encode()))  # the metadata come first
                output.write(content.hex().encode())
            stored.append(StoredFile(file.name, len(head) + file.data_size, content))
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


def _check_unused(program: str, own: Used, role: Role, written: Mapping[StoredFile, str], index: str | None) -> None:
    """Raises an ExportError if artifacts need files as they are that a program at this path would replace.

    It may replace the files that it had for the same role (`own` is what `used_by` says of the program that is there),
    whoever else uses them, and files that no artifact in its folder uses. `written` has the new files, and where they
    are now; `index` is the path of the index that would be replaced, if there are several.
    """
    folder, name = os.path.split(program)
    all_used = None
    new = {file.name: (file, path) for file, path in written.items()}

    def in_use(target: str, other_role: Role, user: str) -> ExportError:
        advice = f"save under another path{', or name another file with weights=' if role == 'weights' else ''}"
        if role == "cases" and user == name:
            advice = "save it with its weights in another file first, with weights="
        path = os.path.join(folder, target) if target in new else index
        return ExportError(
            f"saving {role} of {name!r}: expected {path!r} to be missing, or a file that no artifact needs, found the "
            f"{other_role} of {user!r}, which would be lost: {advice}"
        )

    for target in dict.fromkeys([*new, *(_shards(index) if index else ())]):
        for other_role, file in own:
            if other_role != role and _are_one(file.name, target):
                raise in_use(target, other_role, name)
        found = _there(os.path.join(folder, target))
        if found is None or (role, found) in own:
            continue
        if target in new:
            file, path = new[target]
            # Equal digests can be forged.
            if file[1:] == found[1:] and filecmp.cmp(os.path.join(folder, target), path, False):
                continue
        all_used = _used_in(folder) if all_used is None else all_used
        for user, other_role, file in all_used:
            if file[1:] == found[1:] and _are_one(file.name, target):
                raise in_use(target, other_role, user)


def _are_one(name: str, other: str) -> bool:
    return name.casefold() == other.casefold()  # some file systems have one file under both names


def _shards(index: str) -> list[str]:
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
                if (there := _there(path)) is None or there[1:] != file[1:]:
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
                write_again(path, own, file.size, file.content)
                _whole.add(_identity(reading.open_file(path), own))
                written += file.size
        return written


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
