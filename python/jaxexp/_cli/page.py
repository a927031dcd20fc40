"""The look of results: titles, fields and tables, on a terminal and in a pipe; or JSON; and on stderr, the progress of
long work: a bar on a terminal, nothing elsewhere.

Artifacts come from others, so everything that is printed from them is escaped here: no control character, no change of
direction and no escape sequence reaches a terminal. A pipe gets plain text that is never cut or wrapped. On a terminal,
no line is too wide: texts are wrapped, signatures are cut, and a table that still does not fit becomes records.

rich does not draw the tables: it does none of this, and takes 30 times as long for 10,000 rows (18 s; here 0.6 s).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from jaxexp._errors import shown
from jaxexp._kernel.artifact.words import counted, listed

if TYPE_CHECKING:
    from jaxexp._fleet.places.folders import Folders

_INDENT = 2
_GAP = "  "
_NARROWEST = 12  # column of a table
_WORD = 40  # that stays in one piece
_SHORT = 24  # part of a cell that tells something
_WIDEST = 200  # column of a table in a pipe
_SHOWN = 40  # rows of a table,
_TALLEST = 8  # and lines of a text, that may be long, on a terminal


def one_line(text: str) -> str:
    """Joins the lines of a text into one that can be shown."""
    return shown(" ".join(line.strip("\t") for line in text.split("\n")))


def say(text: str) -> None:
    """Prints a result of one line."""
    click.echo(shown(text))


def print_json(found: Any) -> None:
    click.echo(json.dumps(found, indent=2))


def print_summary(
    found: Sequence[Any], chosen: Iterable[Any], states: Iterable[str], size: int, folders: Folders, **more: Any
) -> None:
    """Prints a JSON object: how many artifacts are in each state, and a list of the chosen ones."""
    counts = collections.Counter(one.state for one in found)
    totals = {"artifacts": len(found), **{state: counts[state] for state in states}, "bytes": size}
    skipped = [*folders.skipped, *folders.hidden]
    print_json({**more, **totals, "skipped": skipped, "files": [dataclasses.asdict(one) for one in chosen]})


def colours(stream: IO[str]) -> bool:
    """Whether a stream takes colours: a terminal does, unless NO_COLOR (https://no-color.org) is set, or it is dumb."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    right: bool = False  # whether it has numbers
    cut: bool = False  # whether a narrow terminal may show only the beginning of a cell, instead of several lines
    both_ends: bool = False  # whether it shows the end, too
    least: int = _SHORT  # how much of a cell that is cut tells something
    optional: bool = False  # whether a terminal that is too narrow for all columns leaves it out
    words: bool = False  # whether words of up to 40 characters, such as digests, stay in one piece
    style: str | None = None
    marks: Mapping[str, str] = dataclasses.field(default_factory=dict)  # styles of cells that begin with these texts

    def style_of(self, cell: str) -> str | None:
        return next((style for start, style in self.marks.items() if cell.startswith(start)), self.style)


class Page:
    """The output of a command on stdout: collected, then written at once.

    Args:
        everything: whether a terminal, too, gets output that is longer than a screen.

    Attributes:
        is_terminal: whether it is for a terminal, where lines have a width.
    """

    def __init__(self, *, everything: bool = True) -> None:
        self._lines: list[str] = []
        self._colours = colours(sys.stdout)
        self.is_terminal = sys.stdout.isatty()
        self._is_short = self.is_terminal and not everything
        self._width = shutil.get_terminal_size().columns if self.is_terminal else sys.maxsize

    def title(self, name: str, where: str) -> None:
        """The head of the text that follows."""
        self.blank()
        name, where = shown(name), shown(where)
        if _cells(name + _GAP + where) <= self._width:
            self._lines.append(self.styled(name, "title") + _GAP + self.styled(where, "dim"))
        else:
            self._lines += [self.styled(part, "title") for part in _wrapped(name, self._width)]
            self._lines += [self.styled(part, "dim") for part in _wrapped(where, self._width)]

    def blank(self) -> None:
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def line(self, text: str, style: str | None = None) -> None:
        self._lines.append(self.styled(shown(text), style))

    def totals(self, verdicts: Sequence[str], more: str, where: str = "") -> None:
        """As in "5 artifacts: 3 loaded, 2 refused", with more behind it, and where it is so in front of the colon."""
        said = listed(collections.Counter(verdicts).most_common(), lambda one: f"{one[1]:,} {one[0]}")
        self.line(f"{counted(len(verdicts), 'artifact')}{where}: {said}{more}", "heading")

    def lines(self, text: str) -> None:
        """Text of several lines, unchanged."""
        self._lines += [shown(line.replace("\t", "    ")) for line in text.splitlines()]

    def fields(self, facts: Iterable[tuple[str, str]], indent: int = _INDENT) -> None:
        """Names and their values, in two columns."""
        facts = [(shown(name), text) for name, text in facts]
        left = max((len(name) for name, _ in facts), default=0) + len(_GAP)
        for name, text in facts:
            wrapped = self._lines_of(shown(text), max(_NARROWEST, self._width - indent - left))
            for first, part in zip(itertools.chain([name], itertools.repeat("")), wrapped, strict=False):
                self._lines.append((" " * indent + self.styled(first.ljust(left), "dim") + part).rstrip())

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        """A table of texts, without its empty columns."""
        columns = [dataclasses.replace(column, name=shown(column.name)) for column in columns]
        rows = [[shown(cell) for cell in row] for row in rows]
        left_out = len(rows) - _SHOWN if self._is_short else 0
        if left_out > 0:
            rows = rows[:_SHOWN]
        kept = self._fitting(columns, rows, [i for i in range(len(columns)) if any(row[i] for row in rows)])
        columns, rows = [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]
        widths = self._widths(columns, rows)
        if widths is None:
            self._records(columns, rows)
        else:
            self._row(columns, widths, [column.name for column in columns], "dim")
            for row in rows:
                self._row(columns, widths, row, None)
        if left_out > 0:
            self._lines.append(" " * _INDENT + self.styled(f"... and {left_out:,} more: --all shows them", "dim"))

    def styled(self, text: str, style: str | None) -> str:
        return click.style(text, **_STYLES[style]) if style and text and self._colours else text

    def write(self) -> None:
        """Prints the page, and begins the next one."""
        if self._lines:
            click.echo("\n".join(self._lines), color=self._colours)
        self._lines = []

    def _cell(self, column: Column, text: str, width: int) -> list[str]:
        if not self.is_terminal:
            return [text]
        return [_shortened(text, width, column.both_ends)] if column.cut else self._lines_of(text, width)

    def _lines_of(self, text: str, width: int) -> list[str]:
        lines = _wrapped(text, width)
        if self._is_short and len(lines) > _TALLEST:
            lines[_TALLEST - 1 :] = ["... (--all)"]
        return lines

    def _fitting(self, columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: list[int]) -> list[int]:
        """The columns that stay: those that may be left out go, the widest one first, until the others fit."""

        def needed(i: int) -> int:
            width = max(_cells(text) for text in (columns[i].name, *(row[i] for row in rows)))
            return min(width, columns[i].least) if columns[i].cut else width

        while self.is_terminal and (optional := [i for i in kept if columns[i].optional]):
            if _INDENT + sum(map(needed, kept)) + len(_GAP) * (len(kept) - 1) <= self._width:
                break
            kept.remove(max(optional, key=needed))
        return kept

    def _widths(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int] | None:
        """What each column needs; if that is too much, the widest ones get less. None if they still do not all fit."""
        widths = [max(_cells(text) for text in (c.name, *(row[i] for row in rows))) for i, c in enumerate(columns)]
        if not self.is_terminal:  # one long cell must not lengthen thousands of rows
            return [min(width, _WIDEST) for width in widths]
        room = self._width - _INDENT - len(_GAP) * (len(columns) - 1)
        # Numbers and short words are never broken.
        least = [min(width, _NARROWEST) for width in widths]
        for i, column in enumerate(columns):
            if column.right:
                least[i] = max([least[i], *(_cells(row[i]) for row in rows)])
            if column.words:
                words = (_cells(word) for row in rows for word in row[i].split(" "))
                least[i] = max([least[i], *(width for width in words if width <= _WORD)])
        if sum(least) > room:
            return None
        widths = [min(width, room) for width in widths]
        # Cells are cut before any are broken. A name keeps half of the room until the end: it has no spaces, and people
        # copy it.
        cut = [c.least if c.cut else width for c, width in zip(columns, widths, strict=True)]
        last = [room // 2 if c.style == "name" else _SHORT for c in columns]
        broken = list(map(max, least, last))
        for floors in (cut, broken, least):
            while sum(widths) > room and (loose := [i for i, floor in enumerate(floors) if widths[i] > floor]):
                widths[max(loose, key=widths.__getitem__)] -= 1
        return widths

    def _records(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        """A table that is too wide: each row as fields below its first cell."""
        left = 2 * _INDENT + max((_cells(column.name) for column in columns[1:]), default=0) + len(_GAP)
        room = max(_NARROWEST, self._width - left)
        for first, *cells in rows:
            style = columns[0].style_of(first)
            self._lines += [" " * _INDENT + self.styled(part, style) for part in _wrapped(first, self._width - _INDENT)]
            facts = [
                (column.name, _shortened(cell, room, column.both_ends) if column.cut else cell)
                for column, cell in zip(columns[1:], cells, strict=True)
                if cell
            ]
            self.fields(facts, indent=2 * _INDENT)

    def _row(self, columns: Sequence[Column], widths: Sequence[int], row: Sequence[str], style: str | None) -> None:
        cells = [self._cell(column, text, width) for column, text, width in zip(columns, row, widths, strict=True)]
        styles = [style or column.style_of(text) for column, text in zip(columns, row, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            line = _GAP.join(
                _filled(self.styled(part, look), width - _cells(part), column.right)
                for column, part, width, look in zip(columns, parts, widths, styles, strict=True)
            )
            self._lines.append((" " * _INDENT + line).rstrip())


_STYLES: dict[str, dict[str, Any]] = {
    "title": {"bold": True},
    "heading": {"bold": True},
    "dim": {"dim": True},
    "name": {"fg": "cyan"},
    "good": {"fg": "green"},
    "bad": {"fg": "red"},
    "less": {"fg": "red"},
    "more": {"fg": "green"},
}


def _cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _filled(text: str, missing: int, right: bool) -> str:
    return " " * missing + text if right else text + " " * missing


def _shortened(text: str, width: int, both_ends: bool = False) -> str:
    if _cells(text) <= width:
        return text
    end = _head(text[::-1], (width - 3) * 2 // 3)[::-1] if both_ends else ""
    return f"{_head(text, width - 3 - _cells(end))}...{end}"


def _head(text: str, width: int) -> str:
    """The beginning of a text: at most this many columns, but at least one character."""
    taken = itertools.accumulate(map(_cells, text))
    return text[: max(1, sum(1 for cells in taken if cells <= width))]


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of a text, broken at spaces if there are any, else after a slash, or between the steps of a path."""
    lines: list[str] = []
    start = 0
    while True:
        ahead = text[start : start + 4 * width]  # as much as a line can take
        if start + len(ahead) == len(text) and _cells(ahead) <= width:
            return [*lines, ahead]
        head = _head(ahead, width)
        space = len(head) if ahead[len(head) : len(head) + 1] == " " else head.rfind(" ")
        if space > width // 3 or (space > 0 and _cells(ahead[space + 1 :].partition(" ")[0]) <= min(width, _WORD)):
            place = space
        else:
            place = max(head.rfind("/"), head.rfind("][")) + 1
        head = head[:place] if place == space or place > width // 3 else head
        lines.append(head.rstrip())
        start += len(head)
        while text[start : start + 1] == " ":
            start += 1


# Seconds. Shorter work needs no bar, and the bar's code takes a while to import.
DELAY = 0.3


class Bar:
    """How far some work is. It is called with the number of new steps, and of the errors in them."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._began, self._done, self._errors, self._resumed = time.monotonic(), 0, 0, 0
        self._at_end = contextlib.ExitStack()
        self._update: Callable[[int, str], None] | None = None

    def __call__(self, steps: int, errors: int = 0) -> None:
        self._done += steps
        self._errors += errors
        is_long = self._done < self._total and time.monotonic() - self._began >= DELAY
        if self._update is None and is_long and sys.stderr.isatty():
            self._update = self._at_end.enter_context(_drawn(self._total))
        if self._update is not None:
            resumed = f", {self._resumed:,} from the journal" if self._resumed else ""
            wrong = f", {counted(self._errors, 'error')}" if self._errors else ""
            self._update(self._done, f"{self._what}{resumed}{wrong}")

    def resumed(self, steps: int) -> None:
        """Notes that steps were done before, as a journal says. They are counted like all others."""
        self._resumed += steps

    def close(self) -> None:
        self._at_end.close()


def progress(what: str, total: int) -> contextlib.closing[Bar]:
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
