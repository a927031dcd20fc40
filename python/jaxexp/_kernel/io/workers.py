"""The number of threads that work at once."""

from __future__ import annotations

import contextlib
import os

from jaxexp._errors import ExportError, ExportTypeError

_MOST = 2**31 - 1  # that the native module can be asked for


def worker_count(workers: int | None) -> int:
    """The number of threads for a `workers` argument: None means one for each CPU that the process may use.

    Raises:
        ExportError: it is not a number of threads. The error is also a TypeError if it is not an int.
    """
    if workers is None:
        with contextlib.suppress(AttributeError):  # not on every system
            return max(1, len(os.sched_getaffinity(0)))
        return os.cpu_count() or 1
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise ExportTypeError(f"workers has to be a number of threads, or None, found {workers!r}")
    if workers < 1:
        raise ExportError(f"workers has to be a number of threads, at least 1, found {workers}")
    return min(workers, _MOST)
