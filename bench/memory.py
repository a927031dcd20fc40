"""Peak memory of one run: the kernel's high-water mark of this process, reset before the run; only on Linux."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path

HOW = (
    "the highest resident memory of the process in one more run, minus its resident memory before (VmHWM, "
    "reset through /proc/self/clear_refs; free memory goes back to the system first)"
)
_PROCESS = Path("/proc/self")


def peak_of(run: Callable[[], object]) -> int | None:
    """Bytes that a run needs at its peak, beyond those in use before it; None if the system cannot tell."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # else the run would be served from memory that was freed before
    try:
        (_PROCESS / "clear_refs").write_text("5")
        before = _high_water_mark()
        result = run()  # what it returns is alive until the mark is read
        peak = _high_water_mark() - before
    except OSError:
        return None
    del result
    return max(0, peak)


def gibibytes() -> int:
    """How much memory the machine has; 0 if the system cannot tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    except (AttributeError, OSError, ValueError):
        return 0


def _high_water_mark() -> int:
    for line in (_PROCESS / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("the kernel does not tell VmHWM")
