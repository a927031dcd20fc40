"""Processes that end in the middle of what they do."""

import resource
import signal


def die_at(size: int) -> None:
    """From now on the kernel ends this process when a file of its own would grow beyond this size.

    The bytes up to there are written. So a process dies at a byte and not at a time, on any disk; as with SIGKILL,
    none of its code runs afterwards.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
