"""The promise about cost: what reading n bytes may take, whatever they are."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path

SECONDS, SECONDS_PER_BYTE = 1.0, 2e-6
MEMORY, MEMORY_PER_BYTE = 64 << 20, 64

# What the loop below takes on the machine that the promise is about, in CPU seconds.
_CALIBRATED = 0.06


def slowness() -> float:
    """How many times slower than that machine this one is now; 1 where it is not."""

    def loop() -> float:
        start = time.process_time()
        made: dict[int, tuple[int, str]] = {}
        for i in range(150_000):
            made[i] = (i, str(i))
        sum(number for number, _ in made.values())
        return time.process_time() - start

    return max(1.0, min(loop() for _ in range(3)) / _CALIBRATED)


def allowed_seconds(size: int, slowness: float) -> float:
    """Of CPU."""
    return slowness * (SECONDS + SECONDS_PER_BYTE * size)


def allowed_memory(size: int) -> int:
    """In bytes, beside what was there before."""
    return MEMORY + MEMORY_PER_BYTE * size


def kilobytes(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def measured(action: Callable[[], object]) -> tuple[object, float, int]:
    """What an action returns, its CPU seconds, and by how many bytes memory grew at its peak (0 if not known)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # what earlier actions left would hide what this one takes
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")
    before, start = kilobytes("VmRSS"), time.process_time()
    result = action()
    return result, time.process_time() - start, max(0, kilobytes("VmHWM") - before) * 1024
