"""Options that spread the work of a command over threads, processes, or the workers of a Dask cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from jaxexp._errors import ExportError, WorkerError

from . import importing, inputs, progress

if TYPE_CHECKING:
    from jaxexp._fleet.engine.crew import Means, Workers
    from jaxexp._fleet.engine.work import Unusable
    from jaxexp._fleet.passes.folders import Folders
    from jaxexp._fleet.passes.given import Place

_SAFE_PATH = "PYTHONSAFEPATH"  # as Python's option -P


@dataclasses.dataclass(frozen=True)
class Spread:
    """The values of `--workers`, `--dask`, `--journal` and `--wait-for-workers`."""

    workers: int | None
    address: str | None
    journal: str | None
    wait_for_workers: float

    @property
    def is_asked_for(self) -> bool:
        """Whether any of the first three was given."""
        return (self.workers, self.address, self.journal) != (None, None, None)

    @contextlib.contextmanager
    def means(self, resumed: Callable[[int], None], *, processes: bool) -> Generator[Means]:
        """The workers and the journal, until the block ends. Processes are for work under Python's global lock. Other
        work uses threads by itself. `resumed` is told how many results the journal had.

        Raises:
            ImportError: Dask is not installed.
            ConnectionError: no scheduler answers.
        """
        from jaxexp._fleet.engine import crew

        with contextlib.ExitStack() as stack:
            executor: Workers | None = None
            if self.address is not None:
                try:
                    executor = stack.enter_context(crew.dask(self.address, self.wait_for_workers))
                except ExportError as error:
                    raise click.UsageError(f"--dask {error}") from error
            elif processes and self.workers is not None and self.workers > 1:
                stack.enter_context(_safe_path())
                executor = crew.processes(self.workers)
            try:
                imported = importing.imported()
                yield crew.Means(executor, self.workers, self.journal, self.wait_for_workers, imported, resumed)
            except WorkerError as error:
                raise type(error)(self._in_options(str(error))) from error

    def results(
        self,
        files: Sequence[str],
        folders: Folders,
        command: str,
        look: Callable[[Iterable[Place | Unusable], Means], Iterable[tuple[Place, str, Any]]],
    ) -> list[tuple[str, Any]]:
        """What a pass that needs JAX says about each artifact, or its error, by name and in the order of the files.

        Raises:
            click.ClickException: folders and archives hold nothing.
            Exception: as `means`.
        """
        given, steps = inputs.given(files, folders, command)
        found: list[tuple[int, str, Any]] = []
        doing = "checking" if command == "check" else "reading"
        with progress.bar(doing, steps) as advance, self.means(advance.resumed, processes=True) as means:
            for place, name, one in look(given, means):
                found.append((place.order, name, one))
                advance(1, isinstance(one, Exception))
        return [(name, one) for _, name, one in sorted(found, key=lambda one: one[:2])]

    def _in_options(self, message: str) -> str:
        """A message of the workers, with options in place of arguments and the command in place of the pass."""
        kept = "The journal has what is done: run the same command again to go on"
        if self.journal is None:
            kept = "Nothing that was done is kept; --journal FILE keeps it"
        return (
            message.replace("compatibility: ", "compat: ", 1)
            .replace("(wait_for_workers)", "(--wait-for-workers)")
            .replace("What is done is in the journal, if there is one", kept)
        )


@contextlib.contextmanager
def _safe_path() -> Generator[None]:
    """Python's processes that start meanwhile import nothing from the current folder, unless this one does."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def options(workers: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options `--workers`, with this help, and those beside it. They make one argument, `spread`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("-j", "--workers", type=click.IntRange(1), help=workers)
        @click.option(
            "--dask",
            "address",
            metavar="ADDRESS",
            help="Have the workers of a Dask cluster do it, such as tcp://scheduler:8786. They need the same "
            "jaxexp and the same paths.",
        )
        @click.option(
            "--journal",
            type=click.Path(dir_okay=False),
            help="Remember finished work in this file. If the command is interrupted, run it again to continue; inputs "
            "that have changed since are done again.",
        )
        @click.option(
            "--wait-for-workers",
            type=click.FloatRange(0),
            default=60,
            show_default=True,
            metavar="SECONDS",
            help="With --dask, give up when the cluster has had no workers for this long; inf never gives up.",
        )
        @functools.wraps(command)
        def with_spread(
            *args: Any,
            workers: int | None,
            address: str | None,
            journal: str | None,
            wait_for_workers: float,
            **kwargs: Any,
        ) -> Any:
            return command(*args, spread=Spread(workers, address, journal, wait_for_workers), **kwargs)

        return with_spread

    return decorate
