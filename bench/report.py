"""Numbers as text, and the printed table: versions and machine above, a row a cell, explanations below."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.measure import spread
from bench.question import Question
from bench.results import ORACLE, PEAK, SUBJECT, Cell, Results

HEADER = ("question", "case", "{subject}", "IQR", "jax.export", "IQR", "ratio", "peaks")
WIDTHS = (22, 22, 11, 6, 11, 6, 12, 19)
UNITS = {"second": (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)), "byte": (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))}


def versions(*names: str) -> str:
    """The versions of distributions; those not installed are left out."""
    found = []
    for name in dict.fromkeys(names):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}"


def load() -> str:
    """The system's load average of the last minute: a busy machine also measures the other programs."""
    return f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else ""


def amount(value: float, unit: str = "second") -> str:
    """Three digits and a unit, such as 12.3 µs."""
    if unit == "byte" and value < 1000:
        return f"{value:.0f} B"
    units = UNITS[unit]
    name, size = next(((name, size) for name, size in units if value >= size), units[-1])
    return f"{three_digits(value / size)} {name}"


def three_digits(value: float) -> str:
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded:#.3g}".rstrip(".")


def short(text: str) -> str:
    """An amount without the zeros at the end of its digits."""
    return re.sub(r"\.?0+(?=\D*$)", "", text) if "." in text else text


def times(value: float | None) -> str:
    return "" if value is None else f"{three_digits(value)}\N{MULTIPLICATION SIGN}"


def shown(cell: Cell | None, rival: str) -> str:
    if cell is None or rival not in cell.rivals:
        return ""
    return amount(cell.rivals[rival].median(), cell.rivals[rival].get_unit())


def pair(cell: Cell | None) -> str:
    """The subject's amount and the oracle's; a dash for an unknown one."""
    return "" if cell is None else f"{shown(cell, SUBJECT) or '-'} / {shown(cell, ORACLE) or '-'}"


def percent(cell: Cell, rival: str) -> str:
    return f"{spread(cell.rivals[rival]):.0%}" if rival in cell.rivals and not cell.is_nothing(rival) else ""


def _line(cells: Iterable[str]) -> str:
    sides = "<<" + ">" * (len(WIDTHS) - 2)
    padded = (f"{cell:{side}{width}}" for cell, side, width in zip(cells, sides, WIDTHS, strict=True))
    return "".join(padded).rstrip()


def header(about: Mapping[str, str]) -> str:
    titles = tuple(title.format(subject=about["subject"]) for title in HEADER)
    return f"{about['versions']}\n{about['machine']}\n\n{_line(titles)}\n{'-' * sum(WIDTHS)}"


def row(cell: Cell, peaks: Cell | None) -> str:
    """One row, and below it the rivals beside; the cells of a library that was wrong stay empty."""
    ours, theirs = ((shown(cell, rival), percent(cell, rival)) for rival in (SUBJECT, ORACLE))
    first = _line((cell.question, cell.case, *ours, *theirs, times(cell.ratio), pair(peaks)))
    beside = ", ".join(f"{name} {shown(cell, name)}" for name in cell.beside)
    return f"{first}\n{'':{WIDTHS[0]}}  beside: {beside}" if beside else first


def footer(questions: Iterable[Question]) -> str:
    lines = [
        "",
        "Medians. IQR: interquartile range / median. Ratio: jax.export's median / the other median. Peaks: memory.",
        "Beside:",
    ]
    about: dict[str, list[str]] = {}
    for question in questions:
        for name, text in question.beside.items():
            about.setdefault(f"{name}: {text}", []).append(question.name)
    return "\n".join(lines + [f"  {', '.join(names)}: {text}" for text, names in about.items()])


def peaks_of(results: Results, cell: Cell) -> Cell | None:
    return results.cell(PEAK + cell.question, cell.case)
