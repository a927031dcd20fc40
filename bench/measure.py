"""Timing of rivals in one process: warm-up, calibrated loops, rounds that alternate between them, medians and spread.

pyperf's Benchmark objects keep the samples, so pyperf computes medians and quartiles, and its commands read the JSON
files (`pyperf stats`, `pyperf hist`). pyperf's Runner is not used: it times one function per worker process, minutes
apart, while the machine drifts. Alternating the rivals in one process cancels most of this drift in the ratio.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyperf


@dataclass(frozen=True)
class Effort:
    """The time for one cell: seconds per sample, most and fewest samples, seconds for all rivals."""

    sample: float
    samples: int
    total: float
    fewest: int = 3
    warm: bool = True

    def scaled(self, factor: float) -> Effort:
        return Effort(self.sample, self.samples, self.total * factor, self.fewest, self.warm)


FULL = Effort(sample=0.01, samples=25, total=5.0)
ZERO = 1e-9  # stands for no bytes at all: pyperf takes only positive samples
QUICK = Effort(sample=0.001, samples=5, total=0.25)


@dataclass(frozen=True)
class Rival:
    """Something to time.

    `prepare` runs before each `run`, is not timed, and passes its result to `run`. `finish` gets the last result and is
    timed: it waits for work that `run` only started.
    """

    run: Callable[..., object]
    finish: Callable[[Any], object] | None = None
    prepare: Callable[[], object] | None = None

    def once(self) -> object:
        return self.run() if self.prepare is None else self.run(self.prepare())

    def warm_up(self) -> None:
        """A run that is not timed, unless each one is prepared, and so is not a repetition."""
        if self.prepare is None:
            self.sample(1)

    def sample(self, loops: int) -> float:
        """Seconds per run, over `loops` runs in a row."""
        run, result = self.run, None
        if self.prepare is not None:
            prepared = self.prepare()
            start = time.perf_counter()
            result = run(prepared)
        else:
            start = time.perf_counter()
            for _ in range(loops):
                result = run()
        if self.finish is not None:
            self.finish(result)
        return (time.perf_counter() - start) / loops

    def plan(self, effort: Effort) -> tuple[int, float]:
        """How many loops make a sample, and how many seconds it takes, after a warm-up."""
        if effort.warm:
            self.sample(1)  # the first run compiles and fills caches
        start = time.perf_counter()
        once = self.sample(1)
        if self.prepare is not None:
            return 1, time.perf_counter() - start
        if once >= effort.sample:
            return 1, once
        loops = round(effort.sample / once)
        once = self.sample(loops)
        loops = max(1, round(effort.sample / once))
        return loops, once * loops


@dataclass(frozen=True)
class Reading:
    """A rival that is not timed: `read` returns the sample, such as a number of bytes. `stop` ends a process that stays
    between samples.
    """

    read: Callable[[], float]
    stop: Callable[[], object] = lambda: None

    def warm_up(self) -> None:
        pass

    def sample(self, loops: int) -> float:
        return max(ZERO, self.read())

    def plan(self, effort: Effort) -> tuple[int, float]:
        start = time.perf_counter()
        if effort.warm:
            self.read()
        return 1, time.perf_counter() - start


def put_together() -> None:
    """Has glibc put together the small blocks that were freed, which it would do at the next block of this size,
    whoever asks for it: after thousands of them, that takes milliseconds.
    """
    bytearray(1 << 16)


def alternate(rivals: Mapping[str, Rival | Reading], effort: Effort) -> dict[str, list[float]]:
    """Samples of each rival, equally many, taken in turns.

    A run that is not timed comes before each sample: what other rivals did to caches and to free memory does not count.
    """
    plans = {name: rival.plan(effort) for name, rival in rivals.items()}
    in_a_round = sum(seconds for _, seconds in plans.values())
    rounds = max(effort.fewest, min(effort.samples, int(effort.total / max(in_a_round, 1e-9))))

    samples: dict[str, list[float]] = {name: [] for name in rivals}
    names = list(rivals)
    gc.collect()
    gc.freeze()  # the collections below skip what exists already
    gc.disable()  # like timeit: a collection would count against the rival that happens to run
    try:
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                gc.collect()
                put_together()
                if effort.warm:
                    rivals[name].warm_up()
                samples[name].append(rivals[name].sample(plans[name][0]))
    finally:
        gc.enable()
        gc.unfreeze()
    return samples


def in_a_row(runs: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """Several runs as one; a single one as it is."""
    if len(runs) == 1:
        return runs[0]

    def all_of_them() -> None:
        for run in runs:
            run()

    return all_of_them


def benchmark(name: str, samples: Sequence[float], metadata: Mapping[str, str | int]) -> pyperf.Benchmark:
    rounded = [float(f"{sample:.6g}") for sample in samples]
    return pyperf.Benchmark([pyperf.Run(rounded, metadata={"name": name, **metadata}, collect_metadata=False)])


def spread(result: pyperf.Benchmark) -> float:
    """The interquartile range, relative to the median."""
    if result.get_nvalue() < 2:
        return 0.0
    return (result.percentile(75) - result.percentile(25)) / result.median()
