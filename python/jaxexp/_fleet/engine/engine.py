"""The engine of all passes: shares go out and results come back. A dead worker costs only its share."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import math
import multiprocessing
import os
import pickle
import queue
import signal
import stat
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from jaxexp import _native
from jaxexp._errors import (
    ExportError,
    ExportTypeError,
    FatalArtifactError,
    JournalError,
    UnfitWorkerError,
    WorkerError,
    cause,
)
from jaxexp._kernel.artifact.words import cut as shortened
from jaxexp._kernel.io.files import private
from jaxexp._kernel.io.lock import locked, worker_count

from . import worker
from .worker import unpacked

if TYPE_CHECKING:
    Workers: TypeAlias = Executor | Callable[[], Executor]


# The first item of a place that is a file: its path and its name follow. Other rooms define other places.
FILE = "file"
# Sizes are looked up for this many units at once, so cutting a large input takes little memory.
_LOOKED_UP = 4096


# What is sent to a worker: places, and the numbers of units there.
Parts: TypeAlias = Sequence[tuple[tuple[Any, ...], Sequence[int]]]
# Errors that concern an artifact, not the pass.
OF_ARTIFACTS = (ExportError, OSError, ImportError)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Input:
    """Something to read: a file, which is one unit, or an archive, whose members are units.

    Attributes:
        name: what messages and journals call it.
        identity: a JSON value that changes when the content changes.
        place: how a worker finds it; built-in types only.
        numbers: what a worker calls the units; a range if possible, because that pickles small.
        sizes: the bytes of units, given the first unit and the one after the last.
        about: whatever the maker needs when results arrive; it is never sent.
    """

    name: str
    identity: Any
    place: tuple[Any, ...]
    numbers: Sequence[int]
    sizes: Callable[[int, int], Iterable[int]]
    about: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Unusable:
    """An input that cannot be read at all, and why."""

    name: str
    error: Exception
    about: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Units of one input, from `start` up to `stop`."""

    input: Input
    start: int
    stop: int

    @property
    def units(self) -> int:
        return self.stop - self.start

    @property
    def numbers(self) -> Sequence[int]:
        return self.input.numbers[self.start : self.stop]

    def crossing(self) -> tuple[tuple[Any, ...], Sequence[int]]:
        """What is sent to a worker."""
        numbers = self.numbers
        return self.input.place, numbers if isinstance(numbers, range) else list(numbers)


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What a worker does in one go: parts of one input or of several."""

    parts: tuple[Part, ...]
    deaths: int = 0  # how many workers died while this share was all that they had to do

    @property
    def units(self) -> int:
        return sum(part.units for part in self.parts)

    def halves(self) -> tuple[Share, Share]:
        """Two shares with about as many units each; the share must have more than one."""
        left, right, wanted = [], [], self.units // 2
        for part in self.parts:
            middle = part.start + max(0, min(wanted, part.units))
            wanted -= part.units
            if middle > part.start:
                left.append(Part(part.input, part.start, middle))
            if middle < part.stop:
                right.append(Part(part.input, middle, part.stop))
        return Share(tuple(left)), Share(tuple(right))


def cut(parts: Iterable[Part | Finding], share_bytes: int, unit_bytes: int) -> Iterator[Share | Finding]:
    """Shares of this many bytes, or a little more: a unit is never cut. Nothing is looked at before it is needed.
    `unit_bytes` are added for each unit: the work that does not depend on its size. Findings are passed on.
    """
    share: list[Part] = []
    weight = 0
    for part in parts:
        if isinstance(part, Finding):
            yield part
            continue
        begin = part.start
        for first in range(part.start, part.stop, _LOOKED_UP):
            sizes = part.input.sizes(first, min(first + _LOOKED_UP, part.stop))
            for behind, size in enumerate(sizes, first + 1):
                weight += size + unit_bytes
                if weight >= share_bytes:
                    yield Share((*share, Part(part.input, begin, behind)))
                    share, weight, begin = [], 0, behind
        if begin < part.stop:
            share.append(Part(part.input, begin, part.stop))
    if share:
        yield Share(tuple(share))


def each(parts: Parts, do: Callable[[tuple[Any, ...], Sequence[int]], Any]) -> list[Any]:
    """The results of a function for each part, or the error of a part that it cannot read."""
    results = []
    for place, numbers in parts:
        try:
            results.append(do(place, numbers))
        except OF_ARTIFACTS as error:
            results.append(error)
    return results


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
        """This process uses all CPUs, but a worker of an executor does not."""
        return worker_count(self.workers) if self.workers is not None or self.executor is None else 1


class Crew:
    """The workers of one pass.

    Attributes:
        window: how many shares to submit at a time.
    """

    def __init__(self, given: Workers | None) -> None:
        """Takes an executor; a function that makes one; or None for the caller's own thread."""
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
    """Works at once, in the caller's thread."""

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


Stretch = tuple[int, int, Any]  # the first unit, the one after the last, and the result

_LAYOUT = 1
# Much longer than any line that is written here.
_LONGEST = 1 << 26
# How much of a line an error shows.
_SHOWN = 300
_ANY_JOURNAL = "a journal, or an empty file"


class Journal(contextlib.AbstractContextManager["Journal"]):
    """An open journal; only one pass at a time has it. Without a path it remembers nothing."""

    def __init__(self, path: str | os.PathLike[str] | None, about: dict[str, Any]) -> None:
        """Opens a journal, or makes one. The pass, its options and releases have to be the same when it is resumed."""
        self.name = "" if path is None else os.fsdecode(path)
        self._context = contextlib.ExitStack()
        self._file: IO[bytes] | None = None
        self._done: dict[tuple[str, str], list[Stretch]] = {}  # by name and identity of the input
        if path is None:
            return
        with contextlib.suppress(FileExistsError), open(path, "xb", opener=private):
            pass
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(locked(path))
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):  # reading a pipe would wait for a writer
                raise JournalError("", _ANY_JOURNAL, "a pipe or a device", self.name)
            self._read(self._file, json.loads(json.dumps(about)))
            self._context = stack.pop_all()

    def done(self, name: str, identity: Any) -> list[Stretch]:
        """The finished stretches of an input, in order; none if its identity has changed. They are returned once."""
        return _last_said(self._done.pop((name, _text_of(identity)), []))

    def add(self, parts: Sequence[tuple[str, Any, int, int, Any]]) -> None:
        """Writes results: names, identities, stretches and findings. They are on the disk when this returns."""
        if self._file is not None and parts:
            _write(self._file, _line({"done": parts}))

    def refused(self, name: str, error: Exception) -> JournalError:
        return self._wrong("", f"the result of this pass for {name!r}", f"something else ({type(error).__name__})")

    def __exit__(self, *_: object) -> None:
        self._context.close()
        self._file = None

    def _read(self, file: IO[bytes], about: dict[str, Any]) -> None:
        first = _line({"jaxexp": "journal", "layout": _LAYOUT, **about})
        end = number = 0
        with open(file.fileno(), "rb", closefd=False) as lines:
            while line := lines.readline(_LONGEST):
                number += 1
                if not line.endswith(b"\n") and len(line) < _LONGEST:
                    break  # the writer was interrupted
                digest, _, text = line[:-1].partition(b" ")
                if _native.digest(text).hex().encode() != digest:
                    if number == 1:
                        raise self._wrong("", _ANY_JOURNAL, "something else")
                    if line.strip(b"\0\n") or lines.read(1):
                        raise self._wrong(f"line {number}", "bytes that match its digest", "other bytes")
                    break
                try:
                    said = json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise self._wrong(f"line {number}", "JSON", str(error)) from None
                if number == 1:
                    self._check_first(said, about)
                else:
                    self._take(said, number)
                end += len(line)
            # A crash may keep the length of a line, and lose the line.
            unfinished = first.startswith(line) or (len(line) <= len(first) and not line.strip(b"\0"))
            if number == 1 and line and not unfinished:
                raise self._wrong("", _ANY_JOURNAL, "something else")
        file.truncate(end)
        file.seek(end)
        if not end:
            _write(file, first)

    def _check_first(self, said: Any, about: dict[str, Any]) -> None:
        if not isinstance(said, dict) or said.pop("jaxexp", None) != "journal" or said.pop("layout", None) != _LAYOUT:
            raise self._wrong("line 1", f"a journal of layout {_LAYOUT}", "another one")
        for name in sorted(about.keys() | said.keys(), key=lambda name: (name != "pass", name)):
            if said.get(name) != about.get(name):
                raise self._wrong(
                    "line 1",
                    f"the same pass as now, with {name} {about.get(name)!r}",
                    f"{name} {shortened(repr(said.get(name)), _SHOWN)}",
                )

    def _take(self, said: Any, number: int) -> None:
        try:
            for name, identity, start, stop, result in said["done"]:
                if not (isinstance(name, str) and type(start) is type(stop) is int and 0 <= start < stop):
                    raise ValueError
                self._done.setdefault((name, _text_of(identity)), []).append((start, stop, result))
        except (ValueError, TypeError, KeyError):
            raise self._wrong(f"line {number}", "names, numbers and results", "something else") from None

    def _wrong(self, where: str, expected: str, found: str) -> JournalError:
        found = f"{found}; name another file, or remove this one to begin again"
        return JournalError(where, expected, found, self.name)


def _text_of(identity: Any) -> str:
    """The same text for an identity and for the copy that JSON made of it."""
    return json.dumps(identity, sort_keys=True)


def _last_said(found: list[Stretch]) -> list[Stretch]:
    """Stretches in ascending order. Of stretches that overlap, the last one counts: the others were out of date."""
    kept: list[tuple[int, Stretch]] = []
    for order, stretch in sorted(enumerate(found), key=lambda one: (one[1][0], one[0])):
        while kept and kept[-1][1][1] > stretch[0] and kept[-1][0] < order:
            kept.pop()
        if not kept or kept[-1][1][1] <= stretch[0]:
            kept.append((order, stretch))
    return [stretch for _, stretch in kept]


def _line(said: dict[str, Any]) -> bytes:
    text = json.dumps(said, separators=(",", ":")).encode()
    return _native.digest(text).hex().encode() + b" " + text + b"\n"


def _write(file: IO[bytes], line: bytes) -> None:
    left = memoryview(line)
    while left:  # a raw file may write only a part
        left = left[file.write(left) :]
    os.fsync(file.fileno())


# A single unit is given up after this many workers died while it was all that they had to do.
_DEATHS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """What is done to each unit.

    Attributes:
        title: the name of the pass.
        home: the function that does it in a worker: its module below jaxexp, a colon, and its name. It takes `options`
            and a list of places with numbers. For each place it returns a result of JSON types, or the error of a place
            that cannot be read.
        options: its options; they are pickled.
        about: the same options for the journal, of JSON types.
        with_jax: whether it needs JAX.
        share_bytes: how large a share is.
        unit_bytes: bytes added for each unit, as in `cut`.
        decoded: converts a result for the caller. A result in a journal may be anything.
        is_current: whether a result in a journal still holds.
    """

    title: str
    home: str
    options: Any
    about: dict[str, Any]
    with_jax: bool
    share_bytes: int
    unit_bytes: int
    decoded: Callable[[Part, Any], Any]
    is_current: Callable[[Part, Any], bool] = lambda part, found: True


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The decoded result for units of an input, or the error in its place. An input that is unusable has no part."""

    input: Input | Unusable
    part: Part | None = None
    found: Any = None
    error: Exception | None = None


def findings(task: Task, inputs: Iterable[Input | Unusable], means: Means) -> Iterator[Finding]:
    """Does a task, and yields each finding as it arrives. The journal leaves out what cannot be read, so the next call
    tries it again.

    Inputs are looked at as workers become free, and the number of outstanding shares is limited. If this generator is
    closed, shares that have not begun are dropped. What is raised is in `verify_many`.
    """
    about: dict[str, Any] = {"pass": task.title, "options": task.about, "releases": worker.releases(task.with_jax)}
    if means.imports:  # results depend on the types that are known
        about["imports"] = means.imports
    with Journal(means.journal, about) as journal:
        crew = Crew(means.executor)
        running = _Running(task, crew, journal, means)
        try:
            yield from running.findings(inputs)
        except BaseException as error:
            if isinstance(error, WorkerError):
                running.note_finished()
            for future in running.pending:  # shares that have not begun
                future.cancel()
            crew.close(wait=False)
            raise
        crew.close(wait=True)


class _Running:
    def __init__(self, task: Task, crew: Crew, journal: Journal, means: Means) -> None:
        self._task, self._crew, self._journal, self._means = task, crew, journal, means
        self._timeout = None if means.timeout == math.inf else means.timeout
        self._options = pickle.dumps(task.options)
        self._releases = worker.releases(task.with_jax)
        self.pending: dict[Future[Any], Share] = {}
        self._finished: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        # Shares whose worker may have died of them. Each is done alone, to tell which one it was.
        self._suspects: collections.deque[Share] = collections.deque()
        self._is_alone = False

    def findings(self, inputs: Iterable[Input | Unusable]) -> Iterator[Finding]:
        work: Iterator[Share | Finding] = cut(self._left(inputs), self._task.share_bytes, self._task.unit_bytes)
        is_over = False
        while self.pending or self._suspects or not is_over:
            self._is_alone = bool(self._suspects) and not self.pending
            if self._is_alone:
                self._submit(self._suspects.popleft())
            while not (is_over or self._suspects or self._is_alone) and len(self.pending) < self._crew.window:
                one = next(work, None)
                if one is None:
                    is_over = True
                elif isinstance(one, Finding):
                    yield one
                else:
                    self._submit(one)
            if self.pending:
                future = self._next(self._finished)
                yield from self._received(self.pending.pop(future), future)

    def note_finished(self) -> None:
        """Writes into the journal what workers have done, and nobody has looked at."""
        for future, share in self.pending.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                with contextlib.suppress(TypeError, ValueError):  # not what a worker returns
                    self._note(share, future.result())

    def _left(self, inputs: Iterable[Input | Unusable]) -> Iterator[Part | Finding]:
        """The work that is left, and the findings that the journal has."""
        for one in inputs:
            if isinstance(one, Unusable):
                yield Finding(one, error=one.error)
                continue
            at, units = 0, len(one.numbers)
            for start, stop, result in self._journal.done(one.name, one.identity):
                part = Part(one, start, stop)
                try:
                    if stop > units:
                        raise IndexError(stop)
                    found = self._task.decoded(part, result)
                    if not self._task.is_current(part, found):
                        continue
                except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
                    raise self._journal.refused(one.name, error) from None
                self._means.resumed(part.units)
                yield Finding(one, part, found)
                if at < start:
                    yield Part(one, at, start)
                at = stop
            if at < units:
                yield Part(one, at, units)

    def _submit(self, share: Share) -> None:
        attempt = uuid.uuid4().hex
        crossing = [part.crossing() for part in share.parts]
        try:
            future = self._crew.submit(
                worker.run, attempt, self._releases, self._task.home, self._options, crossing, self._means.imports
            )
        except Exception as error:
            raise WorkerError(
                f"{self._task.title}: the executor takes no more work ({_said(error)}). Finished work is in the "
                "journal, if there is one"
            ) from cause(error)
        self.pending[future] = share
        future.add_done_callback(self._finished.put)

    def _next(self, finished: queue.SimpleQueue[Future[Any]]) -> Future[Any]:
        try:
            return finished.get(timeout=self._timeout)
        except queue.Empty:
            raise WorkerError(
                f"{self._task.title}: no worker has finished any work for {self._timeout:g} seconds. Check that "
                "workers are running, or wait longer (timeout). Finished work is in the journal, if there is one"
            ) from None

    def _received(self, share: Share, future: Future[Any]) -> list[Finding]:
        if future.cancelled():
            return self._buried(share, WorkerError("the executor cancelled its work"))
        error = future.exception()
        if isinstance(error, Exception):
            return self._buried(share, error)
        if error is not None:  # Ctrl-C, which a worker got too
            raise error
        outcome = future.result()
        try:
            kind, found = outcome
        except (TypeError, ValueError):
            raise UnfitWorkerError(
                f"{self._task.title}: the executor returned a {type(outcome).__name__}, not the result of its worker"
            ) from None
        if kind == "raised":
            raise found
        if kind == "other":
            raise UnfitWorkerError(
                f"{self._task.title}: the workers need the same releases as this process, which has "
                f"{_listed(self._releases)}; one of them has {_listed(found)}"
            )
        return [
            Finding(part.input, part, self._task.decoded(part, result))
            if error is None
            else Finding(part.input, part, error=unpacked(error))
            for part, result, error in self._note(share, outcome)
        ]

    def _note(self, share: Share, outcome: Any) -> list[tuple[Part, Any, Any]]:
        """Writes the results of a share into the journal, and returns each part with its result, or its error."""
        kind, found = outcome
        if kind != "done":
            return []
        done = [(part, *one) for part, one in zip(share.parts, found, strict=True)]
        self._journal.add([(p.input.name, p.input.identity, p.start, p.stop, said) for p, said, e in done if e is None])
        return done

    def _buried(self, share: Share, error: Exception) -> list[Finding]:
        """Handles a share whose worker died, or cannot say what happened."""
        if not self._is_alone:
            self._suspects.append(share)
            return []
        self._check_alive(error)
        if share.units > 1:
            self._suspects.extendleft(reversed(share.halves()))
            return []
        if share.deaths + 1 < _DEATHS:
            self._suspects.appendleft(dataclasses.replace(share, deaths=share.deaths + 1))
            return []
        (part,) = share.parts
        said = f"one that killed {_DEATHS + 1} workers ({_said(error)})"
        died = FatalArtifactError("", "an artifact that a worker survives", said)
        return [Finding(part.input, part, error=died)]

    def _check_alive(self, error: Exception) -> None:
        """Raises a WorkerError if the workers are to blame, not the work: they die whatever they run."""
        finished: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        try:
            self._crew.submit(worker.alive).add_done_callback(finished.put)
            self._next(finished).result()
        except WorkerError:
            raise
        except Exception as again:
            raise UnfitWorkerError(
                f"{self._task.title}: the workers cannot run jaxexp ({_said(again)}). They need jaxexp "
                f"{self._releases['jaxexp']}; new processes also import the program that started them, which has to "
                'begin its work below `if __name__ == "__main__":`'
            ) from cause(error)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _listed(releases: dict[str, str]) -> str:
    return ", ".join(f"{name} {release}" for name, release in releases.items())
