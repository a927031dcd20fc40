"""Reads files, and writes them so that a reader sees the old bytes or all of the new ones."""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import re
import stat
from collections.abc import Callable, Generator, Iterable
from typing import IO, Any

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError, PolicyError
from jaxexp._version import __version__

from .other_files import ARCHIVE, ARTIFACT, HEAD, LONG_HEAD, OTHER_ZIP, ZIP, instead_of_artifact, kind_of_ours

_DIRECTORY = 1 << 16  # bytes that have the end of the directory of a ZIP file

RELEASE = __version__
# What a file says of who wrote it.
WRITER = f"jaxexp {RELEASE}"
LARGEST = 1 << 32  # bytes of an artifact, of which offsets lead to 2 GiB


def path_of(given: Any, what: str, advice: str = "") -> str:
    """The path of a file, as a user gives it to `what`, as text. Messages never have a value that looks like the
    content of a file: it may be a private key. They end with `advice` if it is no path.
    """
    try:
        text = os.fsdecode(given)
    except TypeError:
        raise ExportTypeError(f"{what} takes a path, as str or os.PathLike, not {type(given)}{advice}") from None
    if "\0" in text or "-----BEGIN" in text:
        raise ExportError(f"{what} takes the path of a file, not its content{advice}")
    if not text:
        raise ExportError(f"{what} takes a path, found an empty one")
    return text


def is_url(path: str) -> bool:
    return "://" in path


def path_here(given: Any, what: str, advice: str = "") -> str:
    """The path of a file on this machine, as `path_of`: no URL."""
    text = path_of(given, what, advice)
    if is_url(text):
        raise ExportError(f"{what} takes the path of a file on this machine: {text!r} is a URL")
    if what.endswith("=") and in_archive(text) is not None:
        of_weights = f". Its weights are jaxexp.load({text!r}).weights" if what == "weights=" else ""
        raise ExportError(f"{what} takes the path of a file: {text!r} is a member of an archive{of_weights}")
    return text


def path_to_save(given: Any) -> str:
    """The path of an artifact that is to be written: no URL, nothing that would be taken for a member of an archive,
    and no file of another kind, as `refuse_to_lose` says.
    """
    text = path_here(given, "save", ". To fill a file object, write the result of serialize to it")
    archive, mark, member = text.rpartition("::")
    if mark and archive and (archive.endswith(".zip") or is_zip(archive)):
        raise ExportError(
            f"save writes one file, and {text!r} would be taken for a member of an archive: add it with "
            f"`with Archive.append({archive!r}) as archive:`, and archive.add({member!r}, ...) inside it"
        )
    refuse_to_lose(text, ARTIFACT)
    return text


def in_archive(path: str) -> tuple[str, str] | None:
    """The archive and the name of the member that a path like ``"fleet.zip::a"`` names; None for the path of a file."""
    archive, mark, member = path.partition("::")
    return (archive, member) if mark and is_zip(archive) else None


def is_zip(path: str) -> bool:
    """Whether a path leads to a ZIP file, as archives are, by its first bytes."""
    return beginning(path, 4) in ZIP


def beginning(path: str, size: int) -> bytes:
    """The first bytes of a file; empty if it cannot be read."""
    try:
        with regular(path) as file:
            return file.read(size)
    except OSError:
        return b""


class named_in_errors:  # noqa: N801  (used as a function)
    """A context that adds the name of the file to errors about its bytes, unless they have one already, or the name is
    not known: None or empty.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str | os.PathLike[str] | None) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._name and isinstance(error, (DeserializationError, PolicyError)) and error.file is None:
            error.file = os.fsdecode(self._name)


def opened(path: str | os.PathLike[str]) -> _native.FileBytes:
    """The bytes of an artifact's file; an error if it is empty or too large.

    A small file is read at once. The modules of a large one are read when they are needed.
    """
    try:
        file = file_bytes(path)
    except MemoryError:
        _check_size(path, os.path.getsize(path))
        raise
    _check_size(path, len(file))
    return file


def file_bytes(path: str | os.PathLike[str], *, in_parts: bool = False, at_once: bool = False) -> _native.FileBytes:
    """A `_native.FileBytes`, which knows no names; so an OSError gets the path here."""
    try:
        return _native.FileBytes(path, in_parts=in_parts, at_once=at_once)
    except OSError as error:
        raise _named(error, path) from None


@contextlib.contextmanager
def named_in_os_errors(path: str | os.PathLike[str]) -> Generator[None]:
    """A context that adds the name of a file to errors of the system: the native modules do not."""
    try:
        yield
    except OSError as error:
        raise _named(error, path) from None


def _named(error: OSError, path: str | os.PathLike[str]) -> OSError:
    return OSError(error.errno, error.strerror, os.fsdecode(path))


class Mapped(mmap.mmap):
    """A file that jaxexp itself mapped, read-only."""

    __slots__ = ()


def regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """A file, opened for reading. Not a pipe, which would wait for its writer, and not a device."""
    waits_not = getattr(os, "O_NONBLOCK", 0)
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | waits_not))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(path))
    return file


def mapped(path: str | os.PathLike[str]) -> Mapped:
    """The bytes of an artifact's file, mapped into memory: for short looks, which may read only some pages."""
    with regular(path) as file:
        if not os.fstat(file.fileno()).st_size:
            raise empty("a serialized Exported")
        return Mapped(file.fileno(), 0, access=mmap.ACCESS_READ)


def read(path: str | os.PathLike[str], check_size: Callable[[int], None]) -> bytes:
    """The bytes of an artifact's file, read after `check_size` was called with its size."""
    with regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        check_size(size)
        _check_size(path, size)
        return file.read()


Identity = tuple[int, int, int, int]


def identity_of(file: str | os.PathLike[str] | int) -> Identity:
    """Which file a path or a descriptor is for, and its size and time."""
    found = os.stat(file)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def written_to(path: str | os.PathLike[str], since: Identity) -> int | None:
    """The size of a file if somebody has written into it; None if not, or if another file took its place: what was
    mapped is still there.
    """
    try:
        now = identity_of(path)
    except OSError:
        return None
    return now[2] if now != since and now[:2] == since[:2] else None


def _check_size(path: str | os.PathLike[str], size: int) -> None:
    if not size:
        raise empty("a serialized Exported")
    if size > LARGEST:
        with open(path, "rb") as file:
            found = instead_of_artifact(f"a file of {size:,} bytes", "", file.read(HEAD))
        raise too_large(found)


def too_large(found: str) -> DeserializationError:
    return DeserializationError("", "an artifact of at most 4 GiB", found)


def empty(expected: str) -> DeserializationError:
    return DeserializationError("", expected, "an empty file")


def replace(path: str | os.PathLike[str], parts: Iterable[Any], what: str | None, *, only_new: bool = False) -> None:
    """Writes the parts of a file in order; a pipe or a device is written to, not replaced. `what` and `only_new` are as
    in `replacing`.
    """
    if is_stream(path):
        parts = list(parts)  # so that errors in them come before anybody reads the first one
        with open(path, "wb") as file:
            file.writelines(parts)
        return
    with replacing(path, what, only_new=only_new) as file:
        file.writelines(parts)


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to a pipe or a device, which is written to and not replaced."""
    try:
        mode = os.stat(os.fspath(path)).st_mode  # not of a file descriptor, which `open` would close
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def refuse_to_lose(path: str, what: str) -> None:
    """Raises an ExportError if a file, in whose place `what` is to be written, is one of another kind that `kind_at`
    knows.
    """
    if (found := kind_at(path)) and found != what:
        raise ExportError(
            f"{path!r} is {found}, which {what} does not replace: choose another path, or remove that file first"
        )


def kind_at(path: str) -> str:
    """Which kind of `kind_of_ours` a file is; empty for anything else, or if it is missing or cannot be read."""
    kind = kind_of_ours(beginning(path, LONG_HEAD))
    if kind != ARCHIVE:
        return kind
    with contextlib.suppress(OSError), regular(path) as file:
        file.seek(-min(file.seek(0, os.SEEK_END), _DIRECTORY), os.SEEK_END)
        if _native.ARCHIVE_INDEX_NAME.encode() not in file.read():  # which the directory lists last
            return OTHER_ZIP
    return kind


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], what: str | None, *, only_new: bool = False, like: str | None = None
) -> Generator[IO[bytes]]:
    """A new file, for writing and reading, that replaces `path` at the end, unless there is an exception.

    It is made in the same folder, and has the permissions of the file that it replaces, or of `like`, from the
    beginning. With `only_new`, a file that is there at the end is kept, and a FileExistsError raised.

    `what` is the kind of the new file. A file of another kind is not replaced, as `refuse_to_lose` says; with None, the
    caller knows the file that it replaces.
    """
    if what is not None and not only_new:
        refuse_to_lose(os.fsdecode(path), what)
    final, shown = os.path.realpath(os.fsdecode(path)), os.fsdecode(path) if like is None else like
    old = final if like is None else like
    replaced = os.stat(old) if os.path.exists(old) else None
    if replaced is not None and not stat.S_ISREG(replaced.st_mode) and not stat.S_ISDIR(replaced.st_mode):
        raise OSError(errno.EINVAL, "not a regular file, so it is not replaced", os.fsdecode(path))
    temporary, process = temporary_in(os.path.dirname(final)), os.getpid()
    try:
        opener = None if replaced is None else private
        with contextlib.closing(io.BufferedRandom(Written(temporary, "x+", shown, opener))) as file:
            if replaced is not None:
                os.chmod(temporary, replaced.st_mode & 0o777)
            yield file
        (_move_to_new if only_new else os.replace)(temporary, final)
    except BaseException as error:
        if process == os.getpid():  # else it was forked from the one that writes the file
            remove(temporary)
        if isinstance(error, OSError) and error.filename == temporary:
            # The user does not know the temporary file: name the folder if it is missing, else the file to be written.
            named = os.path.dirname(final) if isinstance(error, FileNotFoundError) else shown
            raise OSError(error.errno, error.strerror, named) from None
        raise


class Written(io.FileIO):
    """A file without a buffer. If it cannot be written to, as on a full disk, the error has the name that the user
    knows.
    """

    def __init__(self, path: str | os.PathLike[str], mode: str, shown: str, opener: Any = None) -> None:
        super().__init__(path, mode, opener=opener)
        self._shown = shown

    def write(self, data: Any) -> int:
        with named_in_os_errors(self._shown):
            return super().write(data)


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.EROFS:  # where it was never written
            raise


def private(path: str, flags: int) -> int:
    """An opener of files that nobody else may read."""
    return os.open(path, flags, 0o600)


_TEMPORARY = r"\.[0-9a-f]{16}\.tmp"


def temporary_in(folder: str) -> str:
    """A new name for a file that is to get another one."""
    return os.path.join(folder, f".{os.urandom(8).hex()}.tmp")


def is_temporary(name: str) -> bool:
    return re.fullmatch(_TEMPORARY, name) is not None


def _move_to_new(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.exists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        os.rename(source, target)
    else:
        os.unlink(source)
