"""Saves two artifacts over one file again and again in child processes that are killed: test_kill.py starts this.

kill.py FOLDER OLD NEW moments COUNT SEED    at random moments, by another process
kill.py FOLDER OLD NEW steps                 in front of each step that the system is asked for
"""

import collections
import itertools
import os
import random
import re
import select
import signal
import sys
from collections.abc import Callable

import jaxexp


def main() -> None:
    folder, old, new, how, *rest = sys.argv[1:]
    path = os.path.join(folder, "artifact")
    exports = jaxexp.load(old), jaxexp.load(new)
    versions = {bytes(exported.serialize()): name for exported, name in zip(exports, ("old", "new"), strict=True)}
    assert len(versions) == 2
    exports[0].save(path)
    found: collections.Counter[str] = collections.Counter()

    def look(child: int) -> None:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"the child ended by itself, status {status}"
        assert os.WTERMSIG(status) == signal.SIGKILL
        with open(path, "rb") as file:
            found[versions[file.read()]] += 1  # a KeyError is a third thing
        jaxexp.load(path)
        for name in set(os.listdir(folder)) - {"artifact"}:
            left = os.path.join(folder, name)
            assert re.fullmatch(r"\.[0-9a-f]{16}\.tmp", name), name
            found["partial"] += os.path.getsize(left) not in map(len, versions)
            os.unlink(left)  # hundreds of them would fill the disk

    def save_forever() -> None:
        for exported in itertools.cycle(reversed(exports)):
            exported.save(path)

    if how == "moments":
        count, seed = map(int, rest)
        source = random.Random(seed)
        for _ in range(count):
            child, ended = forked(save_forever)
            select.select([ended], [], [], source.uniform(0, 0.02))  # the child holds the other end, and does not end
            os.kill(child, signal.SIGKILL)
            look(child)
            os.close(ended)
    else:
        for step in itertools.count(1):
            events: list[str] = []
            child, ended = forked(lambda step=step: save_until(step, exports[1], path))
            with os.fdopen(ended) as pipe:
                events = pipe.read().split()
            if events[-1] == "done":
                os.waitpid(child, 0)
                break
            look(child)
            print("step", events[-1])
            exports[0].save(path)
    for name, count in found.items():
        print(name, count)


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


def save_until(step: int, exported: jaxexp.Exported, path: str) -> None:
    """Saves, and is killed in front of the step of this number."""
    steps = itertools.count(1)

    def on_event(event: str, args: tuple[object, ...]) -> None:
        if (event == "open" or event.startswith("os.")) and next(steps) == step:
            os.write(1, f"{event}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(on_event)
    exported.save(path)
    os.write(1, b"done\n")
    os._exit(0)


if __name__ == "__main__":
    main()
