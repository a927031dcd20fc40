"""Reads files that others change at the same time: test_changing_files.py starts this.

changing_files.py FOLDER load|load_many|archive COUNT SEED

In each trial a file is written, a function is loaded from it, and the file is rewritten, cut, filled with something
else or replaced: before, while or after it is loaded, by another thread. What is loaded is the function that was there,
or there is a clear error; the process goes on.
"""

import collections
import os
import random
import shutil
import sys
import threading
import time
from pathlib import Path

import jaxexp
from jaxexp import Archive, DeserializationError


class Trial:
    def __init__(self, folder: Path, how: str, source: random.Random) -> None:
        self.how, self.source = how, source
        self.path = folder / "now"
        self.kinds = sorted(path.name for path in folder.glob("a-*"))
        self.folder = folder

    def change(self, old: Path, new: Path) -> None:
        data, size = new.read_bytes(), old.stat().st_size
        kind = self.source.choice(["write", "copy", "cut", "cut and grow", "overwrite", "replace", "touch", "append"])
        if kind == "write":
            self.path.write_bytes(data)
        elif kind == "copy":
            shutil.copyfile(new, self.path)
        elif kind == "cut":
            os.truncate(self.path, self.source.randrange(size))
        elif kind == "cut and grow":
            os.truncate(self.path, self.source.randrange(size))
            os.truncate(self.path, size)
        elif kind == "overwrite":
            with open(self.path, "r+b") as file:
                file.seek(self.source.randrange(size))
                file.write(os.urandom(self.source.randrange(1, 1 << 20)))
        elif kind == "replace":
            (self.folder / "next").write_bytes(data)
            os.replace(self.folder / "next", self.path)
        elif kind == "touch":
            os.utime(self.path)
        else:
            with open(self.path, "ab") as file:
                file.write(data)

    def load(self) -> list[jaxexp.Exported]:
        if self.how == "load":
            return [jaxexp.load(self.path, verify=self.source.random() < 0.2)]
        if self.how == "load_many":
            return jaxexp.load_many([self.path] * self.source.randrange(1, 4), workers=2)
        archive = Archive.open(self.path)
        if self.source.random() < 0.5:
            return archive.load_all()
        return [archive[name].load() for name in self.source.sample(list(archive), 2)]

    def run(self, expected: dict[str, list[tuple[bytes, bytes]]]) -> str:
        old, new = (self.folder / name for name in self.source.sample(self.kinds, 2))
        self.path.unlink(missing_ok=True)
        shutil.copyfile(old, self.path)
        concurrent = self.source.random() < 0.7
        delay = self.source.expovariate(1 / 0.001)
        other = threading.Thread(target=lambda: (time.sleep(delay), self.change(old, new)))
        try:
            if concurrent:
                other.start()
            functions = self.load()
            if not concurrent:
                self.change(old, new)
            found = []
            for function in functions:
                modules = [bytes(function.mlir_module_serialized), bytes(function.vjp().mlir_module_serialized)]
                found.append((modules[0], modules[1]))
                assert function.fun_name == "model"
            seen = expected[old.name] + (expected[new.name] if concurrent else [])
            assert all(modules in seen for modules in found), "another function"
            return "loaded"
        except (DeserializationError, OSError):
            return "refused"
        finally:
            if concurrent:
                other.join()


def modules_of(path: Path, how: str) -> list[tuple[bytes, bytes]]:
    functions = Archive.open(path).load_all() if how == "archive" else [jaxexp.load(path)]
    return [(bytes(f.mlir_module_serialized), bytes(f.vjp().mlir_module_serialized)) for f in functions]


def main() -> None:
    folder, how, count, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    trial = Trial(folder, how, random.Random(seed))
    expected = {name: modules_of(folder / name, how) for name in trial.kinds}
    for outcome, times in collections.Counter(trial.run(expected) for _ in range(count)).items():
        print(outcome, times)


if __name__ == "__main__":
    main()
