"""Executors: the one that the user gives, and a new process pool if a dead worker broke the old one."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

from jaxexp._errors import ExportError, ExportTypeError, cause
from jaxexp._kernel.io.workers import worker_count

if TYPE_CHECKING:
    Workers: TypeAlias = Executor | Callable[[], Executor]

# How many shares to submit at a time if an executor does not say how many workers it has.
_WINDOW = 128

# What a cluster can lack.
WORKERS, SCHEDULER = "workers", "scheduler"
# How long a scheduler may take to answer, at least: a busy one is slow.
_ANSWER = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Means:
    """Who does a pass, and the journal that remembers it; `verify_many` explains the fields."""

    executor: Workers | None = None
    workers: int | None = None
    journal: str | os.PathLike[str] | None = None
    wait_for_workers: float | None = 60
    imports: tuple[str, ...] = ()  # modules that workers import first
    resumed: Callable[[int], None] = lambda units: None  # is told how many results the journal had

    def __post_init__(self) -> None:
        seconds = self.wait_for_workers
        if seconds is not None and not isinstance(seconds, (int, float)):
            raise ExportTypeError(f"wait_for_workers: expected a number of seconds, or None, found {seconds!r:.80}")
        if seconds is not None and not seconds >= 0:
            raise ExportError(f"wait_for_workers: expected at least 0 seconds, or None, found {seconds}")

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
                "executor has to be a concurrent.futures.Executor, such as Client(address).get_executor() of Dask, or "
                f"a function that makes one, not {type(given)}"
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

    def lacks(self, patience: float | None) -> str:
        """What the executor needs before it can go on, as far as it can say; empty if nothing. Only a Dask cluster can
        lack something: also a scheduler that does not answer for so many seconds, but at least 5.
        """
        client = getattr(self._executor, "_client", None)
        count = getattr(client, "nthreads", None)
        if not callable(count):
            return ""
        # A client without a scheduler tries to reach it for 30 seconds, and so would this call.
        if getattr(client, "status", "running") == "running":
            with contextlib.suppress(Exception):  # of many types: there is no scheduler any more, or it hangs
                return "" if count(callback_timeout=_seconds(patience, _ANSWER)) else WORKERS
        return SCHEDULER

    def close(self, *, wait: bool) -> None:
        """Ends the executor if it is not the user's. Shares that have begun are finished, now or after this returns."""
        if self._own is not None:
            self._own.shutdown(wait=wait, cancel_futures=True)


def _seconds(patience: float | None, least: float) -> float | None:
    """A time limit for Dask: None for none."""
    return max(patience, least) if patience is not None and patience < math.inf else None


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


@contextlib.contextmanager
def dask(address: str, patience: float | None) -> Generator[Workers]:
    """The workers of a Dask cluster. A scheduler may take so many seconds to answer, and no longer than Dask waits.

    Raises:
        ImportError: Dask is not installed.
        ConnectionError: no scheduler answers at this address.
        ExportError: it is not an address.
    """
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise ImportError(f"the cluster at {address} needs Dask: pip install 'jaxexp[dask]'") from error
    # They would log tracebacks of a scheduler that is gone; our error says it.
    loggers = [logging.getLogger(name) for name in ("distributed.client", "distributed.batched")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with _client(distributed, address, patience) as client:
            yield client.get_executor()
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _client(distributed: Any, address: str, patience: float | None) -> Any:
    dask: Any = importlib.import_module("dask")
    longest = dask.utils.parse_timedelta(dask.config.get("distributed.comm.timeouts.connect"))
    seconds = _seconds(patience, 1)

    class Client(distributed.Client):  # type: ignore[misc]
        def __init__(self) -> None:
            try:
                timeout = longest if seconds is None else min(seconds, longest)
                super().__init__(address, timeout=timeout, set_as_default=False)
            except BaseException:
                self.status = "closed"  # or else it waits for a minute when it is deleted, for what never began
                raise

    try:
        return Client()
    except (ValueError, TypeError, MemoryError) as error:
        raise ExportError(f"{address!r}: {error}; expected a scheduler, as in tcp://scheduler:8786") from cause(error)
    except OSError as error:
        if error.errno is not None:  # of a file that Dask's configuration names
            raise
        raise ConnectionError(f"no scheduler answers at {address}: start it, and try again") from cause(error)
