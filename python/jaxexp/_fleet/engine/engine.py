"""The engine of all passes: shares go out and results come back. A dead worker costs only its share."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import pickle
import queue
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from jaxexp._errors import FatalArtifactError, UnfitWorkerError, WorkerError, cause

from . import worker
from .crew import Crew
from .errors import unpacked
from .journal import Journal
from .work import Input, Part, Share, Unusable, cut

if TYPE_CHECKING:
    from .crew import Means

# A single unit is given up after this many workers died while it was all that they had to do.
_DEATHS = 2
# How many findings that needed no worker may wait for the caller.
_READY = 1000


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
    closed, shares that have not begun are dropped.

    Raises:
        JournalError: the journal is damaged, or belongs to another pass.
        WorkerError: the workers cannot run jaxexp, or have other releases than this process; or nothing was finished
            for too long.
        ExportError: another process has the journal.
        OSError: the journal cannot be written.
        TypeError: `executor` is not an executor.
    """
    about: dict[str, Any] = {"pass": task.title, "options": task.about, "releases": worker.releases(task.with_jax)}
    if means.imports:  # results depend on the types that are known
        about["imports"] = means.imports
    with Journal(means.journal, about) as journal:
        crew = Crew(means.executor)
        running = _Running(task, inputs, crew, journal, means)
        try:
            yield from running.findings()
        except BaseException as error:
            if isinstance(error, WorkerError):
                running.note_finished()
            running.drop()
            crew.close(wait=False)
            raise
        crew.close(wait=True)


class _Running:
    def __init__(
        self, task: Task, inputs: Iterable[Input | Unusable], crew: Crew, journal: Journal, means: Means
    ) -> None:
        self._task, self._crew, self._journal = task, crew, journal
        self._timeout = None if means.timeout == math.inf else means.timeout
        self._imports, self._resumed = means.imports, means.resumed
        self._inputs = inputs
        self._options = pickle.dumps(task.options)
        self._releases = worker.releases(task.with_jax)
        self._ready: collections.deque[Finding] = collections.deque()
        self._pending: dict[Future[Any], Share] = {}
        self._finished: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        # Shares whose worker may have died of them. Each is done alone, to tell which one it was.
        self._suspects: collections.deque[Share] = collections.deque()
        self._is_alone = False
        self._is_over = False

    def findings(self) -> Iterator[Finding]:
        shares = cut(self._left(), self._task.share_bytes, self._task.unit_bytes)
        while True:
            self._send(shares)
            while self._ready:
                yield self._ready.popleft()
            if self._pending:
                future = self._next(self._finished)
                self._receive(self._pending.pop(future), future)
            elif self._is_over and not self._suspects:
                return

    def note_finished(self) -> None:
        """Writes into the journal what workers have done, and nobody has looked at."""
        for future, share in self._pending.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                with contextlib.suppress(TypeError, ValueError):  # not what a worker returns
                    self._note(share, future.result())

    def drop(self) -> None:
        """Gives up the shares that have not begun."""
        for future in self._pending:
            future.cancel()

    def _left(self) -> Iterator[Part | None]:
        """The work that is left. Results from the journal become findings, with a pause if there are many."""
        for one in self._inputs:
            if len(self._ready) > _READY:
                yield None
            if isinstance(one, Unusable):
                self._ready.append(Finding(one, error=one.error))
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
                self._ready.append(Finding(one, part, found))
                self._resumed(part.units)
                if len(self._ready) > _READY:
                    yield None
                if at < start:
                    yield Part(one, at, start)
                at = stop
            if at < units:
                yield Part(one, at, units)

    def _send(self, shares: Iterator[Share | None]) -> None:
        """Keeps the workers busy; a suspect runs alone."""
        if self._suspects or self._is_alone:
            self._is_alone = False
            if not self._pending and self._suspects:
                self._is_alone = True
                self._submit(self._suspects.popleft())
            return
        while not self._is_over and len(self._pending) < self._crew.window:
            try:
                share = next(shares)
            except StopIteration:
                self._is_over = True
                return
            if share is None:
                return
            self._submit(share)

    def _submit(self, share: Share) -> None:
        attempt = uuid.uuid4().hex
        crossing = [part.crossing() for part in share.parts]
        try:
            future = self._crew.submit(
                worker.run, attempt, self._releases, self._task.home, self._options, crossing, self._imports
            )
        except Exception as error:
            raise WorkerError(
                f"{self._task.title}: the executor takes no more work ({_said(error)}). What is done is in the "
                "journal, if there is one"
            ) from cause(error)
        self._pending[future] = share
        future.add_done_callback(self._finished.put)

    def _next(self, finished: queue.SimpleQueue[Future[Any]]) -> Future[Any]:
        """The next future that is finished.

        Raises:
            WorkerError: none was, for too long.
        """
        try:
            return finished.get(timeout=self._timeout)
        except queue.Empty:
            raise WorkerError(
                f"{self._task.title}: no worker has finished anything for {self._timeout:g} seconds. See whether there "
                "are any, or wait longer (timeout). What is done is in the journal, if there is one"
            ) from None

    def _receive(self, share: Share, future: Future[Any]) -> None:
        if future.cancelled():
            self._bury(share, WorkerError("its worker was taken away"))
            return
        error = future.exception()
        if error is None:
            self._take(share, future.result())
        elif isinstance(error, Exception):
            self._bury(share, error)
        else:  # Ctrl-C, which a worker got too
            raise error

    def _take(self, share: Share, outcome: Any) -> None:
        try:
            kind, found = outcome
        except (TypeError, ValueError):
            raise UnfitWorkerError(
                f"{self._task.title}: the executor returned a {type(outcome).__name__}, not what its worker returned"
            ) from None
        if kind == "raised":
            raise found
        if kind == "other":
            raise UnfitWorkerError(
                f"{self._task.title}: the workers need the same releases as this process, which has "
                f"{_listed(self._releases)}; one of them has {_listed(found)}"
            )
        for part, result, error in self._note(share, outcome):
            if error is None:
                self._ready.append(Finding(part.input, part, self._task.decoded(part, result)))
            else:
                self._ready.append(Finding(part.input, part, error=unpacked(error)))

    def _note(self, share: Share, outcome: Any) -> list[tuple[Part, Any, Any]]:
        """Writes the results of a share into the journal, and returns each part with its result, or its error."""
        kind, found = outcome
        if kind != "done":
            return []
        done = [(part, *one) for part, one in zip(share.parts, found, strict=True)]
        self._journal.add([(p.input.name, p.input.identity, p.start, p.stop, said) for p, said, e in done if e is None])
        return done

    def _bury(self, share: Share, error: Exception) -> None:
        """Handles a share whose worker died, or cannot say what happened."""
        if not self._is_alone:
            self._suspects.append(share)
            return
        self._check_alive(error)
        if share.units > 1:
            self._suspects.extendleft(reversed(share.halves()))
        elif share.deaths + 1 < _DEATHS:
            self._suspects.appendleft(dataclasses.replace(share, deaths=share.deaths + 1))
        else:
            (part,) = share.parts
            said = f"one that killed {_DEATHS + 1} workers ({_said(error)})"
            died = FatalArtifactError("", "an artifact that a worker survives", said)
            self._ready.append(Finding(part.input, part, error=died))

    def _check_alive(self, error: Exception) -> None:
        """Makes sure that the work is to blame, not the workers.

        Raises:
            WorkerError: workers die whatever they run.
        """
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
