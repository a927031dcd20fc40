"""Thousands of artifacts: opening an archive, one signature, loading all, verifying all, and the memory for it."""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import random
import shutil
import time
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from bench import disk, floors
from bench.agree import exported_differences
from bench.bench_load import signature
from bench.cases import Case
from bench.fleet import Fleet
from bench.measure import Reading, Rival
from bench.processes import alone, json_of
from bench.program import Program
from bench.question import Question, Trial
from bench.results import ORACLE, SUBJECT

_SAMPLE = 100  # how many functions are compared when not all are
_THREADS = os.cpu_count() or 1


def _is_fleet(case: Case) -> bool:
    return case.family == "fleet"


def _fleet(program: Program) -> Fleet:
    assert isinstance(program, Fleet)
    return program


# Ways to load all functions of a fleet. Each takes a library and a path, so that a new process can run it by name.


def _from_archive(library: ModuleType, path: Path) -> list[Any]:
    loaded: list[Any] = library.Archive.open(path).load_all()
    return loaded


def _looked_at(library: ModuleType, path: Path) -> list[Any]:
    loaded = _from_archive(library, path)
    for exported in loaded:
        vars(exported)
    return loaded


def _in_threads(library: ModuleType, path: Path, workers: int) -> list[Any]:
    loaded: list[Any] = library.Archive.open(path).load_all(workers=workers)
    return loaded


def _from_files(library: ModuleType, folder: Path) -> list[Any]:
    return [library.deserialize(path.read_bytes()) for path in _sorted(folder)]


def _from_zip(library: ModuleType, path: Path) -> list[Any]:
    with zipfile.ZipFile(path) as archive:
        return [library.deserialize(archive.read(name)) for name in archive.namelist()]


def _members(library: ModuleType, folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in _sorted(folder)]


def _handles(library: ModuleType, path: Path) -> Any:
    archive = library.Archive.open(path)
    return archive, [archive[name] for name in archive]


def _zip_directory(library: ModuleType, path: Path) -> Any:
    return zipfile.ZipFile(path)


def _sorted(folder: Path) -> list[Path]:
    return [folder / name for name in sorted(os.listdir(folder))]


# In new processes.

_CHILD = """
import importlib, json, sys
from bench import bench_fleet
measure, way, name, path = json.loads(sys.argv[1])
print(json.dumps(getattr(bench_fleet, measure)(getattr(bench_fleet, way), importlib.import_module(name), path)))
"""


def _in_a_new_process(measure: Callable[..., Any], way: Callable[..., Any], library: ModuleType, path: Path) -> Any:
    return json_of(_CHILD, [measure.__name__, way.__name__, library.__name__, str(path)])


def _seconds_of(way: Callable[..., Any], library: ModuleType, path: str) -> float:
    library.deserialize  # noqa: B018  (jaxexp imports its own code when it is asked for a name)
    start = time.perf_counter()
    loaded = way(library, Path(path))
    seconds = time.perf_counter() - start
    del loaded
    return seconds


def _seconds_of_verification(way: Callable[..., Any], library: ModuleType, path: str) -> float:
    members = way(library, Path(path))
    start = time.perf_counter()
    verified = _verified(members)
    seconds = time.perf_counter() - start
    del verified
    return seconds


def _growth_of(way: Callable[..., Any], library: ModuleType, path: str) -> dict[str, int]:
    """How much resident memory grows while a way's result is kept, by the kernel's names."""
    gc.collect()
    before = _resident()
    kept = way(library, Path(path))
    gc.collect()
    after = _resident()
    del kept
    return {name: after[name] - before[name] for name in after}


def _resident() -> dict[str, int]:
    status = Path("/proc/self/status").read_text()
    lines = (line.partition(":") for line in status.splitlines())
    return {name: 1024 * int(value.split()[0]) for name, _, value in lines if name in ("VmRSS", "RssAnon", "RssFile")}


# Trials.


def _verified(members: list[bytes]) -> list[Any]:
    from jaxexp import _native

    return list(map(_native.Artifact, members))


def _verification(fleet: Fleet, library: ModuleType) -> dict[str, Rival]:
    """What only jaxexp does."""
    if library.__name__ != "jaxexp":
        return {}
    members = _members(library, fleet.folder(library))
    return {"verify": Rival(lambda: _verified(members))}


def _open_trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    fleet = _fleet(program)
    path, zipped = fleet.archive(subject), fleet.zipped(subject)

    def opened() -> int:
        with subject.Archive.open(path) as archive:
            return len(archive)

    def opened_zip() -> int:
        with zipfile.ZipFile(zipped) as archive:
            return len(archive.namelist())

    def wrong() -> list[str]:
        with subject.Archive.open(path) as archive:
            return [] if list(archive) == list(fleet.names) and opened() == opened_zip() else ["names"]

    return Trial(subject=Rival(opened), oracle=Rival(opened_zip), wrong=wrong)


def _signature_trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    fleet = _fleet(program)
    path, folder, zipped = fleet.archive(subject), fleet.folder(subject), fleet.zipped(subject)
    # Another one each time.
    names = [itertools.cycle(random.Random(0).sample(fleet.names, len(fleet.names))) for _ in range(4)]

    def summary() -> Any:
        with subject.Archive.open(path) as archive:
            return archive[next(names[0])].summary

    def from_zip() -> Any:
        with zipfile.ZipFile(zipped) as archive:
            return signature(oracle.deserialize(archive.read(next(names[1]))))

    def from_folder() -> Any:
        return signature(oracle.deserialize((folder / next(names[3])).read_bytes()))

    def load() -> Any:
        return signature(subject.Archive.open(path)[next(names[2])].load())

    def wrong() -> list[str]:
        archive, found = subject.Archive.open(path), []
        for name in fleet.some(_SAMPLE):
            summary, exported = archive[name].summary, oracle.deserialize((fleet.made / name).read_bytes())
            for field, avals in (("argument", exported.in_avals), ("result", exported.out_avals)):
                texts = [f"{aval.dtype}[{','.join(map(str, aval.shape))}]" for aval in avals]
                listed = list(getattr(summary, f"{field}s"))
                if listed != texts[: len(listed)] or getattr(summary, f"{field}_count") != len(texts):
                    found.append(f"{name}.{field}s")
            if (summary.fun_name, tuple(summary.platforms)) != (exported.fun_name, tuple(exported.platforms)):
                found.append(name)
            found += exported_differences(archive[name].load(), exported, module=True, path=f"{name}.")
        return found

    return Trial(
        subject=Rival(load),
        oracle=Rival(from_folder),
        wrong=wrong,
        beside={"summary": Rival(summary), "zip file": Rival(from_zip)},
        alone={SUBJECT: alone(load_one, str(path), fleet.names[0]), ORACLE: alone(read, str(folder / fleet.names[0]))},
    )


def load_one(path: str, name: str) -> None:
    import jaxexp

    signature(jaxexp.Archive.open(path)[name].load())


def read(path: str) -> None:
    import jax.export

    signature(jax.export.deserialize(Path(path).read_bytes()))


def _differences(fleet: Fleet, loaded: list[Any], oracle: ModuleType, count: int = 0) -> list[str]:
    """The differences from what jax.export wrote and reads, of all functions or of about `count`."""
    if len(loaded) != len(fleet.names):
        return [f"{len(loaded)} functions"]
    names = set(fleet.some(count) if count else fleet.names)
    found = []
    for name, exported in zip(fleet.names, loaded, strict=True):
        if name in names:
            expected = oracle.deserialize((fleet.made / name).read_bytes())
            found += exported_differences(exported, expected, module=True, path=f"{name}.")
    return found


def _load_trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    fleet = _fleet(program)
    files = list(fleet.files(subject).values())
    path, folder, zipped = fleet.archive(subject), fleet.folder(subject), fleet.zipped(subject)
    beside: Mapping[str, Callable[[], object]] = {
        "opened": lambda: _from_archive(subject, path),
        "1 worker": lambda: _in_threads(subject, path, 1),
        "2 workers": lambda: _in_threads(subject, path, 2),
        "load_many": lambda: list(map(vars, subject.load_many(files))),
        "load": lambda: [vars(subject.load(file)) for file in files],
        "zipfile": lambda: _from_zip(oracle, zipped),
    }
    return Trial(
        subject=Rival(lambda: _looked_at(subject, path)),
        oracle=Rival(lambda: _from_files(oracle, folder)),
        wrong=lambda: (
            _differences(fleet, _from_archive(subject, path), oracle)
            + _differences(fleet, subject.load_many(files), oracle, _SAMPLE)
            + _differences(fleet, _from_zip(oracle, zipped), oracle, _SAMPLE)
        ),
        beside={name: Rival(run) for name, run in beside.items()} | _verification(fleet, subject),
    )


def _first_trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    fleet = _fleet(program)
    folder = fleet.folder(subject)
    ours = partial(_in_a_new_process, _seconds_of, _looked_at, subject, fleet.archive(subject))
    theirs = partial(_in_a_new_process, _seconds_of, _from_files, oracle, folder)
    verifying = partial(_in_a_new_process, _seconds_of_verification, _members, subject, folder)
    return Trial(
        subject=Reading(ours),
        oracle=Reading(theirs),
        wrong=lambda: _differences(fleet, _from_archive(subject, fleet.archive(subject)), oracle, _SAMPLE),
        beside={"verify": Reading(verifying)} if subject.__name__ == "jaxexp" else {},
    )


def _verify_trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    fleet = _fleet(program)
    path, zipped = fleet.archive(subject), fleet.zipped(subject)
    threads = ThreadPoolExecutor(_THREADS)
    buffers = [bytearray(2**20) for _ in range(_THREADS)]

    def verified() -> Any:
        with subject.Archive.open(path) as archive:
            return archive.verify()

    def tested() -> str | None:
        with zipfile.ZipFile(zipped) as archive:
            return archive.testzip()

    def wrong() -> list[str]:
        """One bit of one module, too."""
        damaged = disk.new_path()
        shutil.copyfile(path, damaged)
        name = fleet.names[len(fleet.names) // 2]
        module = oracle.deserialize((fleet.made / name).read_bytes()).mlir_module_serialized
        with open(damaged, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[mapped.find(module) + len(module) // 2] ^= 1
        found = [*verified(), *([broken] if (broken := tested()) else [])]
        with subject.Archive.open(damaged) as archive:
            noticed = list(archive.verify())
        damaged.unlink()
        return found if noticed == [name] else [*found, f"damage to {name}: noticed {noticed}"]

    return Trial(
        subject=Rival(verified),
        oracle=Rival(tested),
        wrong=wrong,
        beside={
            "read(2)": Rival(lambda: _read(path, threads, buffers)),
            "read and digest": Rival(lambda: _read(path, threads, buffers, floors.digest)),
            **_verification(fleet, subject),
        },
        alone={SUBJECT: alone(verify, str(path)), ORACLE: alone(test, str(zipped))},
    )


def verify(path: str) -> None:
    import jaxexp

    with jaxexp.Archive.open(path) as archive:
        archive.verify()


def test(path: str) -> None:
    with zipfile.ZipFile(path) as archive:
        archive.testzip()


def _read(
    path: Path, threads: ThreadPoolExecutor, buffers: list[bytearray], use: Callable[[memoryview], object] = len
) -> int:
    """Reads a file, a range of it in each thread, always into the same memory, and uses it. Returns its size."""
    share = path.stat().st_size // len(buffers) + 1

    def read(number: int, buffer: bytearray) -> int:
        with open(path, "rb", buffering=0) as file:
            file.seek(number * share)
            left = share
            while left > 0 and (count := file.readinto(memoryview(buffer)[:left])):
                use(memoryview(buffer)[:count])
                left -= count
        return share - left

    return sum(threads.map(read, range(len(buffers)), buffers))


def _memory_trial(
    case: Case,
    program: Program,
    subject: ModuleType,
    oracle: ModuleType,
    ours: Callable[..., Any],
    theirs: Any,
    more: Mapping[str, Callable[..., Any]] | None = None,
) -> Trial:
    fleet = _fleet(program)
    path, zipped = fleet.archive(subject), fleet.zipped(subject)

    def growth(kind: str, way: Callable[..., Any], library: ModuleType, path: Path) -> Reading:
        return Reading(lambda: float(_in_a_new_process(_growth_of, way, library, path)[kind]))

    return Trial(
        subject=growth("VmRSS", ours, subject, path),
        oracle=growth("VmRSS", theirs, oracle, zipped),
        wrong=lambda: _differences(fleet, _from_archive(subject, path), oracle, _SAMPLE),
        beside={
            "private": growth("RssAnon", ours, subject, path),
            "mapped": growth("RssFile", ours, subject, path),
            **{name: growth("VmRSS", way, subject, path) for name, way in (more or {}).items()},
        },
    )


_MEMORY = {
    "private": "the part of the subject's memory that belongs only to the process",
    "mapped": "the part of the subject's memory that is pages of files: the system can take them back, and all "
    "processes that have the archive open share them",
}
_VERIFY = "only jaxexp's verification and checks, in one thread, of files in memory"
_NOT_WARM = "Each sample is a new process; code that is loaded late also counts."
QUESTIONS = (
    Question(
        "open archive",
        "Opening an archive, asking for its number of members, and closing it, against the same with "
        "`zipfile.ZipFile` and a ZIP file of the same members. The file is in the page cache.",
        _open_trial,
        applies=_is_fleet,
    ),
    Question(
        "cold signature",
        "The trees and avals of one function among many, a different one each time: opening the archive and "
        "`handle.load()`, against `jax.export.deserialize` of its file in a folder. All files are in the page cache.",
        _signature_trial,
        beside={
            "summary": "the subject's `handle.summary`, a text of the signature in the archive's index",
            "zip file": "`zipfile.ZipFile`, reading the member and `jax.export.deserialize`",
        },
        applies=_is_fleet,
    ),
    Question(
        "load all again",
        "Loading all functions of an archive, and reading all of their fields: `Archive.open(path).load_all()` and "
        "`vars`, against a loop that reads each file and calls `jax.export.deserialize`. Both read files of the "
        "subject, from the page cache. Every function is compared with the one that jax.export loads from its own "
        "file. The 'versions' are versions of 200 functions (10 in the archive of 100), which differ only in baked "
        "constants. No two 'distinct' functions have the same signature. Caches are kept from one round to the next.",
        _load_trial,
        beside={
            "opened": "the subject, without reading the fields",
            "1 worker": "the same in one thread, with `load_all(workers=1)`",
            "2 workers": "the same in two threads",
            "verify": _VERIFY,
            "load_many": "`load_many` of the subject over the files, and reading the fields",
            "load": "a loop of `load` over the files, and reading the fields",
            "zipfile": "`jax.export.deserialize` of each member of a `zipfile.ZipFile`",
        },
        applies=_is_fleet,
    ),
    Question(
        "load all, first time",
        "As `load all again`, but once, as when a server starts: in a new process for each sample, with the garbage "
        "collector on. Imports for `deserialize` come before; jaxexp's code for archives is imported meanwhile.",
        _first_trial,
        beside={"verify": _VERIFY},
        applies=_is_fleet,
        quick=False,
    ),
    Question(
        "verify",
        f"Checking all digests of an archive with `verify`, against `zipfile.ZipFile.testzip`, which computes the "
        f"members' CRCs; jax.export checks nothing. `verify` must also notice a damaged copy. It runs in {_THREADS} "
        "threads.",
        _verify_trial,
        beside={
            "read(2)": f"reading the archive from the page cache in {_THREADS} threads, each into a buffer of 1 MiB",
            "read and digest": "the same, and computing jaxexp's digest of each buffer",
            "verify": _VERIFY,
        },
        applies=_is_fleet,
    ),
    Question(
        "memory of handles",
        "The resident memory that an open archive and a handle for each member add to a process that has imported the "
        f"library, against an open `zipfile.ZipFile`. {_NOT_WARM}",
        partial(_memory_trial, ours=_handles, theirs=_zip_directory),
        beside=_MEMORY,
        applies=_is_fleet,
        unit="byte",
        quick=False,
    ),
    Question(
        "memory of all",
        "As `memory of handles`, after all functions are loaded and their fields read, but before any is called: "
        f"`load_all` and `vars`, against `jax.export.deserialize` over a `zipfile.ZipFile`. {_NOT_WARM}",
        partial(_memory_trial, ours=_looked_at, theirs=_from_zip, more={"opened": _from_archive}),
        beside={**_MEMORY, "opened": "the subject's memory, without reading the fields"},
        applies=_is_fleet,
        unit="byte",
        quick=False,
    ),
)
