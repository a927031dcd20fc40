"""How long does it take to append one artifact to a large archive? Each sample is a new process."""

from __future__ import annotations

import contextlib
import sqlite3
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from bench import disk
from bench.cases import Case
from bench.measure import Reading
from bench.members import Members
from bench.processes import json_of
from bench.program import Program
from bench.question import Question, Trial

# Ways to append. Each takes a file, a name and an artifact, so that a new process can run it by name.


def to_archive(path: Path, name: str, artifact: bytes) -> None:
    import jaxexp

    with jaxexp.Archive.append(path) as archive:
        archive.add(name, artifact)


def to_zip(path: Path, name: str, artifact: bytes) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, artifact)


def to_database(path: Path, name: str, artifact: bytes) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO artifacts VALUES (?, ?)", (name, artifact))


_CHILD = """
import json, sys
from bench import bench_append
print(json.dumps(bench_append.seconds(*json.loads(sys.argv[1]))))
"""


def seconds(way: str, path: str, name: str, artifact: str) -> float:
    import jaxexp

    jaxexp.Archive  # noqa: B018  (jaxexp imports its own code when it is asked for a name)
    blob = Path(artifact).read_bytes()
    start = time.perf_counter()
    globals()[way](Path(path), name, blob)
    return time.perf_counter() - start


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    assert isinstance(program, Members)
    artifact, added = disk.new_path(), 0
    artifact.write_bytes(program.artifact(oracle))
    archive, zipped, database = program.archive(subject), program.zipped(subject), program.database(subject)

    def append(way: Callable[..., None], path: Path) -> float:
        nonlocal added
        added += 1
        return float(json_of(_CHILD, [way.__name__, str(path), f"added/{added}", str(artifact)]))

    def wrong() -> list[str]:
        """Each file has what was appended, and all that it had."""
        expected, found = program.artifact(oracle), []
        for way, path in ((to_archive, archive), (to_zip, zipped), (to_database, database)):
            append(way, path)
            count, last = _read(subject, way, path, f"added/{added}")
            if (count, last) != (program.count + 1, expected):
                found.append(way.__name__)
        return found

    return Trial(
        subject=Reading(partial(append, to_archive, archive)),
        oracle=Reading(partial(append, to_zip, zipped)),
        wrong=wrong,
        beside={"SQLite": Reading(partial(append, to_database, database))},
    )


def _read(library: ModuleType, way: Any, path: Path, name: str) -> tuple[int, bytes]:
    """How many artifacts a file has, and one of them."""
    if way is to_database:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            ((count,),) = connection.execute("SELECT count(*) FROM artifacts")
            ((artifact,),) = connection.execute("SELECT artifact FROM artifacts WHERE name = ?", (name,))
        return count, artifact
    if way is to_zip:
        with zipfile.ZipFile(path) as zipped:
            return len(zipped.namelist()), zipped.read(name)
    with library.Archive.open(path) as archive:
        return len(archive), bytes(archive[name].read())


QUESTION = Question(
    "append",
    "Appending one artifact to an archive, in a new process for each sample, until the file is closed: "
    "`Archive.append`, which also waits until the disk has it, against `zipfile.ZipFile(path, 'a')`, which reads the "
    "whole directory and writes it again, and does not wait for the disk. After `Archive.append`, tools for ZIP files "
    "see only what was appended last, until `Archive.compact`, which is not timed. The files are in the page cache.",
    _trial,
    beside={"SQLite": "a row more in a table of SQLite, which waits for the disk, too"},
    applies=lambda case: case.family == "archive",
    patience=8,
)
