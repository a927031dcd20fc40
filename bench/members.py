"""Large archives: many small artifacts with one module and their own metadata, in several kinds of files."""

from __future__ import annotations

import contextlib
import sqlite3
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

from bench import disk
from bench.program import Program

SHAPE = (2, 4)


def name_of(number: int) -> str:
    return f"m{number // 1000}/plat{number // 100 % 10}/b{number % 100:02}"


@dataclass(frozen=True)
class Members(Program):
    """One function, and files with `count` artifacts of it, each with another number in its metadata."""

    count: int = 0
    _written: dict[str, Path] = field(default_factory=dict, repr=False)

    def archive(self, library: ModuleType) -> Path:
        return self._file("archive", library)

    def zipped(self, library: ModuleType) -> Path:
        return self._file("zip", library)

    def database(self, library: ModuleType) -> Path:
        """One of SQLite, with a table of artifacts by name."""
        return self._file("database", library)

    def _file(self, kind: str, library: ModuleType) -> Path:
        """One of the files, all of which are written the first time: to make a million artifacts takes minutes."""
        if not self._written:
            exported = library.deserialize(self.artifact(library))
            names = map(name_of, range(self.count))
            made = {name: bytes(exported.serialize(metadata={"version": number})) for number, name in enumerate(names)}
            archive, zipped, database = (disk.new_path() for _ in range(3))
            with library.Archive.create(archive) as ours, zipfile.ZipFile(zipped, "w", zipfile.ZIP_STORED) as theirs:
                for name, artifact in made.items():
                    ours.add(name, artifact)
                    theirs.writestr(name, artifact)
            with contextlib.closing(sqlite3.connect(database)) as connection, connection:
                connection.execute("CREATE TABLE artifacts (name TEXT PRIMARY KEY, artifact BLOB)")
                connection.executemany("INSERT INTO artifacts VALUES (?, ?)", made.items())
            self._written.update({"archive": archive, "zip": zipped, "database": database})
        return self._written[kind]


def members(count: int) -> Members:
    x = np.ones(SHAPE, np.float32)
    return Members(lambda x: x * 2, (jax.ShapeDtypeStruct(x.shape, x.dtype),), (x,), count=count)
