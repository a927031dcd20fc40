"""Whether a call lets other threads run."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

TRIES = 3  # another process may keep the other thread from running


def starves(call: Callable[[], object]) -> bool:
    """Whether another thread gets no turn during most of the CPU time that a call takes in this thread."""
    return all(_longest_turn(call) > 0.5 for _ in range(TRIES))


def _longest_turn(call: Callable[[], object]) -> float:
    """Its part of the whole."""
    clock = time.pthread_getcpuclockid(threading.get_ident())
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.clock_gettime(clock))
            time.sleep(0.0003)

    other = threading.Thread(target=tick)
    other.start()
    while not ticks:
        time.sleep(0.001)
    start = time.clock_gettime(clock)
    try:
        call()
    finally:
        end = time.clock_gettime(clock)
        done.set()
        other.join()
    times = [start, *(tick for tick in ticks if start < tick < end), end]
    return max(later - earlier for earlier, later in itertools.pairwise(times)) / max(end - start, 0.02)
