"""Finds, opens and maps files of tensors. Names that come from other files are hostile until they are checked here."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import PurePosixPath, PureWindowsPath
from typing import NamedTuple, TypeAlias

from jaxexp._errors import WeightsError

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
LONGEST_NAME = 255  # bytes, in most file systems


def open_named(path: str | os.PathLike[str]) -> int:
    """A descriptor of a file that the user named, wherever its links lead; a WeightsError if it is no regular file."""
    return _open(os.fsdecode(path), 0)


def open_beside(path: str | os.PathLike[str], name: str) -> int:
    """A descriptor of a file whose name comes from another file, and which must be in the same folder.

    A WeightsError if the name leads out of the folder, by itself or by a link, or if it is not a regular file's.
    """
    check_name(name)
    beside = os.fsdecode(path)
    folders = {os.path.realpath(os.path.dirname(beside)), os.path.dirname(os.path.realpath(beside))}
    # A cache of downloads often has all files in one folder, and links to them in another one. The file that the name
    # comes from may itself be such a link, so the folder behind that link is also allowed.
    real = os.path.realpath(os.path.join(os.path.dirname(beside), name))
    if os.path.dirname(real) not in folders:
        raise WeightsError("", f"{name!r} in the folder {folders.pop()!r}", f"a link to {real!r}")
    # The real path is not a link, unless somebody put one there since.
    return _open(real, getattr(os, "O_NOFOLLOW", 0))


def check_name(name: str) -> None:
    """Raises a WeightsError for what is not the name of a file of tensors in the same folder, on any system."""
    if not is_name_beside(name):
        shown = repr(name) if len(name) <= 2 * LONGEST_NAME else f"one of {len(name):,} characters"
        raise WeightsError("", f"the name of a {SUFFIX} file in the same folder", shown)


def is_name_beside(name: str) -> bool:
    """Whether a name is that of a file of tensors in the same folder, on any system."""
    is_plain = name == PurePosixPath(name).name == PureWindowsPath(name).name
    return is_plain and name.endswith(SUFFIX) and name.isprintable() and len(name.encode()) <= LONGEST_NAME


def name_beside(program: str, suffix: str) -> str:
    """What a file beside a program is called: like the program, but without characters that no name may have."""
    stem = os.path.splitext(os.path.basename(program))[0]
    if not is_name_beside(stem + suffix):
        stem = "".join(c if c.isprintable() and c not in "/\\:" else "_" for c in stem)
    return stem + suffix


class MappedFile(NamedTuple):
    """A file's bytes, and its identity, which no other file has, and no earlier or later state of this one; None if
    they are a copy.
    """

    memory: mmap.mmap
    identity: tuple[int, ...] | None

    @property
    def size(self) -> int:
        return len(self.memory)

    def read(self, start: int, end: int) -> memoryview:
        """A part of the file, without a copy."""
        return memoryview(self.memory)[start:end].toreadonly()


def mapped(descriptor: int) -> MappedFile:
    """A file's bytes, read-only; the descriptor is closed. A WeightsError if there are none."""
    try:
        found = os.fstat(descriptor)
        if found.st_size == 0:
            raise WeightsError("", "a safetensors file", "an empty file")
        return MappedFile(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), identity_of(found))
    finally:
        os.close(descriptor)


def identity_of(found: os.stat_result) -> tuple[int, ...]:
    """The identity of a file that is open. Its last number is the time of any change (ctime), which nobody can set."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def is_still(identity: tuple[int, ...], found: os.stat_result) -> bool:
    """Whether a file is one that is open, with the same content. Its ctime may differ: a new name changes that."""
    return identity_of(found)[:-1] == identity[:-1]


def copied(descriptor: int) -> MappedFile:
    """The same as a copy in memory, which begins at a page, too; nobody else can change it."""
    with open(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        if size == 0:
            raise WeightsError("", "a safetensors file", "an empty file")
        memory = mmap.mmap(-1, size)
        done = 0
        with memoryview(memory) as target:
            while done < size and (count := file.readinto(target[done : done + _AT_ONCE])):
                done += count
        if done < size:
            raise _cut(size, done)
    return MappedFile(memory, None)


class FileInPieces:
    """A file's bytes, read when they are needed: whoever cuts the file gets an error raised, and ends no process."""

    def __init__(self, descriptor: int) -> None:
        """The descriptor is closed with this object. A WeightsError if the file is empty."""
        self._descriptor = descriptor
        found = os.fstat(descriptor)
        self.identity = identity_of(found)
        self.size = found.st_size
        if self.size == 0:
            raise WeightsError("", "a safetensors file", "an empty file")

    def __del__(self) -> None:
        os.close(self._descriptor)

    def read(self, start: int, end: int) -> memoryview:
        """A part of the file, as a copy."""
        target = _memory(end - start)
        at = start
        while at < end:
            count = os.preadv(self._descriptor, [target[at - start : at - start + _AT_ONCE]], at)
            if not count:
                raise _cut(self.size, at)
            at += count
        return target.toreadonly()


def _memory(size: int) -> memoryview:
    """Memory to be filled. That of a large array is aligned as JAX wants it, which copies others; and NumPy asks for
    large pages, because the first use of small ones takes longer than reading.
    """
    if size < _LARGE:
        return memoryview(bytearray(size))
    import numpy as np

    found = np.empty(size + _ALIGNMENT, np.uint8)
    first = -found.ctypes.data % _ALIGNMENT
    return found.data[first : first + size]


_LARGE, _ALIGNMENT = 1 << 16, 64

Take: TypeAlias = "Callable[[int], MappedFile | FileInPieces]"


def taking(stable: bool, size: int | None = None) -> Take:
    """What makes a file's bytes from its descriptor: a copy if they are to be stable, otherwise a map. A file of
    another size than this one is never copied: it will be refused.
    """
    if not stable:
        return mapped
    return lambda descriptor: (copied if size in (None, os.fstat(descriptor).st_size) else mapped)(descriptor)


def _cut(expected: int, found: int) -> WeightsError:
    return WeightsError("", f"{expected:,} bytes", f"{found:,}: somebody cut the file while it was read")


_AT_ONCE = 1 << 30  # some systems read no more at once


def _open(path: str, flags: int) -> int:
    # Without blocking: a named pipe would wait for a writer.
    flags |= os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise WeightsError("", "a regular file", f"a link, {path!r}") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise WeightsError("", "a regular file", "something else")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
