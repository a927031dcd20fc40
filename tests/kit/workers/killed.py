"""Lets writers change a folder in processes that die, and looks at what is left: fleet/test_killed.py starts this.

killed.py FOLDER WAY COUNT SEED WRITER...

A process dies when a file of its own has a size by chance (WAY is "bytes"), or in front of each step that concerns the
folder ("steps"). Then what was there is there and whole, or what the change makes; and the change can be repeated.
Prints for each writer how many processes died, and after how many of them the change was complete.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

import jaxexp
from jaxexp import _native
from jaxexp._cli import app
from jaxexp._executables.file import ExecutablesFile, GrowingFile
from kit.archives import blob
from kit.weighted import bound

LARGE = int(os.environ.get("JAXEXP_KILLED_LARGE", "10000"))  # bytes: with more, a child is killed while it writes
FAILED = 99


class Writer:
    """What is in a folder, and a change of it. The folder is the current one in all of these."""

    before: dict[str, bytes]
    after: dict[str, bytes]
    ends_the_process = False  # the change does

    def make(self) -> None:
        """What is there before."""

    def change(self) -> None:
        raise NotImplementedError

    def is_changed(self) -> bool:
        """Each file is as before or as after it, and none is missing."""
        there = self.left()
        for name, data in there.items():
            assert data in (self.before.get(name), self.after.get(name)), name
        assert there.keys() >= self.before.keys() & self.after.keys(), "nothing is lost"
        return there == self.after

    def left(self) -> dict[str, bytes]:
        """The files that are there; nothing else may be, unless it is hidden."""
        there = contents()
        assert there.keys() <= self.before.keys() | self.after.keys()
        return there


def contents() -> dict[str, bytes]:
    """Of files that are not hidden; a journal is for the next run only."""
    found = (path for path in Path().rglob("*") if path.is_file() and path.name[0] != "." and path.name != "journal")
    return {str(path): path.read_bytes() for path in found}


def artifact(number: int) -> jaxexp.Exported:
    constant = np.random.default_rng(number).standard_normal((50, LARGE // 200)).astype(np.float32)
    return jaxexp.export(jax.jit(lambda x: x @ constant))(constant.T)


class Saving(Writer):
    def make(self) -> None:
        artifact(1).save("f.jaxexp")
        artifact(2).save(".new")

    def change(self) -> None:
        jaxexp.load(".new").save("f.jaxexp")


class SavingWeights(Writer):
    """In files of their own, each of which may be new: the program has its own weights."""

    def make(self) -> None:
        Path(".new").mkdir()
        for value, path in ((1.0, "f.jaxexp"), (2.0, ".new/f.jaxexp")):
            weights = {"a": np.full((8, LARGE // 32), value, np.float32), "b": np.full(8, value, np.float32)}
            exported = jaxexp.export(jax.jit(lambda x, w=weights: w["a"][:, 0] + w["b"] * x), weights=weights)(
                np.float32(1)
            )
            exported.save(path, metadata={"value": value}, max_weights_file_size=LARGE)

    def change(self) -> None:
        new = jaxexp.load(".new/f.jaxexp")
        new.save("f.jaxexp", metadata=new.metadata, max_weights_file_size=LARGE)

    def is_changed(self) -> bool:
        self.left()
        jaxexp.verify("f.jaxexp")
        return bool(jaxexp.load("f.jaxexp").metadata["value"] == 2)


class Archiving(Writer):
    """An archive of artifacts of some size, one of which has weights, is created again, added to or compacted."""

    def __init__(self, how: str) -> None:
        self.how = how.removesuffix(" to many")
        self.times = 100 if how.endswith("to many") else 1  # over 1,000 members: only changes are written

    def make(self) -> None:
        Path("artifacts").mkdir()
        for i in range(10):
            artifact(i).save(f"artifacts/{i}.jaxexp")
        bound(2)[0].save("artifacts/weighted.jaxexp")
        self.create(self.times)
        with jaxexp.Archive.append("a.zip") as writer:
            writer.add("removed", blob())
        with jaxexp.Archive.append("a.zip") as writer:
            writer.remove("removed")

    def create(self, times: int) -> None:
        with jaxexp.Archive.create("a.zip") as writer:
            self.add(writer, *map(str, range(times)))

    def add(self, writer: jaxexp.ArchiveWriter, *prefixes: str) -> None:
        for prefix, path in itertools.product(prefixes, sorted(Path("artifacts").glob("*.jaxexp"))):
            writer.add_file(f"{prefix}/{path.stem}", path)

    def change(self) -> None:
        if self.how == "compact":
            jaxexp.Archive.compact("a.zip")
        elif self.how == "create":
            self.create(2)
        else:
            with jaxexp.Archive.append("a.zip") as writer:
                self.add(writer, "new")
                writer.remove("0/1")

    def is_changed(self) -> bool:
        with jaxexp.Archive.open("a.zip") as archive:
            assert archive.verify() == {}
            for name, handle in archive.items():
                path = Path("artifacts", name.split("/")[1]).with_suffix(".jaxexp")
                assert handle.read() == path.read_bytes()
                assert (handle.stored_weights() is not None) == path.with_suffix(".safetensors").exists()
            old = {f"{i}/{path.stem}" for i in range(self.times) for path in Path("artifacts").glob("*.jaxexp")}
            added, removed = set(archive) - old, old - set(archive)
        if self.how == "compact":
            assert not added | removed
            return self.left()["a.zip"] == self.after["a.zip"]
        self.left()
        assert len(added) in (0, 11), "all that was added at once is there, or nothing"
        assert len(removed) == (self.how == "append" and bool(added))
        return bool(added)


class AddingCode(Writer):
    """To a file of executables, or the first code in one; PROGRAM is tests/cpp/append.cpp."""

    size = 20 * LARGE

    def __init__(self, records: int, program: str | None = None) -> None:
        self.records, self.program = records, program
        self.ends_the_process = program is not None

    def make(self) -> None:
        for _ in range(self.records):
            self.append("old")

    def append(self, name: str) -> None:
        GrowingFile(Path("f.exe")).put({"name": name}, {"call": "x" * 1000}, bytes([len(name)]) * self.size)

    def change(self) -> None:
        if self.program is None:
            self.append("newer")
        else:
            os.execv(self.program, [self.program, "f.exe", "newer", "1", str(self.size)])

    def is_changed(self) -> bool:
        file = ExecutablesFile(Path("f.exe")) if "f.exe" in self.left() else None
        records = file.records if file else []
        names = [record.conditions["name"] for record in records]
        for name, record in zip(names, records, strict=True):
            assert file.code(record) == bytes([len(name)]) * self.size
        assert names[: self.records] == ["old"] * self.records
        assert set(names[self.records :]) <= {"newer"}
        return len(names) > self.records


class CachingCode(Writer):
    """Whoever dies leaves no entry in a compile cache, and its turn to others."""

    conditions, code = {"function": "f", "arguments": "float32[8]" * 100}, bytes(range(256)) * 400

    def change(self) -> None:
        store = _native.ExecutableStore(Path("cache"), 1 << 30)
        turn = store.turn(self.conditions)
        assert turn is not None
        store.put(self.conditions, {"a": "b"}, self.code)
        turn.end()

    def is_changed(self) -> bool:
        found = _native.ExecutableStore(Path("cache"), 1 << 30).find(self.conditions)
        assert found in (None, ({"a": "b"}, self.code))
        return found is not None


class Command(Writer):
    """Artifacts, archives, and a folder in which something else is written over."""

    def __init__(self, command: str) -> None:
        self.command = command

    def make(self) -> None:
        Path("models/inner").mkdir(parents=True)
        for number, name in enumerate(("1", "2", "inner/3")):
            artifact(number).save(f"models/{name}.jaxexp")
        with jaxexp.Archive.create("old.zip") as archive:
            archive.add("old", blob())
        with jaxexp.Archive.create("weighted.zip") as archive:
            archive.add("a", blob())
            archive.add("m", bound()[0])
        Path("out").mkdir()
        for name in ("a", "m", "there"):
            Path("out", f"{name}.jaxexp").write_bytes(blob(version=7))

    def change(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert app.run(self.command.split()) == 0


WRITERS: dict[str, Callable[[], Writer]] = {
    "save": Saving,
    "save weights": SavingWeights,
    **{f"archive: {how}": lambda how=how: Archiving(how) for how in ("create", "append", "append to many", "compact")},
    "executables": lambda: AddingCode(0),
    "more executables": lambda: AddingCode(2),
    "compile cache": CachingCode,
    **{
        command: lambda command=command: Command(command)
        for command in (
            "pack --force old.zip models",
            "migrate --force --to 0.7.2 weighted.zip::a out/there.jaxexp",
            "migrate --force --to 0.7.2 out/a.jaxexp out/a.jaxexp",
            "migrate --force weighted.zip out --journal journal",
            "migrate --force --to 0.7.2 out out --journal journal",
            "unpack --force weighted.zip -d out",
        )
    },
}


def result(run: Callable[[], object]) -> int:
    """How a process that runs this ends: what it returned, or minus a signal."""
    if (child := os.fork()) == 0:
        status = FAILED
        try:
            status = int(bool(run()))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status != FAILED
    return status


def here(run: Callable[[], object]) -> bool:
    """What this returns in a process of its own. So XLA never runs in the one that forks."""
    return bool(result(run))


def die_at(size: int) -> None:
    """From now on the kernel ends this process when a file of its own would grow beyond this size.

    The bytes up to there are written. So a process dies at a byte and not at a time, on any disk; as with SIGKILL,
    none of its code runs afterwards.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def dies_at_bytes(writer: Writer, count: int, source: random.Random) -> Iterator[Callable[[], None]]:
    appended = {name for name, data in writer.after.items() if data.startswith(writer.before.get(name) or b"\0no")}
    written = [name for name, data in writer.after.items() if writer.before.get(name) != data]
    largest = max(written, key=lambda name: len(writer.after[name]))
    first, end = len(writer.before[largest]) if largest in appended else 0, len(writer.after[largest])
    for number in range(count):
        size = (first, end - 1, source.randrange(first, end))[min(number, 2)]

        def run(size: int = size) -> None:
            die_at(size)
            writer.change()

        def die() -> None:
            assert result(run) == -signal.SIGXFSZ, "it wrote no such file"

        yield die


def dies_at_steps(writer: Writer, count: int, source: random.Random) -> Iterator[Callable[[], None]]:
    """In front of each audit event of Python about a file of the folder."""
    ended, folder = list[bool](), Path.cwd()

    def run(number: int) -> None:
        steps = itertools.count(1)

        def on_event(event: str, args: tuple[object, ...]) -> None:
            if not event.startswith(("open", "os.")) or not isinstance(args[0], (str, bytes)):
                return
            if Path(os.fsdecode(args[0])).absolute().is_relative_to(folder) and next(steps) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(on_event)
        writer.change()

    def die(number: int) -> None:
        if result(lambda: run(number)) == 0:
            ended.append(True)

    for number in itertools.count(1):
        yield lambda number=number: die(number)
        if ended:
            return


WAYS = {"bytes": dies_at_bytes, "steps": dies_at_steps}


def run(name: str, way: str, count: int, seed: int) -> None:
    """Leaves a folder with what was there `before`, and one that a change was tried in."""
    writer = AddingCode(1, name) if name.endswith("/append") else WRITERS[name]()
    for part in ("before", "there"):
        Path(name.replace("/", " "), part).mkdir(parents=True)
    os.chdir(Path(name.replace("/", " "), "before"))
    here(writer.make)
    writer.before = contents()

    def restore() -> None:
        os.chdir("..")
        shutil.rmtree("there")
        shutil.copytree("before", "there")
        os.chdir("there")

    restore()
    # Once in this process, so that none of its children imports what it takes.
    here(writer.change) if writer.ends_the_process else writer.change()
    writer.after = contents()
    writer.is_changed()
    restore()
    changed = []
    for die in WAYS[way](writer, count, random.Random(seed)):
        restore()
        die()
        changed.append(here(writer.is_changed))
        if not changed[-1]:
            here(writer.change)
            assert here(writer.is_changed), "it can be repeated"
    assert way != "steps" or changed == sorted(changed), "nothing goes back"
    print(f"{name}\t{len(changed)}\t{sum(changed)}", flush=True)


def main() -> None:
    folder, way, count, seed, *names = sys.argv[1:]
    os.chdir(folder)
    for name in names:
        here(lambda name=name: run(name, way, int(count), int(seed)))


if __name__ == "__main__":
    main()
