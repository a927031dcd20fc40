"""Results in memory and in pyperf's JSON files: cells of a question and a case, each with samples of several rivals."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pyperf

from bench.measure import ZERO

SUBJECT, ORACLE = "subject", "jax.export"
# Metadata of a benchmark that says where it belongs; all other metadata is about the run as a whole or about the case.
PLACE = "question", "case", "rival"
PEAK = "peak memory of "  # before the name of a question: the cell with its peaks
ALONE = "processes of "  # the same with the peak of each process that does only this


@dataclass
class Cell:
    """What one question measured of one case. If the subject was wrong, it is not among the rivals."""

    question: str
    case: str
    rivals: dict[str, pyperf.Benchmark] = field(default_factory=dict)

    @property
    def subject(self) -> pyperf.Benchmark | None:
        return self.rivals.get(SUBJECT)

    @property
    def oracle(self) -> pyperf.Benchmark | None:
        return self.rivals.get(ORACLE)

    @property
    def beside(self) -> dict[str, pyperf.Benchmark]:
        return {name: result for name, result in self.rivals.items() if name not in (SUBJECT, ORACLE)}

    def median(self, rival: str) -> float | None:
        return self.rivals[rival].median() if rival in self.rivals else None

    def is_nothing(self, rival: str) -> bool:
        """Whether a rival took no memory at all."""
        median = self.median(rival)
        return median is not None and median <= ZERO

    @property
    def ratio(self) -> float | None:
        """The oracle's median, divided by the subject's; None if one is missing, or the subject's is nothing."""
        return None if self.is_nothing(SUBJECT) else over(self.median(ORACLE), self.median(SUBJECT))


def over(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


@dataclass
class Results:
    """All cells of a run, facts about it, and its mistakes: a line for each empty cell."""

    about: dict[str, str]
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def cell(self, question: str, case: str) -> Cell | None:
        return self.cells.get((question, case))

    def add(self, benchmark: pyperf.Benchmark) -> None:
        question, case, rival = (benchmark.get_metadata()[name] for name in PLACE)
        cell = self.cells.setdefault((question, case), Cell(question, case))
        cell.rivals[rival] = benchmark

    def dump(self, path: Path) -> None:
        """Writes a file that pyperf reads; nothing if nothing was measured."""
        benchmarks = [benchmark for cell in self.cells.values() for benchmark in cell.rivals.values()]
        if not benchmarks:
            return
        for benchmark in benchmarks:
            benchmark.update_metadata({"about": json.dumps(self.about), "mistakes": json.dumps(self.mistakes)})
        path.parent.mkdir(parents=True, exist_ok=True)
        pyperf.BenchmarkSuite(benchmarks).dump(str(path), compact=True, replace=True)

    @classmethod
    def load(cls, path: Path) -> Results:
        suite = pyperf.BenchmarkSuite.load(str(path))
        metadata = suite.get_benchmarks()[0].get_metadata()
        results = cls(json.loads(metadata["about"]), mistakes=json.loads(metadata["mistakes"]))
        for benchmark in suite.get_benchmarks():
            results.add(benchmark)
        return results
