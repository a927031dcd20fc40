"""Names, finds, opens and maps files of tensors. Names that come from other files are hostile until they are checked
here."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import PurePosixPath, PureWindowsPath
from typing import Literal, NamedTuple, TypeAlias

from jaxexp._errors import WeightsError

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_LONGEST_NAME = 255  # bytes, in most file systems
_SHORT = 16  # how many digits of a digest are in names


def own_name(name: str, content: bytes) -> str:
    """A name like this one that files of other content do not get: its end is a part of the digest."""
    digest, stem = content.hex()[:_SHORT], name.removesuffix(SUFFIX)
    if stem.endswith(f"-{digest}"):
        return name
    own = f"{stem}-{digest}{SUFFIX}"
    return own if len(own.encode()) <= _LONGEST_NAME else f"weights-{digest}{SUFFIX}"


def second_name(name: str, content: bytes) -> str:
    """The name of a file of this content while it is being saved, or after a process died meanwhile."""
    return f".{name.removesuffix(SUFFIX)}.{content.hex()}{SUFFIX}"


def index_name(name: str) -> str:
    return name.removesuffix(SUFFIX) + INDEX_SUFFIX


def shard_name(name: str, number: int, count: int) -> str:
    """The name of one of several files, in the form that other tools write."""
    return name if count == 1 else f"{name.removesuffix(SUFFIX)}-{number:05}-of-{count:05}{SUFFIX}"


def name_beside(program: str, suffix: str) -> str:
    """What a file beside a program is called: like the program, but without characters that no name may have."""
    stem = os.path.splitext(os.path.basename(program))[0]
    if not is_name_beside(stem + suffix):
        stem = "".join(c if c.isprintable() and c not in "/\\:" else "_" for c in stem)
    return stem + suffix


def is_name_beside(name: str) -> bool:
    """Whether a name is that of a file of tensors in the same folder, on any system."""
    is_plain = name == PurePosixPath(name).name == PureWindowsPath(name).name
    return is_plain and name.endswith(SUFFIX) and name.isprintable() and len(name.encode()) <= _LONGEST_NAME


def check_name(name: str) -> None:
    """Raises a WeightsError for what is not the name of a file of tensors in the same folder, on any system."""
    if not is_name_beside(name):
        shown = repr(name) if len(name) <= 2 * _LONGEST_NAME else f"one of {len(name):,} characters"
        raise WeightsError("", f"the name of a {SUFFIX} file in the same folder", shown)


def open_named(path: str | os.PathLike[str], flags: int = 0) -> int:
    """A descriptor of a file that the user named, wherever its links lead; a WeightsError if it is no regular file."""
    # Without blocking: a named pipe would wait for a writer.
    flags |= os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise WeightsError("", "a regular file", f"a link, {os.fsdecode(path)!r}") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise WeightsError("", "a regular file", "something else")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


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
    return open_named(real, getattr(os, "O_NOFOLLOW", 0))


# How the bytes of a file are read. What is mapped changes with the file, and whoever cuts the file ends the process. A
# copy in memory does not change. In pieces, a part is in memory while it is used, and whoever cuts the file gets an
# error raised.
Take: TypeAlias = Literal["mapped", "copied", "in pieces"]


class Bytes(NamedTuple):
    """The bytes of a file: their number, a function that reads from one position to another, and the file's identity,
    which no other file has, and no earlier or later state of this one; None if it is not known.
    """

    size: int
    read: Callable[[int, int], memoryview]
    identity: tuple[int, ...] | None = None


def taken(descriptor: int, take: Take, size: int | None = None) -> Bytes | FileInPieces:
    """A file's bytes; the descriptor is closed with them, or now. A WeightsError if there are none.

    A file of another size than this one will be refused, and so it is not copied.
    """
    if take == "in pieces":
        return FileInPieces(descriptor)
    try:
        found = os.fstat(descriptor).st_size
        check_size(found)
        if take == "mapped" or size not in (None, found):
            return mapped(descriptor)
        memory = _memory(found)
        _read(descriptor, memory, 0, found)
        return Bytes(found, lambda start, end: memory[start:end].toreadonly())
    finally:
        os.close(descriptor)


def mapped(descriptor: int) -> Bytes:
    memory = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    return Bytes(len(memory), lambda start, end: memory[start:end], identity_of(os.fstat(descriptor)))


class FileInPieces:
    """A file's bytes, read when they are needed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        found = os.fstat(descriptor)
        self.identity = identity_of(found)
        self.size = found.st_size
        check_size(self.size)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def read(self, start: int, end: int) -> memoryview:
        """A part of the file, as a copy."""
        size = end - start
        target = memoryview(bytearray(size)) if size < _LARGE else _memory(size)
        _read(self._descriptor, target, start, self.size)
        return target.toreadonly()


def identity_of(found: os.stat_result) -> tuple[int, ...]:
    """The identity of a file that is open. Its last number is the time of any change (ctime), which nobody can set."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def check_size(size: int) -> None:
    if size == 0:
        raise WeightsError("", "a safetensors file", "an empty file")


def _read(descriptor: int, target: memoryview, start: int, size: int) -> None:
    """Fills memory with the bytes of a file of this size from a position on."""
    done = 0
    while done < len(target):
        count = os.preadv(descriptor, [target[done : done + _AT_ONCE]], start + done)
        if not count:
            raise WeightsError("", f"{size:,} bytes", f"{start + done:,}: the file was shortened while it was read")
        done += count


_AT_ONCE = 1 << 30  # some systems read no more at once


def _memory(size: int) -> memoryview:
    """Memory to be filled. It is aligned as JAX wants it, which copies other memory; and for a large array, NumPy asks
    for large pages, because the first use of small ones takes longer than reading.
    """
    import numpy as np

    found = np.empty(size + _ALIGNMENT, np.uint8)
    first = -found.ctypes.data % _ALIGNMENT
    return found.data[first : first + size]


_LARGE, _ALIGNMENT = 1 << 16, 64
