"""The printed table: versions and machine above, a row a cell, and the floors spelled out below."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pyperf

from bench.measure import spread
from bench.question import Question

HEADER = ("question", "case", "{subject}", "IQR", "jax.export", "IQR", "ratio", "floor")
WIDTHS = (12, 16, 11, 6, 11, 6, 9, 9)


def versions(subject: str) -> dict[str, str]:
    """The versions a result depends on, by distribution name; those not installed are left out."""
    found = {}
    for name in dict.fromkeys((subject, "jax", "jaxlib", "numpy")):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"python": platform.python_version()}


def machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}"


def duration(seconds: float) -> str:
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("µs", 1e-6))
    return f"{seconds / size:#.3g}".rstrip(".") + f" {unit}"


def _line(cells: tuple[str, ...]) -> str:
    sides = "<<" + ">" * (len(WIDTHS) - 2)
    padded = (f"{cell:{side}{width}}" for cell, side, width in zip(cells, sides, WIDTHS, strict=True))
    return "".join(padded).rstrip()


def header(subject: str) -> str:
    stack = ", ".join(f"{name} {number}" for name, number in versions(subject).items())
    titles = tuple(title.format(subject=subject) for title in HEADER)
    return f"{stack}\n{machine()}\n\n{_line(titles)}\n{'-' * sum(WIDTHS)}"


def row(
    question: str, case: str, subject: pyperf.Benchmark | None, oracle: pyperf.Benchmark, floor: pyperf.Benchmark
) -> str:
    """One row; without `subject`, a library that was wrong, its cells stay empty."""
    ours = ("", "") if subject is None else (duration(subject.median()), f"{spread(subject):.0%}")
    ratio = "" if subject is None else f"{oracle.median() / subject.median():.3g}x"
    theirs = duration(oracle.median()), f"{spread(oracle):.0%}"
    return _line((question, case, *ours, *theirs, ratio, duration(floor.median())))


def footer(questions: list[Question]) -> str:
    floors = "".join(f"\n  {question.name:<12}{question.floor}" for question in questions)
    return (
        f"\nMedians. IQR: interquartile range over median. Ratio: of jax.export's median to the other.\nFloors:{floors}"
    )
