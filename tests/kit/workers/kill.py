"""Saves two artifacts over one file again and again in child processes that are killed: test_kill.py starts this.

kill.py FOLDER OLD NEW bytes COUNT SEED      when the new file has a size by chance
kill.py FOLDER OLD NEW steps                 in front of each step that the system is asked for
kill.py FOLDER OLD NEW moments COUNT SEED    at random moments, by another process
"""

import collections
import itertools
import os
import random
import re
import signal
import sys

import jaxexp
from kit.dying import assert_died, die_at, forked, kill_after


def main() -> None:
    folder, old, new, how, *rest = sys.argv[1:]
    path = os.path.join(folder, "artifact")
    exports = jaxexp.load(old), jaxexp.load(new)
    versions = {bytes(exported.serialize()): name for exported, name in zip(exports, ("old", "new"), strict=True)}
    assert len(versions) == 2
    exports[0].save(path)
    found: collections.Counter[str] = collections.Counter()

    def look(child: int, of: signal.Signals = signal.SIGKILL) -> tuple[str, list[int]]:
        """Which version is there, and the sizes of what else is left."""
        assert_died(child, of)
        with open(path, "rb") as file:
            version = versions[file.read()]  # a KeyError is a third thing
        found[version] += 1
        jaxexp.load(path)
        sizes = []
        for name in set(os.listdir(folder)) - {"artifact"}:
            left = os.path.join(folder, name)
            assert re.fullmatch(r"\.[0-9a-f]{16}\.tmp", name), name
            sizes.append(os.path.getsize(left))
            os.unlink(left)  # hundreds of them would fill the disk
        return version, sizes

    def save_and_die(complete: int, size: int) -> None:
        """Saves the new one, the old one, ... so many times, and dies at this size of the next one."""
        for exported in itertools.islice(itertools.cycle(reversed(exports)), complete):
            exported.save(path)
        die_at(size)
        exports[(complete + 1) % 2].save(path)

    def save_forever() -> None:
        for exported in itertools.cycle(reversed(exports)):
            exported.save(path)

    if how == "bytes":
        count, seed = map(int, rest)
        source = random.Random(seed)
        lengths = {name: len(blob) for blob, name in versions.items()}
        for number in range(count):
            complete = source.randrange(3)
            whole = lengths[("new", "old")[complete % 2]]
            # The first two die at the first byte and at the last one.
            size = (0, whole - 1, source.randrange(whole))[min(number, 2)]
            exports[0].save(path)
            child, ended = forked(lambda complete=complete, size=size: save_and_die(complete, size))
            there, sizes = look(child, signal.SIGXFSZ)
            assert (there, sizes) == (("old", "new")[complete % 2], [size])
            found["partial"] += 1
            os.close(ended)
    elif how == "moments":
        count, seed = map(int, rest)
        source = random.Random(seed)
        for _ in range(count):
            child, ended = forked(save_forever)
            kill_after(child, ended, source.uniform(0, 0.02))
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
