"""Threads: how many work at once, and their locks; locks of files that only one process at a time may change."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Generator
from typing import IO, Any

from jaxexp._errors import BusyError, ExportError, ExportTypeError

from . import files

if sys.platform == "win32":
    import msvcrt

    def _acquire(file: IO[bytes]) -> None:
        file.seek(1 << 62)  # a byte that nobody reads: on Windows, a locked byte cannot be read
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _acquire(file: IO[bytes] | int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


_of_threads = weakref.WeakSet[Any]()


def reentrant() -> Any:
    """A `threading.RLock` on which neither a signal handler nor a forked process waits for ever.

    A signal handler runs in the thread that may hold the lock, and gets it again: what is under it has to be right if
    it runs while it runs. In a forked process, the other threads are gone, and what they held is free.
    """
    made = threading.RLock()
    _of_threads.add(made)
    return made


@contextlib.contextmanager
def replacing_locked(path: str | os.PathLike[str], what: str) -> Generator[IO[bytes]]:
    """`files.replacing`, while nobody else may change the file that is replaced, or else a BusyError."""
    final = os.path.realpath(os.fsdecode(path))
    if not os.path.exists(final):
        try:
            with files.replacing(path, what, only_new=True) as file:
                yield file
        except FileExistsError as error:
            raise BusyError(f"{os.fsdecode(path)!r} was made by another writer meanwhile; try again") from error
        return
    with contextlib.ExitStack() as stack:
        if os.path.isfile(final):
            stack.enter_context(locked(final, "rb"))
        if sys.platform == "win32":
            stack.close()  # an open file cannot be replaced there
        yield stack.enter_context(files.replacing(path, what))


_held = threading.local()
_locked = set[int]()  # descriptors of this process


def _after_fork() -> None:
    """In a forked process: what other threads held is free, but the thread that forked goes on under its locks, and
    releases them. Its copies of locked files would keep them locked, and it has no part in writing them.
    """
    for one in _of_threads:
        if not one._is_owned():
            one._at_fork_reinit()
    vars(_held).clear()
    if not _locked:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in _locked:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _locked.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def _known(descriptor: int) -> Generator[None]:
    _locked.add(descriptor)
    try:
        yield
    finally:
        _locked.discard(descriptor)


# How many seconds a writer waits for one that puts files in their places in the same folder, which takes moments.
PATIENCE = 60.0


@contextlib.contextmanager
def folder_locked(folder: str) -> Generator[None]:
    """A folder in which only this thread puts files in their places that belong together; or it has that already.

    A BusyError if another one does so for too long. File systems and platforms that lock no folders have no such lock.
    """
    found = os.stat(folder or os.curdir)
    own: frozenset[tuple[int, int]] = getattr(_held, "folders", frozenset())
    if (key := (found.st_dev, found.st_ino)) in own:
        yield
        return
    with contextlib.ExitStack() as stack:
        if sys.platform != "win32":
            _wait_for_folder(folder or os.curdir, stack)
        _held.folders = own | {key}
        try:
            yield
        finally:
            _held.folders = own


def _wait_for_folder(folder: str, stack: contextlib.ExitStack) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # one that can be written to, but not listed
    stack.callback(os.close, descriptor)
    stack.enter_context(_known(descriptor))
    last = time.monotonic() + PATIENCE
    while True:
        try:
            _acquire(descriptor)
        except BlockingIOError as error:
            _wait(last, f"another writer is saving files in {folder!r}", error)
        except OSError:
            return
        else:
            return


@contextlib.contextmanager
def locked(path: str | os.PathLike[str], mode: str = "r+b", *, patience: float = 0) -> Generator[IO[bytes]]:
    """An open file, unbuffered, and locked against other processes.

    A BusyError if another process has it for longer than `patience`, in seconds.
    """
    last = time.monotonic() + patience
    while True:
        with files.Written(path, mode.replace("b", ""), os.fsdecode(path)) as file, _known(file.fileno()):
            try:
                _acquire(file)
            except OSError as error:
                _wait(last, f"{os.fsdecode(path)!r} is being changed by another writer", error)
                continue
            # Another file may have taken its place between the two.
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                yield file
                return


def _wait(last: float, busy: str, error: OSError) -> None:
    if time.monotonic() >= last:
        raise BusyError(f"{busy}; try again later") from error
    time.sleep(0.005)


_MOST = 2**31 - 1  # that the native module can be asked for


def worker_count(workers: int | None) -> int:
    """The number of threads for a `workers` argument: None means one for each CPU that the process may use."""
    if workers is None:
        with contextlib.suppress(AttributeError):  # not on every system
            return max(1, len(os.sched_getaffinity(0)))
        return os.cpu_count() or 1
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise ExportTypeError(f"workers has to be a number of threads, or None, found {workers!r}")
    if workers < 1:
        raise ExportError(f"workers has to be a number of threads, at least 1, found {workers}")
    return min(workers, _MOST)
