"""Progress of long work, on stderr: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator

from jaxexp._errors import shown
from jaxexp._kernel.artifact.words import counted

# Seconds. Shorter work needs no bar, and the bar's code takes a while to import.
DELAY = 0.3


class Bar:
    """How far some work is. It is called with the number of new steps, and of the errors in them."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._began, self._done, self._errors, self._resumed = time.monotonic(), 0, 0, 0
        self._at_end = contextlib.ExitStack()
        self._update: Callable[[int, str], None] | None = None
        self._is_shown = sys.stderr.isatty()

    def __call__(self, steps: int, errors: int = 0) -> None:
        self._done += steps
        self._errors += errors
        if not self._is_shown:
            return
        if self._update is None and self._done < self._total and time.monotonic() - self._began >= DELAY:
            self._update = self._at_end.enter_context(_drawn(self._total))
        if self._update is not None:
            self._update(self._done, self._said())

    def resumed(self, steps: int) -> None:
        """Notes that steps were done before, as a journal says. They are counted like all others."""
        self._resumed += steps

    def close(self) -> None:
        self._at_end.close()

    def _said(self) -> str:
        resumed = f", {self._resumed:,} from the journal" if self._resumed else ""
        errors = f", {counted(self._errors, 'error')}" if self._errors else ""
        return f"{self._what}{resumed}{errors}"


def bar(what: str, total: int) -> contextlib.closing[Bar]:
    """Shows the progress of work in some number of steps, in a `with` block."""
    return contextlib.closing(Bar(what, total))


@contextlib.contextmanager
def _drawn(total: int) -> Generator[Callable[[int, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done, said: progress.update(task, completed=done, description=shown(said))
