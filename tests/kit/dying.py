"""Child processes that end in the middle of what they do, for the workers that look at what is left behind."""

import os
import resource
import select
import signal
from collections.abc import Callable


def forked(run: Callable[[], None]) -> tuple[int, int]:
    """A child process that runs this, and the end of a pipe that is its standard output."""
    ended, held = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ended)
        os.dup2(held, 1)
        try:
            run()
        finally:
            os._exit(1)
    os.close(held)
    return child, ended


def die_at(size: int) -> None:
    """From now on the kernel ends this process when a file of its own would grow beyond this size.

    The bytes up to there are written. So a process dies at a byte and not at a time, on any disk; as with SIGKILL,
    none of its code runs afterwards.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def kill_after(child: int, ended: int, seconds: float) -> None:
    """Kills it from outside, wherever it is by then; the child holds the other end of the pipe, and does not end."""
    select.select([ended], [], [], seconds)
    os.kill(child, signal.SIGKILL)


def assert_died(child: int, of: signal.Signals) -> None:
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the child ended by itself, status {status}"
    assert os.WTERMSIG(status) == of
