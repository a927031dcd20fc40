"""Passes over many artifacts: folders to look at, and workers that die or are others than they should be."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from jaxexp import Archive, _native
from kit.archives import blob

POISON = "poison"


def folder_of(path: Path, count: int) -> Path:
    """A folder with so many artifacts of which one is damaged, and an archive with two that share their bytes."""
    path.mkdir()
    for i in range(count):
        (path / f"{i:03}.jaxexp").write_bytes(blob(version=i))
    damaged = bytearray(blob())
    damaged[len(damaged) // 2] ^= 1
    (path / "damaged.jaxexp").write_bytes(damaged)
    with Archive.create(path / "fleet.zip") as archive:
        for i in range(6):
            archive.add(f"inner/{i}", blob(version=i % 5))
        archive.add("other", blob("tpu"))
    return path


def said(errors: dict[str, Exception]) -> dict[str, str]:
    """What a pass found, so that it can be compared."""
    return {name: str(error) for name, error in errors.items()}


def pool(*initializer: object, workers: int = 2) -> ProcessPoolExecutor:
    """New processes, which a function prepares for what is tested: it is given with its arguments."""
    begin, *arguments = initializer or (None,)
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=spawn, initializer=begin, initargs=tuple(arguments))


def dies_of_poison(only_once: str | None = None) -> None:
    """From now on this process is killed when it verifies a file of a certain name; or if somebody removes the file
    `only_once`, it has died already and lives."""
    verify_files = _native.verify_files

    def verify(paths: list[str], threads: int):
        if any(POISON in os.path.basename(path) for path in paths):
            if only_once is None:
                os.kill(os.getpid(), signal.SIGKILL)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(only_once)
                os.kill(os.getpid(), signal.SIGKILL)
        return verify_files(paths, threads)

    _native.verify_files = verify


def dies_at_once() -> None:
    os._exit(1)


class Dying(Executor):
    """Does some work, and then dies in one way."""

    _max_workers = 2

    def __init__(self, way: str, after: int) -> None:
        self.way, self.after, self.taken = way, after, 0
        self._threads = ThreadPoolExecutor(1)

    def submit(self, fn, /, *args):
        self.taken += 1
        if self.taken <= self.after:
            future = self._threads.submit(fn, *args)
            future.exception()  # it is finished, and nobody has looked at it
            return future
        if self.way == "refuses":
            raise RuntimeError("no more of it")
        if self.way == "is shut down":
            self._threads.shutdown(wait=False, cancel_futures=True)
            return self._threads.submit(fn, *args)
        future = Future()
        if self.way == "cancels":
            future.cancel()
            future.set_running_or_notify_cancel()
        elif self.way == "returns nonsense":
            future.set_result(object())
        elif self.way == "raises":
            future.set_exception(UnpicklableError(lambda: 0))
        return future


class UnpicklableError(Exception):
    pass
