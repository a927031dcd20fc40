"""Executors: the one that the user gives, and a new process pool if a dead worker broke the old one."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

from jaxexp._errors import ExportError, ExportTypeError
from jaxexp._kernel.io.workers import worker_count

if TYPE_CHECKING:
    Workers: TypeAlias = Executor | Callable[[], Executor]

# How many shares to submit at a time if an executor does not say how many workers it has.
_WINDOW = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Means:
    """Who does a pass, and the journal that remembers it; `verify_many` explains the fields."""

    executor: Workers | None = None
    workers: int | None = None
    journal: str | os.PathLike[str] | None = None
    timeout: float | None = None  # seconds
    imports: tuple[str, ...] = ()  # modules that workers import first
    resumed: Callable[[int], None] = lambda units: None  # is told how many results the journal had

    def __post_init__(self) -> None:
        seconds = self.timeout
        if seconds is not None and not isinstance(seconds, (int, float)):
            raise ExportTypeError(f"timeout: expected a number of seconds, or None, found {seconds!r:.80}")
        if seconds is not None and not seconds >= 0:
            raise ExportError(f"timeout: expected at least 0 seconds, or None, found {seconds}")

    @property
    def threads(self) -> int:
        """How many threads do a share: this process uses all CPUs, but a worker of an executor does not."""
        return worker_count(self.workers) if self.workers is not None or self.executor is None else 1


class Crew:
    """The workers of one pass.

    Attributes:
        window: how many shares to submit at a time.
    """

    def __init__(self, given: Workers | None) -> None:
        """Takes an executor; a function that makes one; or None for the caller's own thread.

        Raises:
            TypeError: it is something else.
        """
        self._make: Callable[[], Executor] | None = None
        self._own: Executor | None = None
        if given is None:
            self._executor: Executor = _Here()
        elif callable(getattr(given, "submit", None)):
            self._executor = given  # type: ignore[assignment]
            if isinstance(given, ProcessPoolExecutor) and type(given) is ProcessPoolExecutor:
                self._make = _maker_of_another(given)
        elif callable(given):
            self._make = given
            self._executor = self._own = given()
        else:
            raise ExportTypeError(
                "executor has to be a concurrent.futures.Executor, such as a ProcessPoolExecutor, or a function that "
                f"makes one, not {type(given)}"
            )
        count = getattr(self._executor, "_max_workers", None)
        self.window = min(_WINDOW, 2 * count + 1) if isinstance(count, int) else _WINDOW

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Has a worker call a function.

        Raises:
            Exception: the executor takes no more work, and cannot be replaced.
        """
        try:
            return self._executor.submit(function, *args)
        except BrokenExecutor:
            if self._make is None:
                raise
        self.close(wait=False)
        self._executor = self._own = self._make()
        return self._executor.submit(function, *args)

    def close(self, *, wait: bool) -> None:
        """Ends the executor if it is not the user's. Shares that have begun are finished, now or after this returns."""
        if self._own is not None:
            self._own.shutdown(wait=wait, cancel_futures=True)


def _maker_of_another(pool: ProcessPoolExecutor) -> Callable[[], Executor] | None:
    """A function that makes a pool like this one; None if this Python keeps the pool's arguments elsewhere."""
    names = ("max_workers", "mp_context", "initializer", "initargs", "max_tasks_per_child")
    if not all(hasattr(pool, f"_{name}") for name in names):
        return None
    arguments: dict[str, Any] = {name: getattr(pool, f"_{name}") for name in names}
    return lambda: ProcessPoolExecutor(**arguments)


class _Here(Executor):
    """Calls a function at once, in the caller's thread."""

    _max_workers = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def processes(count: int) -> Workers:
    """New processes on this machine. They end with this one, however it ends."""
    return lambda: ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_begin)


def _begin() -> None:
    """Leaves Ctrl-C to the process that the user started, and ends a worker whose parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
