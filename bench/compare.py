"""`python -m bench compare OLD.json NEW.json`: which cells got worse, relative to jax.export in the same run.

It compares ratios of jax.export's numbers to the subject's, not seconds, because machines differ. A ratio has changed
if pyperf's significance test says so (a t-test of the logarithms of each round's ratio), and if the medians differ by
more than a threshold: two runs of the same code differ by more than the rounds of one run.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyperf._utils import is_significant

from bench.report import times
from bench.results import ORACLE, SUBJECT, Cell, Results

THRESHOLD = 0.15
REGRESSION, IMPROVEMENT, SAME, GONE = "REGRESSION", "improvement", "same", "not measured"


@dataclass(frozen=True)
class Change:
    """The change of one cell; `ratio` is the new ratio divided by the old one, below 1 if it got worse."""

    question: str
    case: str
    old: float
    new: float | None
    verdict: str

    @property
    def ratio(self) -> float | None:
        return None if self.new is None else self.new / self.old

    @property
    def percent(self) -> str:
        return "" if self.ratio is None else f"{self.ratio - 1:+.0%}"


def significant(old: Sequence[float], new: Sequence[float]) -> bool:
    """pyperf's test of two samples, cut to the same length as it requires.

    It cannot test samples without variance or of length one. For these, any difference is significant.
    """
    length = min(len(old), len(new))
    old, new = [math.log(x) for x in old[:length]], [math.log(x) for x in new[:length]]
    if length < 2 or statistics.pvariance(old) + statistics.pvariance(new) == 0:
        return statistics.fmean(old) != statistics.fmean(new)
    return bool(is_significant(old, new)[0])


def _at_least(cell: Cell) -> float:
    # Below a megabyte, the number depends on pages and on what the allocator kept.
    return 1e6 if "memory" in cell.question else 0.0


def ratio(cell: Cell) -> float | None:
    ours, theirs = (cell.median(rival) for rival in (SUBJECT, ORACLE))
    if ours is None or theirs is None:
        return None
    return max(theirs, _at_least(cell)) / max(ours, _at_least(cell))


def ratios(cell: Cell) -> list[float]:
    """The same for each round, in which the two ran one after the other."""
    least = _at_least(cell)
    pairs = zip(cell.rivals[ORACLE].get_values(), cell.rivals[SUBJECT].get_values(), strict=True)
    return [max(theirs, least) / max(ours, least) for theirs, ours in pairs]


def change(old: Cell, new: Cell | None, threshold: float) -> Change | None:
    """None if there is nothing to compare with."""
    before = ratio(old)
    if before is None:
        return None
    if new is None or new.oracle is None:
        return Change(old.question, old.case, before, None, GONE)
    after = ratio(new)
    if after is None:  # the subject is wrong now
        return Change(old.question, old.case, before, None, REGRESSION)
    verdict = SAME
    if significant(ratios(old), ratios(new)):
        if after < before / (1 + threshold):
            verdict = REGRESSION
        elif after > before * (1 + threshold):
            verdict = IMPROVEMENT
    return Change(old.question, old.case, before, after, verdict)


def changes(old: Results, new: Results, threshold: float = THRESHOLD) -> list[Change]:
    """One for each cell of the old results, the worst first."""
    found = [change(cell, new.cell(*place), threshold) for place, cell in old.cells.items()]
    order = [REGRESSION, GONE, IMPROVEMENT, SAME]
    return sorted(filter(None, found), key=lambda c: (order.index(c.verdict), c.ratio or 0.0))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench compare", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help="smaller changes do not count")
    parser.add_argument("--all", action="store_true", help="also show the cells that are the same")
    options = parser.parse_args(argv)
    old, new = Results.load(options.old), Results.load(options.new)
    found = changes(old, new, options.threshold)

    for name, results in (("old", old), ("new", new)):
        print(f"{name}: {results.about['date']}, {results.about['versions']}; {results.about['machine']}")
    print(f"\n{'question':<36}{'case':<24}{'old ratio':>10}{'new ratio':>11}{'change':>9}  verdict")
    for item in found:
        if item.verdict != SAME or options.all:
            print(
                f"{item.question:<36}{item.case:<24}{times(item.old):>10}{times(item.new):>11}{item.percent:>9}  "
                f"{item.verdict}"
            )
    count = Counter(item.verdict for item in found)
    print(
        f"\n{count[REGRESSION]} got worse, {count[IMPROVEMENT]} better, {count[SAME]} the same, {count[GONE]} not "
        "measured in the new run. Ratio: jax.export's median / the subject's. Worse or better: significant in pyperf's "
        f"test, and by more than {options.threshold:.0%}."
    )
    failed = [mistake for mistake in new.mistakes if mistake not in old.mistakes]
    for mistake in failed:
        print(f"EMPTY only in the new run: {mistake}")
    return 1 if count[REGRESSION] or failed else 0
