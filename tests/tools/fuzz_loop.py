"""What fuzzers that are written in Python do on the command line: ``SECONDS [SEED]``."""

from __future__ import annotations

import collections
import signal
import time
from collections.abc import Callable, Sequence


def fuzz_for(
    arguments: Sequence[str], batch: int, run: Callable[[int, int], collections.Counter[str]], worst: Sequence[float]
) -> None:
    """Runs batches of inputs until the time is over, and prints what came out.

    Args:
        arguments: the seconds, and the first seed if it matters.
        batch: how many inputs are in a batch.
        run: given a seed and a number of inputs, looks at these; returns how many had which outcome.
        worst: holds the largest part of what a run is allowed to cost, as `run` leaves it.
    """
    seconds = float(arguments[0])
    seed = int(arguments[1]) if len(arguments) > 1 else 1_000_000
    end = time.monotonic() + seconds
    total: collections.Counter[str] = collections.Counter()
    while time.monotonic() < end:
        signal.alarm(600)  # a hang ends the process
        total += run(seed, batch)
        seed += batch
    signal.alarm(0)
    print(f"Done {total.total()} runs in {seconds:.0f} second(s): {dict(total)}, cost: {worst[0]:.3f}")
