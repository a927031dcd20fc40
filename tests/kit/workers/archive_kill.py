"""Changes an archive again and again in child processes that are killed: test_archive_sections.py starts this.

archive_kill.py ARCHIVE FOLDER-OF-ARTIFACTS create|append|append-to-many|compact bytes|moments COUNT SEED

To many: to so many members that only changes are written. A child dies when the file that it writes has a size by
chance (bytes), or is killed at a random moment (moments). Some of the artifacts have weights beside them.
"""

import os
import random
import signal
import sys
from pathlib import Path

from jaxexp import Archive
from kit.dying import assert_died, die_at, forked, kill_after

ROUNDS = 3  # what a child may complete before it dies, and the round in which it does


class Worker:
    def __init__(self, archive: Path, folder: Path, how: str) -> None:
        self.path, self.how = archive, how.removesuffix("-to-many")
        self.artifacts = {file.stem: file for file in folder.glob("*.jaxexp")}
        times = 60 if how == "append-to-many" else 1
        self.old = {f"old/{name}/{i}": self.artifacts[name] for name in self.artifacts for i in range(times)}
        self.create()

    def create(self) -> None:
        with Archive.create(self.path) as writer:
            for name, artifact in self.old.items():
                writer.add_file(name, artifact)

    def round(self, number: int) -> None:
        """What a child does again and again."""
        if self.how == "compact":
            Archive.compact(self.path)
        elif self.how == "create":
            self.create()
        else:
            with Archive.append(self.path) as writer:
                for name, artifact in self.artifacts.items():
                    writer.add_file(f"{number}/{name}", artifact)
                if number:
                    writer.remove(*(f"{number - 1}/{name}" for name in self.artifacts))

    def restore(self) -> None:
        """Takes out what was added, as the next child begins with the same numbers."""
        with Archive.open(self.path) as archive:
            added = [name for name in archive if name not in self.old]
        if added:
            with Archive.append(self.path) as writer:
                writer.remove(*added)
            Archive.compact(self.path)

    def sizes(self) -> list[tuple[int, int]]:
        """For each round, from which size to which one the file grows that it writes."""
        found = []
        for number in range(ROUNDS):
            before = self.path.stat().st_size if self.how == "append" else 0
            self.round(number)
            found.append((before, self.path.stat().st_size))
        self.restore()
        return found

    def look(self) -> tuple[bool, int]:
        """Whether there is what a child added; and how many bytes there are of what it did not complete."""
        with Archive.open(self.path) as left:
            assert left.verify() == {}
            for name, handle in left.items():
                artifact = self.artifacts[name.split("/")[1]]
                assert handle.read() == artifact.read_bytes()
                assert (handle.stored_weights() is not None) == artifact.with_suffix(".safetensors").exists()
            added = [name for name in left if name not in self.old]
            assert self.old.keys() <= set(left)
            unfinished = left.unfinished_bytes
        assert len(added) in (0, len(self.artifacts)), "all that was added at once is there, or nothing"
        for file in self.path.parent.iterdir():
            if file != self.path:
                unfinished += file.stat().st_size
                file.unlink()
        return bool(added), unfinished

    def die_at_bytes(self, count: int, source: random.Random) -> int:
        """Of how many children something was left unfinished."""
        Archive.compact(self.path)
        sizes, unfinished = self.sizes(), 0

        def run(complete: int, size: int) -> None:
            for number in range(complete):
                self.round(number)
            die_at(size)
            self.round(complete)

        for number in range(count):
            complete = source.randrange(ROUNDS)
            first, end = sizes[complete]
            # The first two die at the first byte and at the last one.
            size = (first, end - 1, source.randrange(first, end))[min(number, 2)]
            child, ended = forked(lambda complete=complete, size=size: run(complete, size))
            assert_died(child, signal.SIGXFSZ)
            os.close(ended)
            assert self.look() == (self.how == "append" and complete > 0, size - first)
            unfinished += size > first
            self.restore()
        return unfinished

    def kill_at_moments(self, count: int, source: random.Random) -> int:
        def run() -> None:
            for number in range(1 << 30):
                self.round(number)

        for _ in range(count):
            child, ended = forked(run)
            kill_after(child, ended, source.uniform(0, 0.05))
            assert_died(child, signal.SIGKILL)
            os.close(ended)
            self.look()
            self.restore()
        return count


if __name__ == "__main__":
    archive, folder, how, where, count, seed = sys.argv[1:]
    worker = Worker(Path(archive), Path(folder), how)
    kill = {"bytes": worker.die_at_bytes, "moments": worker.kill_at_moments}[where]
    print(kill(int(count), random.Random(int(seed))))
