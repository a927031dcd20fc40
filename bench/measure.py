"""Timing of rivals in one process: warm-up, calibrated loops, rounds that alternate between them, medians and spread.

Samples are kept in pyperf's Benchmark objects, so that medians and quartiles are pyperf's and the JSON files work with
its commands (`pyperf stats`, `pyperf hist`, `pyperf compare_to`). pyperf's Runner is not used: it times one function
per worker process, and rivals timed minutes apart in different processes drift with the machine. Alternating them in
one process cancels most of that in the ratio, which is what is reported.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyperf


@dataclass(frozen=True)
class Effort:
    """How much time goes into one cell: seconds a sample, samples at most, seconds over all samples of all rivals."""

    sample: float
    samples: int
    total: float


FULL = Effort(sample=0.01, samples=30, total=12.0)
QUICK = Effort(sample=0.003, samples=9, total=0.8)
FEWEST = 3


@dataclass(frozen=True)
class Rival:
    """`run` is timed; `finish` takes its last result, within the timing, for work that was only started."""

    run: Callable[[], object]
    finish: Callable[[object], object] | None = None

    def seconds(self, loops: int) -> float:
        """Seconds a run, over `loops` runs in a row."""
        run, result = self.run, None
        start = time.perf_counter()
        for _ in range(loops):
            result = run()
        if self.finish is not None:
            self.finish(result)
        return (time.perf_counter() - start) / loops


def alternate(rivals: dict[str, Rival], effort: Effort) -> dict[str, list[float]]:
    """Samples of each rival in seconds a run, equally many, taken in turns."""
    loops, round_seconds = {}, 0.0
    for name, rival in rivals.items():
        rival.seconds(1)  # the first run compiles and fills caches
        loops[name], once = 1, rival.seconds(1)
        if once < effort.sample:
            loops[name] = round(effort.sample / once)
            once = rival.seconds(loops[name])
            loops[name] = max(1, round(effort.sample / once))
        round_seconds += once * loops[name]
    rounds = max(FEWEST, min(effort.samples, int(effort.total / round_seconds)))

    samples: dict[str, list[float]] = {name: [] for name in rivals}
    names = list(rivals)
    gc.collect()
    gc.disable()  # as timeit does: a collection would be charged to whoever happens to run
    try:
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                samples[name].append(rivals[name].seconds(loops[name]))
    finally:
        gc.enable()
    return samples


def benchmark(name: str, samples: list[float], metadata: dict[str, str]) -> pyperf.Benchmark:
    return pyperf.Benchmark([pyperf.Run(samples, metadata={"name": name, "unit": "second", **metadata})])


def spread(result: pyperf.Benchmark) -> float:
    """The interquartile range, relative to the median."""
    return (result.percentile(75) - result.percentile(25)) / result.median()
