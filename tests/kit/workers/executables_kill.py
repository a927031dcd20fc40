"""Adds records to a file of executables in child processes that are killed: test_file_kill.py starts this.

executables_kill.py FILE bytes|moments|together COUNT SEED [PROGRAM]

A child dies when the file that it writes has a size by chance (bytes), or is killed at a random moment while others
add to the file, too (moments). Or COUNT children add records at once, and none is killed (together). PROGRAM adds
records in place of Python: the one of tests/cpp/append.cpp.
"""

import collections
import os
import random
import signal
import sys
from pathlib import Path

from jaxexp._executables.file import ExecutablesFile, GrowingFile
from kit.dying import assert_died, die_at, forked, kill_after

SIZE = 200_000  # of the code of a record
ROUNDS = 3


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
        found: collections.Counter[str] = collections.Counter()
        for number in range(count):
            before = number % ROUNDS
            self.path.unlink(missing_ok=True)
            if before:
                self.completed("ab", before)
            start = self.path.stat().st_size if before else 0
            end = start + (step if before else first)
            # The first ones die at the first byte and at the last one.
            size = (start, end - 1)[number // ROUNDS] if number < 2 * ROUNDS else source.randrange(start, end)

            def run(size: int = size) -> None:
                die_at(size)
                self.add("c", 1)

            child, ended = forked(run)
            assert_died(child, signal.SIGXFSZ)
            os.close(ended)
            assert self.look() == ["ab"] * before
            left = self.leftovers() if before == 0 else self.path.stat().st_size - start
            assert left == size - start
            self.completed("abcd", 1)
            assert self.look() == ["ab"] * before + ["abcd"]
            found["died"] += 1
            found["unfinished"] += left > 0
        return found

    def kill_at_moments(self, count: int, source: random.Random) -> dict[str, int]:
        """Readers see whole records, and never fewer than before."""
        names: list[str] = []
        found: collections.Counter[str] = collections.Counter()
        for _ in range(count):
            children = [forked(lambda name=name: self.add(name, 1 << 20)) for name in ("a", "bb")]
            for child, ended in children:
                kill_after(child, ended, source.uniform(0, 0.05))
                now = self.look()
                assert now[: len(names)] == names
                names = now
                assert_died(child, signal.SIGKILL)
                os.close(ended)
                found["died"] += 1
            if len(names) > 200:
                self.path.unlink()
                names = []
            self.leftovers()
        self.completed("last", 1)
        assert self.look()[-1] == "last"
        return found

    def together(self, count: int, source: random.Random) -> dict[str, int]:
        """All at once make the file and add to it; whoever looks meanwhile sees whole records."""
        each = 10
        children = [forked(lambda i=i: self.add("x" * i, each)) for i in range(1, count + 1)]
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
        assert collections.Counter(self.look()) == {"x" * i: each for i in range(1, count + 1)}
        assert self.leftovers() == 0
        return {"records": count * each, "looks": looks}


def main() -> None:
    path, how, count, seed, *program = sys.argv[1:]
    worker = Worker(Path(path), program[0] if program else None)
    run = {"bytes": worker.die_at_bytes, "moments": worker.kill_at_moments, "together": worker.together}[how]
    for name, times in run(int(count), random.Random(int(seed))).items():
        print(name, times)


if __name__ == "__main__":
    main()
