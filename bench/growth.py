"""How times grow with sizes: a row for each question and library, with slopes on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bench.cases import CASES
from bench.report import amount
from bench.results import ORACLE, SUBJECT, Results


@dataclass(frozen=True)
class Grown:
    """What grows: a family of cases, in words, with the questions about it."""

    text: str
    family: str
    questions: Mapping[str, str]


_BOTH = {"serialize": "grown, serialize", "deserialize and look": "grown, deserialize"}
GROWN = (
    Grown("symbolic sizes, with 30 constraints", "sizes", {**_BOTH, "first call": "grown, first call"}),
    Grown("arrays", "leaves", _BOTH),
    Grown("functions with their VJPs", "functions with VJPs", _BOTH),
    Grown("members of an archive", "archive", {"append one": "append", "open, and load one": "load one member"}),
)


def slope(points: Mapping[float, float]) -> float:
    """The exponent that fits best: 1 where time grows as size does."""
    pairs = [(math.log(size), math.log(seconds)) for size, seconds in points.items()]
    x, y = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    return sum((a - x) * (b - y) for a, b in pairs) / sum((a - x) ** 2 for a, _ in pairs)


def steepest(points: Mapping[float, float]) -> float:
    """The exponent from the second largest size to the largest, where a worse algorithm would show."""
    largest = sorted(points)[-2:]
    return slope({size: points[size] for size in largest})


def most(points: Mapping[float, float]) -> float:
    """The exponent of n log n there."""
    before, after = sorted(points)[-2:]
    return 1 + math.log(math.log(after) / math.log(before)) / math.log(after / before)


def tables(results: Results) -> list[tuple[str, list[tuple[str, ...]]]]:
    """For each thing that grows, what it is, and the head and the rows of its table."""
    found = []
    for grown in GROWN:
        sizes = {case.name: float(case.size) for case in CASES if case.family == grown.family}
        rows = []
        for text, question in grown.questions.items():
            for rival, name in ((SUBJECT, results.about["subject"]), (ORACLE, "jax.export")):
                points = {
                    size: median
                    for case, size in sizes.items()
                    if (cell := results.cell(question, case)) is not None and (median := cell.median(rival)) is not None
                }
                if len(points) < 2:
                    continue
                times = (amount(points[size]) if size in points else "" for size in sizes.values())
                slopes = (f"{fit(points):.2f}" for fit in (slope, steepest, most))
                rows.append((text, name, *times, *slopes))
        if rows:
            columns = (f"{size:,.0f}" for size in sizes.values())
            found.append((grown.text, [("", "", *columns, "slope", "last step", "n log n"), *rows]))
    return found
