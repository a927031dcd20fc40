"""Options that spread the work of a command over threads, processes, or the workers of any executor."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from jaxexp._errors import WorkerError

from . import inputs, options
from .page import progress

if TYPE_CHECKING:
    from jaxexp._fleet.engine.engine import Means, Unusable, Workers
    from jaxexp._fleet.passes.folders import Folders
    from jaxexp._fleet.passes.given import Place

_SAFE_PATH = "PYTHONSAFEPATH"  # as Python's option -P


@dataclasses.dataclass(frozen=True)
class Spread:
    """The values of `--workers`, `--executor`, `--journal` and `--timeout`."""

    workers: int | None
    executor: Workers | None
    journal: str | None
    timeout: float | None

    @property
    def is_asked_for(self) -> bool:
        """Whether any of the first three was given."""
        return (self.workers, self.executor, self.journal) != (None, None, None)

    @contextlib.contextmanager
    def means(self, resumed: Callable[[int], None], *, processes: bool) -> Generator[Means]:
        """The workers and the journal, until the block ends. Processes are for work under Python's global lock. Other
        work uses threads by itself. `resumed` is told how many results the journal had.

        Raises:
            WorkerError: there are none for too long, or they cannot do it.
        """
        from jaxexp._fleet.engine import engine

        with contextlib.ExitStack() as stack:
            executor = self.executor
            if executor is None and processes and self.workers is not None and self.workers > 1:
                stack.enter_context(_safe_path())
                executor = engine.processes(self.workers)
            try:
                imported = options.imported()
                yield engine.Means(executor, self.workers, self.journal, self.timeout, imported, resumed)
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
        with progress(doing, steps) as advance, self.means(advance.resumed, processes=True) as means:
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
            .replace("(timeout)", "(--timeout)")
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


def _executor(ctx: click.Context, param: click.Parameter, given: str | None) -> Workers | None:
    """What `--executor` names, called."""
    if given is None or ctx.resilient_parsing:
        return None
    name, _, function = given.partition(":")
    if not function.isidentifier():
        raise click.BadParameter(f"expected MODULE:FUNCTION, as in my_cluster:executor, found {given!r}", ctx, param)
    module = options.import_module("--executor", name)
    make = getattr(module, function, None)
    if not callable(make):
        raise click.BadParameter(f"{name} has no function {function!r}", ctx, param)
    return cast("Workers", make())


def workers(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options `--workers`, with this help, and those beside it. They make one argument, `spread`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("-j", "--workers", type=click.IntRange(1), help=help)
        @click.option(
            "--executor",
            metavar="MODULE:FUNCTION",
            callback=_executor,
            help="Have the workers of the concurrent.futures.Executor do it that this function returns, such as those "
            "of a cluster. They need the same jaxexp and the same paths.",
        )
        @click.option(
            "--journal",
            type=click.Path(dir_okay=False),
            help="Remember finished work in this file. If the command is interrupted, run it again to continue; inputs "
            "that have changed since are done again.",
        )
        @click.option(
            "--timeout",
            type=click.FloatRange(0),
            metavar="SECONDS",
            help="Give up when no worker has finished anything for this long. By default, wait.",
        )
        @functools.wraps(command)
        def with_spread(
            *args: Any,
            workers: int | None,
            executor: Workers | None,
            journal: str | None,
            timeout: float | None,
            **kwargs: Any,
        ) -> Any:
            return command(*args, spread=Spread(workers, executor, journal, timeout), **kwargs)

        return with_spread

    return decorate
