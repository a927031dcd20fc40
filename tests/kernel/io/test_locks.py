"""Locks of threads: signal handlers, and forked processes, do not wait for ever."""

from __future__ import annotations

import io
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp._kernel.io import lock
from jaxexp._kernel.io.sources import open_source

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
quiet = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:os.fork:RuntimeWarning")


def test_every_lock_is_such_a_lock() -> None:
    package = Path(jaxexp.__file__).parent
    made = [
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        for _ in re.findall(r"threading\.R?Lock\(", file.read_text())
    ]
    assert made == [os.path.join("_kernel", "io", "lock.py")]


@forks
@quiet
@pytest.mark.parametrize("by_another", [True, False])
def test_a_forked_process_gets_it(by_another: bool) -> None:
    """One that another thread had is free there. One that the thread had that forked is still its own."""
    held, has_it, ended = lock.reentrant(), threading.Event(), threading.Event()

    def hold() -> None:
        with held:
            has_it.set()
            ended.wait()

    def fork(*first: Callable[[], object]) -> int:
        child = os.fork()
        if not child:
            try:
                for step in first:
                    step()
            finally:
                os._exit(0 if held.acquire(timeout=10) else 1)
        return os.waitpid(child, 0)[1]

    if by_another:
        holder = threading.Thread(target=hold)
        holder.start()
        has_it.wait()
        status = fork()
        ended.set()
        holder.join()
    else:
        with held:
            status = fork(held.release)
    assert status == 0


class Interrupted(io.BytesIO):
    """A file that is interrupted by a signal between a seek and a read, and after it: once each."""

    left = 0

    def seek(self, *where: int) -> int:
        found = super().seek(*where)
        self._interrupt()
        return found

    def read(self, *size: Any) -> bytes:
        found = super().read(*size)
        self._interrupt()
        return found

    def _interrupt(self) -> None:
        if self.left:
            self.left -= 1
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_signal_handler_reads_the_same_file(times: int) -> None:
    file = Interrupted(bytes(range(100)))
    source, found = open_source(file, {}), []
    before = signal.signal(signal.SIGINT, lambda *_: found.append(source.read(50, 4)))
    try:
        file.left = times
        assert source.read(10, 20) == bytes(range(10, 30))
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == [bytes(range(50, 54))] * times
