"""Adds code to a file of executables, or to a compile cache, in child processes that are killed: test_file.py and
test_compile_cache.py start this.

executables_kill.py FILE bytes|together COUNT SEED [PROGRAM]
executables_kill.py FOLDER store COUNT SEED

A child dies when the file that it writes has a size by chance (bytes, store). Or COUNT children add records at once,
and none is killed (together). PROGRAM adds records in place of Python: the one of tests/cpp/append.cpp.
"""

import collections
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from jaxexp import _native
from jaxexp._executables.file import ExecutablesFile, GrowingFile
from kit.dying import assert_died, die_at, forked

SIZE = 200_000  # of the code of a record
ROUNDS = 3
EACH = 10


def code_of(name: str) -> bytes:
    return bytes([len(name)]) * SIZE


class Worker:
    def __init__(self, path: Path, program: str | None) -> None:
        self.path, self.program = path, program

    def add(self, name: str, count: int) -> None:
        """What a child does: adds so many records."""
        if self.program is not None:
            os.execv(self.program, [self.program, str(self.path), name, str(count), str(SIZE)])
        file = GrowingFile(self.path)
        for _ in range(count):
            file.append({"name": name}, {"call": "x" * 1000}, code_of(name))
        os._exit(0)

    def look(self) -> list[str]:
        """The names of the records, all of which are whole."""
        if not self.path.exists():
            return []
        file = ExecutablesFile(self.path)
        for record in file.records:
            assert file.code(record) == code_of(record.conditions["name"])
        return [record.conditions["name"] for record in file.records]

    def leftovers(self) -> int:
        """Bytes in files that nobody knows, which go."""
        found = 0
        for other in self.path.parent.iterdir():
            if other != self.path:
                found += other.stat().st_size
                other.unlink()
        return found

    def completed(self, name: str, count: int) -> None:
        child, ended = forked(lambda: self.add(name, count))
        assert os.waitpid(child, 0)[1] == 0
        os.close(ended)

    def die_at_bytes(self, count: int, source: random.Random) -> dict[str, int]:
        """While the file is made, and while records are added behind others."""
        self.completed("ab", 1)
        first = self.path.stat().st_size
        self.completed("ab", 1)
        step = self.path.stat().st_size - first
        unfinished = 0
        for number in range(count):
            before = number % ROUNDS
            self.path.unlink(missing_ok=True)
            if before:
                self.completed("ab", before)
            start = self.path.stat().st_size if before else 0
            end = start + (step if before else first)
            # The first ones die at the first byte and at the last one.
            size = (start, end - 1)[number // ROUNDS] if number < 2 * ROUNDS else source.randrange(start, end)
            dies_at(size, lambda: self.add("c", 1))
            assert self.look() == ["ab"] * before
            left = self.leftovers() if before == 0 else self.path.stat().st_size - start
            assert left == size - start
            self.completed("abcd", 1)
            assert self.look() == ["ab"] * before + ["abcd"]
            unfinished += left > 0
        return {"died": count, "unfinished": unfinished}

    def together(self, count: int, source: random.Random) -> dict[str, int]:
        """All at once make the file and add to it; whoever looks meanwhile sees whole records."""
        children = [forked(lambda i=i: self.add("x" * i, EACH)) for i in range(1, count + 1)]
        looks, running = 0, {child for child, _ in children}
        while running:
            self.look()
            looks += 1
            for child in list(running):
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    assert status == 0
                    running.remove(child)
        for _, ended in children:
            os.close(ended)
        assert collections.Counter(self.look()) == {"x" * i: EACH for i in range(1, count + 1)}
        assert self.leftovers() == 0
        return {"records": count * EACH, "looks": looks}

    def store(self, count: int, source: random.Random) -> dict[str, int]:
        """Of a compile cache: no entry is left, and whoever waits gets the turn of the dead process."""
        conditions, code = {"function": "f", "arguments": "float32[8]" * 100}, bytes(range(256)) * 400
        store = _native.ExecutableStore(self.path, 1 << 30)
        store.put(conditions, {}, code)
        (entry,) = self.path.iterdir()
        size = entry.stat().st_size
        entry.unlink()

        def add() -> None:
            assert store.turn(conditions) is not None
            store.put(conditions, {}, code)

        for at in [0, size - 1, *(source.randrange(size) for _ in range(count - 2))]:
            dies_at(at, add)
            assert store.find(conditions) is None
            turn = store.turn(conditions)
            assert turn is not None, "the dead process had the turn"
            assert store.put(conditions, {"a": "b"}, code)
            assert store.find(conditions) == ({"a": "b"}, code)
            turn.end()
            for left in self.path.iterdir():
                left.unlink()
        return {"died": count}


def dies_at(size: int, add: Callable[[], None]) -> None:
    """A child that adds something dies when a file of its own has this size."""

    def run() -> None:
        die_at(size)
        add()

    child, ended = forked(run)
    assert_died(child, signal.SIGXFSZ)
    os.close(ended)


if __name__ == "__main__":
    path, how, count, seed, *program = sys.argv[1:]
    worker = Worker(Path(path), program[0] if program else None)
    run = {"bytes": worker.die_at_bytes, "together": worker.together, "store": worker.store}[how]
    for name, times in run(int(count), random.Random(int(seed))).items():
        print(name, times)
