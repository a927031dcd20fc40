"""Progress of long work, on stderr: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator

from jaxexp._errors import shown

# Seconds. Shorter work needs no bar, and the bar's code takes a while to import.
DELAY = 0.3


@contextlib.contextmanager
def bar(what: str, total: int) -> Generator[Callable[[int], None]]:
    """Shows the progress of work in some number of steps. Gives a function to call with the number of new steps."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    began, done = time.monotonic(), 0
    with contextlib.ExitStack() as at_end:
        update: Callable[[int], None] | None = None

        def advance(steps: int) -> None:
            nonlocal update, done
            done += steps
            if update is None and done < total and time.monotonic() - began >= DELAY:
                update = at_end.enter_context(_drawn(what, total))
            if update is not None:
                update(done)

        yield advance


@contextlib.contextmanager
def _drawn(what: str, total: int) -> Generator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(shown(what), total=total)
        yield lambda done: progress.update(task, completed=done)
